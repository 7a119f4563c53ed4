"""What the loop does around a decision."""

import math

import torch

from unmask.engine.commit import BROKEN, DRIFTED, GOES_ON, WAITING, CommitInputs, PassResult, apply, outcome_of
from unmask.engine.observe import Observed, window_state
from unmask.types import Decision, StepView

MASK, V = 7, 11
HARD = torch.tensor([math.nan, math.inf, -math.inf, torch.finfo(torch.float32).min, torch.finfo(torch.float32).max])


def window(generator, b, n, k):
    """Canvases half full, and blocks of which some are narrow: tokens, holes, at, inside."""
    draw = _drawing(generator)
    tokens = draw(torch.randint, 0, V, (b, n))
    tokens[draw(torch.rand, b, n) < 0.5] = MASK
    holes = (tokens == MASK) | (draw(torch.rand, b, n) < 0.3)
    start = draw(torch.randint, 0, n - k + 1, (b, 1))
    width = torch.where(draw(torch.rand, b, 1) < 0.5, k, draw(torch.randint, 1, k + 1, (b, 1)))
    columns = torch.arange(k, device=generator.device)
    return tokens, holes, start + torch.minimum(columns, width - 1), columns < width


def scores(generator, b, k):
    """Many are equal, some are no numbers or at the ends of what there is."""
    draw = _drawing(generator)
    values = draw(torch.randn, b, k).mul(2).round()
    hard = HARD.to(generator.device)[draw(torch.randint, 0, len(HARD), (b, k))]
    return torch.where(draw(torch.rand, b, k) < draw(torch.rand, b, 1), hard, values)


def case(generator, b, n, k, *, given):
    """The inputs of a commit, hard ones among them, and the canvases; `given`: the flags that it has."""
    draw = _drawing(generator)
    tokens, holes, at, inside = window(generator, b, n, k)
    state = window_state(tokens, holes, at, inside, mask_id=MASK)
    # Rows lie apart, as in a part of a larger tensor.
    logits = draw(torch.randn, b, k, V + 3)[..., :V]
    if "mask_allowed" not in given:
        logits[..., MASK] = -math.inf
    spoilt = draw(torch.rand, b, k) < 0.3 * draw(torch.rand, b, 1).round()
    logits[spoilt] = HARD[0]
    logits[spoilt & (draw(torch.rand, b, k) < 0.5)] = -math.inf
    some = lambda share: draw(torch.rand, b, k) < share * draw(torch.rand, b, 1).round()  # noqa: E731
    decision = Decision(
        commit=some(0.4),
        score=scores(generator, b, k),
        remask=some(0.5) if "remask" in given else None,
        wait=draw(torch.rand, b) < 0.5 if "wait" in given else None,
        tokens=draw(torch.randint, 0, V, (b, k)) if "tokens" in given else None,
    )
    view = StepView(logits=logits, masked=state.masked, proposed=logits.argmax(-1), tokens=state.tokens)
    flags = {
        name: draw(torch.rand, b) < 0.5 if name in given else None for name in ("drifted", "first_only", "pin_first")
    }
    made = CommitInputs(
        decision=decision,
        observed=Observed(view=view, state=state, logits=logits, greedy=True),
        at=at,
        first=None,
        **flags,
        mask_id=MASK,
        mask_allowed="mask_allowed" in given,
    )
    return made, tokens


def _drawing(generator):
    return lambda function, *given: function(*given, generator=generator, device=generator.device)


def test_the_state_of_a_narrow_block():
    tokens = torch.tensor([[1, 2, MASK, 3, MASK]])
    holes = torch.tensor([[False, True, True, True, True]])
    at, inside = torch.tensor([[1, 2, 2]]), torch.tensor([[True, True, False]])
    state = window_state(tokens, holes, at, inside, mask_id=MASK)
    assert state.masked.tolist() == [[False, True, False]]
    assert state.decoded.tolist() == [[True, False, False]]
    assert state.tokens.tolist() == [[2, MASK, -1]]
    assert state.remaining.tolist() == [2]


def test_the_result_is_what_was_done_to_the_canvas():
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        made, tokens = case(generator, 4, 30, 8, given=("remask", "drifted", "pin_first"))
        after, results = apply(tokens, made)
        outcome, state, view = outcome_of(made), made.observed.state, made.observed.view
        for row, numbers in enumerate(results.tolist()):
            standing, commit, remask, flags = numbers[:8], numbers[8:16], numbers[16:24], numbers[24:]
            width = int((state.tokens[row] >= 0).sum())
            first = int(made.at[row, 0])
            assert after[row, first : first + width].tolist() == standing[:width]
            assert commit == outcome.commit[row].tolist()
            assert remask == outcome.remask[row].tolist()
            assert flags[WAITING] == 0
            assert flags[DRIFTED] == made.drifted[row]
            largest = made.observed.logits[row].amax(-1)[view.masked[row]]
            assert flags[BROKEN] == any(not x.isfinite() for x in largest)
            assert flags[GOES_ON] == (MASK in standing and not made.drifted[row])
            read = PassResult.read(numbers, (first, first + width))
            assert read.committed == {first + c: standing[c] for c in range(width) if commit[c]}
            assert read.remasked == tuple(first + c for c in range(width) if remask[c])
            assert (read.drifted, read.goes_on) == (bool(flags[DRIFTED]), bool(flags[GOES_ON]))
            if made.pin_first[row]:
                assert not remask[0]
        outside = torch.ones_like(tokens).scatter(1, made.at, 0).bool()
        assert torch.equal(after[outside], tokens[outside])
