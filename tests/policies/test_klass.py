import math
import random

import pytest
import torch

from unmask import policies
from unmask.types import StepView

SHARP = [4.0, 0.0, 0.0]  # probability 0.965


def sequence_view(logits, *, masked, step=0, start=0, width=None, **more):
    """One row whose block starts at `start` of the canvas (n, v)."""
    logits = torch.as_tensor(logits, dtype=torch.float64)[None]
    block = logits[:, start : start + (width or len(masked))]
    return StepView(
        logits=block,
        masked=torch.tensor([masked]),
        start=torch.tensor([start]),
        step=torch.tensor([step]),
        sequence_logits=logits,
        **more,
    )


def test_the_first_divergence_is_the_logarithm_of_the_constant_less_the_entropy():
    logits = torch.tensor([SHARP, [0.0, 0.0, 0.0]], dtype=torch.float64)
    _, state = policies.Klass().select(sequence_view(logits, masked=[True, True]))
    entropy = torch.special.entr(logits.softmax(-1)).sum(-1)
    torch.testing.assert_close(state.divergence[0, :, -1], 12 * math.log(10) - entropy, atol=1e-9, rtol=0)


@pytest.mark.parametrize("convention", ["llada", "dream"])
def test_nothing_is_stable_before_the_third_forward_pass(convention):
    policy, state = policies.Klass(convention=convention), None
    counts = []
    for step in range(3):
        decision, state = policy.select(sequence_view([SHARP] * 4, masked=[True] * 4, step=step), state)
        counts.append(int(decision.commit.sum()))
    assert counts == [1, 1, 4]


def test_the_first_pass_of_a_block_can_only_fall_back_on_llada():
    canvas, state = [SHARP] * 5, None
    counts = {}
    for convention in ("llada", "dream"):
        policy, state = policies.Klass(convention=convention), None
        for step in range(3):
            _, state = policy.select(sequence_view(canvas, masked=[True, True], step=step), state)
        decision, state = policy.select(sequence_view(canvas, masked=[True] * 3, start=2), state)
        counts[convention] = [int(decision.commit.sum())]
        decision, state = policy.select(sequence_view(canvas, masked=[True] * 3, start=2, step=1), state)
        counts[convention].append(int(decision.commit.sum()))
    assert counts == {"llada": [1, 3], "dream": [3, 3]}


def test_equality_with_the_confidence_suffices_on_dream_only():
    even = [[0.0, 0.0]] * 2
    for convention, expected in (("llada", 1), ("dream", 2)):
        policy, state = policies.Klass(confidence=0.5, convention=convention), None
        for step in range(3):
            decision, state = policy.select(sequence_view(even, masked=[True, True], step=step), state)
        assert int(decision.commit.sum()) == expected


def test_the_fallback_follows_the_number_of_passes():
    for passes, expected in ((None, 1), (2, 3), (5, 1)):
        decision, _ = policies.Klass(passes=passes).select(sequence_view([SHARP] * 5, masked=[True] * 5))
        assert int(decision.commit.sum()) == expected


def test_on_dream_a_drawn_token_chooses_the_position_and_the_likeliest_is_written():
    logits = [[2.0, 1.0, 0.0], [2.0, 1.9, 0.0]]
    drawn = torch.tensor([[2, 1]])
    decision, _ = policies.Klass(convention="dream").select(sequence_view(logits, masked=[True, True], proposed=drawn))
    assert decision.commit.tolist() == [[False, True]]
    assert decision.tokens.tolist() == [[0, 0]]
    decision, _ = policies.Klass().select(sequence_view(logits, masked=[True, True], proposed=drawn))
    assert decision.tokens is None


def test_a_moving_distribution_is_not_stable():
    policy, state = policies.Klass(kl=0.015), None
    for step in range(6):
        wobbling = [4.0, 0.0, 2.5 * (step % 2)]
        decision, state = policy.select(sequence_view([SHARP, wobbling, SHARP], masked=[True] * 3, step=step), state)
    assert decision.commit.tolist() == [[True, False, True]]


def test_the_state_does_not_alias_the_logits_of_the_pass():
    view = sequence_view([SHARP] * 2, masked=[True, True])
    _, state = policies.Klass().select(view)
    view.sequence_logits.zero_()
    assert state.logits.abs().sum() > 0


def softmax(row):
    exponentials = [math.exp(x - max(row)) for x in row]
    return [e / sum(exponentials) for e in exponentials]


class Oracle:
    """KLASS for one row, written out position by position."""

    def __init__(self, canvas, vocabulary, policy):
        self.policy = policy
        self.before = [[0.0] * vocabulary for _ in range(canvas)]
        self.recent = [[0.0] * policy.history for _ in range(canvas)]

    def commit(self, logits, open_positions, proposed, step, count):
        policy, now = self.policy, [softmax(row) for row in logits]
        for i, (p, q) in enumerate(zip(now, self.before, strict=True)):
            kl = sum(a * (math.log(a + 1e-12) - math.log(b + 1e-12)) for a, b in zip(p, q, strict=True))
            self.recent[i] = [*self.recent[i][1:], kl]
        self.before = now
        ready = set()
        for i in open_positions:
            if policy.convention == "llada":
                confident = now[i][proposed[i]] > policy.confidence and step >= policy.history - 1
            else:
                confident = max(now[i]) >= policy.confidence
            if confident and all(kl < policy.kl for kl in self.recent[i]):
                ready.add(i)
        return ready or set(sorted(open_positions, key=lambda i: (-now[i][proposed[i]], i))[:count])


@pytest.mark.parametrize("convention", ["llada", "dream"])
def test_whole_trajectories_equal_plain_python(convention):
    rng, generator = random.Random(5), torch.Generator().manual_seed(5)
    for _ in range(12):
        policy = policies.Klass(
            confidence=rng.choice([0.5, 0.7]),
            kl=rng.choice([0.001, 0.02]),
            history=rng.choice([1, 2, 3]),
            convention=convention,
        )
        base = 3.0 * torch.randn(9, 5, generator=generator, dtype=torch.float64)
        oracle, state, most = Oracle(9, 5, policy), None, 0
        for start, end in ((2, 6), (6, 9)):
            masked, step = [True] * (end - start), 0
            while any(masked):
                noise = rng.choice([0.0, 0.02, 0.3]) * torch.randn(9, 5, generator=generator, dtype=torch.float64)
                drawn = torch.randint(5, (9,), generator=generator).where(
                    torch.rand(9, generator=generator) < 0.3, (base + noise).argmax(-1)
                )
                view = sequence_view(
                    base + noise, masked=masked, step=step, start=start, proposed=drawn[None, start:end]
                )
                decision, state = policy.select(view, state)
                chosen = {start + c for c in decision.commit[0].nonzero().flatten().tolist()}
                opened = [start + c for c, open_ in enumerate(masked) if open_]
                assert chosen == oracle.commit((base + noise).tolist(), opened, drawn.tolist(), step, 1)
                masked = [open_ and start + c not in chosen for c, open_ in enumerate(masked)]
                step, most = step + 1, max(most, len(chosen))
