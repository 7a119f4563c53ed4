import random

import pytest
import torch
from policies.rows import committed

from unmask import policies
from unmask.types import StepView


def dapd_view(confidence, attention, masked=None, *, start=0, remaining=None, total=None, dtype=torch.float64):
    """One row of two tokens; the canvas is as long as the map."""
    probability = torch.tensor([[[p, 1.0 - p] for p in confidence]], dtype=torch.float64)
    width = len(confidence)
    return StepView(
        logits=probability.log().to(dtype),
        masked=torch.tensor([masked or [True] * width]),
        proposed=torch.zeros(1, width, dtype=torch.long),
        start=torch.tensor([start]),
        remaining=torch.tensor([width if remaining is None else remaining]),
        total=torch.tensor([width if total is None else total]),
        attention=torch.as_tensor(attention, dtype=torch.float64)[None],
    )


CHAIN = [
    [0.0, 0.4, 0.0, 0.0],
    [0.2, 0.0, 0.2, 0.0],
    [0.0, 0.2, 0.0, 0.002],
    [0.0, 0.0, 0.002, 0.0],
]
# Mutual attention .3 between 0 and 1, .2 between 1 and 2, .002 between 2 and 3; degrees .3, .5, .202, .002.


def test_a_chain_by_hand():
    # Order 1, 0, 2, 3. 0 and 2 depend on 1; 3 depends on 2 only, which was not taken.
    assert committed(policies.Dapd(), dapd_view([0.8] * 4, CHAIN)) == [1, 3]


def test_confidence_and_degree_make_the_order_together():
    # 0 now leads: .3 x .9 against .5 x .5. 1 depends on 0, 2 on nothing taken, 3 on 2 by all of its little attention.
    assert committed(policies.Dapd(), dapd_view([0.9, 0.5, 0.8, 0.8], CHAIN)) == [0, 2]


def test_dependence_is_relative_to_the_candidates_own_largest():
    # 3 looks only at 2, so whatever little it is counts fully; 2, which looks mostly at 1, ignores 3.
    leading = dapd_view([0.1, 0.1, 0.1, 0.99], [row[:] for row in CHAIN], masked=[True, False, True, True])
    assert committed(policies.Dapd(), leading) == [0, 3]
    view = dapd_view([0.001, 0.001, 0.001, 0.999], CHAIN)
    assert committed(policies.Dapd(tau_max=1.0), view) == [1, 3]


def test_more_dependence_is_tolerated_the_less_is_left():
    policy = policies.Dapd(tau_min=0.0, tau_max=1.0)
    assert committed(policy, dapd_view([0.8] * 4, CHAIN, remaining=4, total=4)) == [1, 3]
    # tau = .9 of the largest: 2 looks at 1 with all it has, 0 too; 3 still looks at 2 alone.
    assert committed(policy, dapd_view([0.8] * 4, CHAIN, remaining=4, total=40)) == [1, 3]
    loose = policies.Dapd(tau_min=1.0, tau_max=1.0)
    assert committed(loose, dapd_view([0.8] * 4, CHAIN)) == [0, 1, 2, 3]


def test_the_staged_variant_adds_confident_positions_in_the_second_half():
    confidence = [0.95, 0.8, 0.95, 0.8]
    early = dapd_view(confidence, CHAIN, remaining=6, total=11)
    late = dapd_view(confidence, CHAIN, remaining=6, total=12)
    assert committed(policies.Dapd(), early) == [1, 3]
    assert committed(policies.Dapd(), late) == [0, 1, 2, 3]
    assert committed(policies.Dapd(variant="direct"), late) == [1, 3]


def test_the_direct_variant_takes_certain_positions_aside():
    confidence = [0.8, 0.999, 0.8, 0.8]
    certain = dapd_view(confidence, CHAIN, dtype=torch.bfloat16)
    # 1 rounds to certainty in bfloat16 and bars no other; 0 and 2 do not see each other, 3 depends on 2.
    assert committed(policies.Dapd(variant="direct"), certain) == [0, 1, 2]
    assert committed(policies.Dapd(variant="direct"), dapd_view(confidence, CHAIN)) == [1, 3]


def test_the_last_three_tenths_of_the_layers_are_read():
    assert policies.Dapd().attention_layers(32) == range(22, 32)
    assert policies.Dapd().attention_layers(28) == range(19, 28)
    assert policies.Dapd().attention_layers(1) == range(1)


def oracle(policy, confidence, masked, attention, start, remaining, total):
    opened = [c for c, open_ in enumerate(masked) if open_]
    s = {i: {} for i in opened}
    for i in opened:
        for j in opened:
            mutual = (attention[start + i][start + j] + attention[start + j][start + i]) / 2
            s[i][j] = 0.0 if i == j else mutual
    degree = {i: sum(s[i].values()) for i in opened}
    most, best = max(degree.values()) or 1.0, max(confidence[i] for i in opened)
    order = sorted(opened, key=lambda i: (-(degree[i] / most) * (confidence[i] / best), i))
    progress = 1 - remaining / total
    tau = policy.tau_min + (policy.tau_max - policy.tau_min) * progress
    taken = []
    for i in order:
        own = max(max(s[i].values()), 1e-8)
        if all(s[i][j] / own <= tau for j in taken):
            taken.append(i)
    if policy.variant == "staged" and progress >= 0.5:
        taken += [i for i in opened if confidence[i] >= 0.9]
    return {start + i for i in taken}


@pytest.mark.parametrize("variant", ["staged", "direct"])
def test_dapd_commits_as_plain_python_does(variant):
    rng = random.Random(6)
    for _ in range(120):
        width, start = rng.randint(1, 8), rng.randint(0, 3)
        canvas = start + width + rng.randint(0, 2)
        attention = [[rng.random() ** 4 for _ in range(canvas)] for _ in range(canvas)]
        confidence = [rng.uniform(0.2, 0.99) for _ in range(width)]
        masked = [rng.random() < 0.8 for _ in range(width)]
        masked[rng.randrange(width)] = True
        total = rng.randint(width, 30)
        remaining = rng.randint(sum(masked), total)
        policy = policies.Dapd(tau_min=rng.uniform(0, 0.2), tau_max=rng.uniform(0.2, 0.9), variant=variant)
        view = dapd_view(confidence, attention, masked, start=start, remaining=remaining, total=total)
        expected = oracle(policy, confidence, masked, attention, start, remaining, total)
        assert set(committed(policy, view)) == expected
