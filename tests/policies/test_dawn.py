import random
from dataclasses import replace

import pytest
import torch
from policies.rows import committed

from unmask import policies
from unmask.types import StepView


def dawn_view(confidence, attention, masked, *, start, width=None, **more):
    """One row of two tokens; `confidence` and the map cover the canvas, `masked` the block's columns."""
    logits = torch.tensor([[[p, 1.0 - p] for p in confidence]], dtype=torch.float64).log()
    return StepView(
        logits=logits[:, start : start + len(masked)],
        masked=torch.tensor([masked]),
        start=torch.tensor([start]),
        sequence_logits=logits,
        attention=torch.as_tensor(attention, dtype=torch.float64)[None],
        **more,
    )


def graph(canvas, edges):
    """A map with a little attention everywhere and .2 from the first to the second position of each edge."""
    attention = [[0.001] * canvas for _ in range(canvas)]
    for query, key in edges:
        attention[query][key] = 0.2
    return attention


POLICY = policies.Dawn(tau_sink=0.2)


def test_a_position_that_depends_on_an_anchor_needs_less_confidence():
    confidence = [0.95, 0.5, 0.72, 0.72]
    assert committed(POLICY, dawn_view(confidence, graph(4, [(2, 0)]), [True] * 2, start=2)) == [2]
    assert committed(POLICY, dawn_view(confidence, graph(4, [(2, 0), (3, 0)]), [True] * 2, start=2)) == [2, 3]
    assert committed(POLICY, dawn_view(confidence, graph(4, [(2, 1)]), [True] * 2, start=2)) == [2]  # the fallback
    assert committed(POLICY, dawn_view([0.95, 0.5, 0.69, 0.72], graph(4, [(2, 0)]), [True] * 2, start=2)) == [3]


def test_attention_equal_to_the_edge_threshold_is_an_edge():
    view = dawn_view([0.95, 0.5, 0.72, 0.73], graph(4, [(2, 0)]), [True] * 2, start=2)
    assert committed(policies.Dawn(tau_sink=0.2, tau_edge=0.2), view) == [2]
    assert committed(policies.Dawn(tau_sink=0.2, tau_edge=0.2001), view) == [3]


def test_a_decoded_position_of_the_block_is_an_anchor_and_later_blocks_are_not():
    confidence = [0.5, 0.95, 0.72, 0.71, 0.99]
    edges = graph(5, [(3, 1), (2, 4)])
    assert committed(POLICY, dawn_view(confidence, edges, [False, True, True], start=1)) == [3]


def test_columns_past_a_short_block_lie_beyond_its_end():
    confidence = [0.5, 0.72, 0.73, 0.99, 0.5]
    edges = graph(5, [(1, 3)])
    short = torch.tensor([[1, 1, -1]])
    assert committed(POLICY, dawn_view(confidence, edges, [True, True, False], start=1, tokens=short)) == [2]
    whole = torch.tensor([[1, 1, 0]])
    assert committed(POLICY, dawn_view(confidence, edges, [True, True, False], start=1, tokens=whole)) == [1]


def test_an_open_position_before_the_block_is_no_anchor():
    view = dawn_view([0.95, 0.72, 0.73], graph(3, [(1, 0)]), [True, True], start=1)
    assert committed(POLICY, view) == [1]
    still_open = torch.tensor([[True, True, True]])
    view = dawn_view([0.95, 0.72, 0.73], graph(3, [(1, 0)]), [True, True], start=1, sequence_masked=still_open)
    assert committed(POLICY, view) == [2]


def test_coupled_positions_of_middling_confidence_are_kept_apart():
    confidence = [0.5, 0.8, 0.85, 0.81]
    assert committed(POLICY, dawn_view(confidence, graph(4, []), [True] * 3, start=1)) == [1, 2, 3]
    assert committed(POLICY, dawn_view(confidence, graph(4, [(1, 2)]), [True] * 3, start=1)) == [2, 3]
    assert committed(POLICY, dawn_view(confidence, graph(4, [(2, 1), (3, 1)]), [True] * 3, start=1)) == [2, 3]


