import random

import pytest
import torch

from unmask import policies
from unmask.policies.wino import Drafted
from unmask.types import StepView


def wino_view(confidence, verdict, *, step=1):
    """One row, two tokens; `verdict` is None at open positions, else the shadow's probability of the standing token."""

    def logits(values):
        return torch.tensor([[[p, 1.0 - p] for p in values]], dtype=torch.float64).log()

    masked = [value is None for value in verdict]
    return StepView(
        logits=logits([c if open_ else 0.5 for c, open_ in zip(confidence, masked, strict=True)]),
        masked=torch.tensor([masked]),
        proposed=torch.zeros(1, len(masked), dtype=torch.long),
        tokens=torch.tensor([[1 if open_ else 0 for open_ in masked]]),
        step=torch.tensor([step]),
        shadow_logits=logits([0.5 if value is None else value for value in verdict]),
    )


def outcome(view, previous=None, **params):
    """Columns committed and remasked, and the size of the draft handed on."""
    state = None if previous is None else Drafted(torch.tensor([previous]))
    decision, state = policies.Wino(**params).select(view, state)
    columns = [part[0].nonzero().flatten().tolist() for part in (decision.commit, decision.remask)]
    return (*columns, state.count.item())


def test_a_draft_takes_what_is_strictly_above_its_threshold():
    assert outcome(wino_view([0.5, 0.9, 0.95], [None] * 3), draft_threshold=0.5) == ([1, 2], [], 2)


def test_an_empty_draft_takes_the_most_confident_position():
    assert outcome(wino_view([0.3, 0.55, 0.4], [None] * 3)) == ([1], [], 1)


@pytest.mark.parametrize(("masks", "expected"), [(4, 4), (6, 5), (7, 5), (8, 5), (9, 6), (10, 7), (20, 14), (40, 20)])
def test_a_draft_is_capped_at_seven_tenths_of_the_masks_between_five_and_twenty(masks, expected):
    confidence = [0.7 + 0.001 * column for column in range(masks)]
    commit, _, count = outcome(wino_view(confidence, [None] * masks))
    assert commit == list(range(masks - expected, masks))
    assert count == expected


def test_doubtful_tokens_are_opened_again():
    view = wino_view([0, 0, 0.8, 0.7, 0], [0.89, 0.91, None, None, 0.2])
    assert outcome(view, previous=5) == ([2, 3], [0, 4], 2)


def test_a_token_that_just_reaches_the_threshold_is_kept():
    assert outcome(wino_view([0, 0.8, 0.8], [0.5, None, None]), verify_threshold=0.5) == ([1, 2], [], 2)


def test_fewer_are_opened_than_the_pass_before_committed_the_least_likely_first():
    view = wino_view([0, 0, 0.8, 0.7, 0], [0.5, 0.4, None, None, 0.2])
    assert outcome(view, previous=4) == ([2, 3], [0, 1, 4], 2)
    assert outcome(view, previous=3) == ([2, 3], [1, 4], 2)
    assert outcome(view, previous=2) == ([2, 3], [4], 2)
    assert outcome(view, previous=1) == ([2, 3], [], 2)


def test_a_single_commit_opens_nothing():
    assert outcome(wino_view([0, 0.7, 0.5], [0.1, None, None]), previous=9) == ([1], [], 1)


def test_a_new_block_starts_with_an_allowance_of_thirty():
    verdict = [0.1] * 40 + [None] * 2
    view = wino_view([0.8] * 42, verdict, step=0)
    for previous in (None, 1):
        assert len(outcome(view, previous)[1]) == 29


def test_columns_past_a_short_block_are_never_opened():
    view = wino_view([0.8, 0.8, 0, 0], [None, None, 0.1, 0.1])
    tokens = torch.tensor([[1, 1, 0, -1]])
    view = StepView(logits=view.logits, masked=view.masked, tokens=tokens, shadow_logits=view.shadow_logits)
    decision, _ = policies.Wino().select(view)
    assert decision.remask.tolist() == [[False, False, True, False]]


def test_without_standing_tokens_nothing_is_known_to_be_decoded():
    logits = torch.zeros(1, 3, 3)
    masked = torch.tensor([[True, True, False]])
    decision, _ = policies.Wino(draft_threshold=0.1).select(
        StepView(logits=logits, masked=masked, shadow_logits=logits)
    )
    assert not decision.remask.any()
    assert decision.commit.tolist() == [[True, True, False]]


def oracle(confidence, verdict, previous, draft, verify):
    opened = sorted((i for i, v in enumerate(verdict) if v is None), key=lambda i: (-confidence[i], i))
    most = min(max(int(0.7 * len(opened)), 5), 20)
    chosen = [i for i in opened if confidence[i] > draft][:most] or opened[:1]
    doubtful = sorted((i for i, v in enumerate(verdict) if v is not None and v < verify), key=lambda i: (verdict[i], i))
    if len(doubtful) >= previous:
        doubtful = doubtful[: max(previous - 1, 0)]
    return sorted(chosen), sorted(doubtful) if len(chosen) > 1 else [], len(chosen)


def test_wino_decides_as_plain_python_does():
    rng = random.Random(4)
    for _ in range(150):
        width = rng.randint(1, 30)
        confidence = [rng.uniform(0.3, 0.99) for _ in range(width)]
        verdict = [rng.choice([None, rng.uniform(0.2, 0.99)]) for _ in range(width)]
        previous, draft, verify = rng.randint(0, 12), rng.uniform(0.3, 0.9), rng.uniform(0.3, 0.95)
        found = outcome(wino_view(confidence, verdict), previous, draft_threshold=draft, verify_threshold=verify)
        assert found == oracle(confidence, verdict, previous, draft, verify)