def test_the_conflict_with_settled_positions_is_with_both_kinds_or_with_either():
    confidence = [0.95, 0.95, 0.8]  # an anchor, a confident position, a candidate that depends on it
    confident_only = dawn_view(confidence, graph(3, [(2, 1)]), [True, True], start=1)
    union = policies.Dawn(tau_sink=0.2, conflict_with="union")
    assert committed(POLICY, confident_only) == [1, 2]
    assert committed(union, confident_only) == [1]
    confident_and_induced = dawn_view(confidence, graph(3, [(2, 1), (1, 0)]), [True, True], start=1)
    assert committed(POLICY, confident_and_induced) == [1]


def test_padding_does_not_dilute_a_sink():
    # Key 0 gets .2 from one of four queries, .05075 on average: a sink at .05, which four rows of padding would hide.
    policy = policies.Dawn(tau_sink=0.05)
    view = dawn_view([0.95, 0.5, 0.72, 0.73], graph(4, [(2, 0)]), [True, True], start=2)
    assert committed(policy, view) == [3]
    padded = torch.zeros(8, 8)
    padded[:4, :4] = torch.tensor(graph(4, [(2, 0)]))
    view = dawn_view([0.95, 0.5, 0.72, 0.73] + [0.5] * 4, padded, [True, True], start=2)
    assert committed(policy, replace(view, length=torch.tensor([4]))) == [3]


def test_a_row_of_the_map_that_is_zero_still_counts_as_a_query():
    policy = policies.Dawn(tau_sink=0.05)
    attention = torch.zeros(4, 4)
    attention[2, 0] = 0.15
    view = dawn_view([0.95, 0.5, 0.72, 0.73], attention, [True, True], start=2)
    assert committed(policy, view) == [2]


def test_a_dropped_candidate_leaves_the_first_token_of_the_prompt_alone():
    view = dawn_view([0.5, 0.8, 0.85], graph(3, [(1, 2)]), [False, True, True], start=0)
    decision, _ = POLICY.select(view)
    assert decision.commit.tolist() == [[False, False, True]]


def test_the_last_four_layers_are_read():
    assert policies.Dawn().attention_layers(32) == range(28, 32)
    assert policies.Dawn().attention_layers(3) == range(3)


def oracle(policy, confidence, attention, masked, start):
    canvas, end = len(confidence), start + len(masked)
    opened = [start + c for c, open_ in enumerate(masked) if open_]
    sinks = {k for k in range(canvas) if sum(attention[q][k] for q in range(canvas)) / canvas > policy.tau_sink}

    def depends(q, k):
        return q != k and k not in sinks and attention[q][k] >= policy.tau_edge

    high = {i for i in opened if confidence[i] >= 0.9}
    anchors = [k for k in range(end) if k not in opened and confidence[k] >= 0.9]
    induced = {i for i in opened if confidence[i] >= policy.tau_induce and any(depends(i, k) for k in anchors)}
    settled = high & induced if policy.conflict_with == "intersection" else high | induced
    pool = [i for i in opened if confidence[i] >= policy.tau_low and i not in high | induced]
    pool = [i for i in pool if not any(depends(i, k) for k in settled)]
    apart = set()
    while pool:
        best = max(pool, key=lambda i: (confidence[i], -i))
        apart.add(best)
        pool = [i for i in pool if i != best and not depends(i, best) and not depends(best, i)]
    return high | induced | apart or {max(opened, key=lambda i: (confidence[i], -i))}


@pytest.mark.parametrize("conflict_with", ["intersection", "union"])
def test_dawn_commits_as_plain_python_does(conflict_with):
    rng = random.Random(8)
    for _ in range(120):
        start, width = rng.randint(0, 4), rng.randint(1, 8)
        canvas = start + width + rng.randint(0, 3)
        attention = [[rng.random() ** 3 / canvas for _ in range(canvas)] for _ in range(canvas)]
        confidence = [rng.choice([rng.uniform(0.5, 0.99), rng.uniform(0.7, 0.92)]) for _ in range(canvas)]
        masked = [rng.random() < 0.8 for _ in range(width)]
        masked[rng.randrange(width)] = True
        policy = policies.Dawn(
            tau_sink=rng.uniform(0.02, 0.08), tau_edge=rng.uniform(0.01, 0.08), tau_low=0.7, conflict_with=conflict_with
        )
        view = dawn_view(confidence, attention, masked, start=start)
        assert set(committed(policy, view)) == oracle(policy, confidence, attention, masked, start)
