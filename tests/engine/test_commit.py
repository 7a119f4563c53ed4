"""What the loop does around a decision."""

import math

import torch
from doubles import Scripted

from unmask.engine.commit import commit
from unmask.engine.observe import observe
from unmask.engine.plan import plan
from unmask.engine.rows import Group
from unmask.engine.window import Pass, Window
from unmask.models.base import Prediction
from unmask.types import Decision

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
    """What a commit depends on, hard inputs among it, and the canvases; `given`: the flags that it has."""
    draw = _drawing(generator)
    tokens, holes, at, inside = window(generator, b, n, k)
    # Rows lie apart, as in a part of a larger tensor.
    logits = draw(torch.randn, b, k, V + 3)[..., :V]
    spoilt = draw(torch.rand, b, k) < 0.3 * draw(torch.rand, b, 1).round()
    logits[spoilt] = HARD[0]
    logits[spoilt & (draw(torch.rand, b, k) < 0.5)] = -math.inf
    some = lambda share: draw(torch.rand, b, k) < share * draw(torch.rand, b, 1).round()  # noqa: E731
    decision = Decision(commit=some(0.4), score=scores(generator, b, k), remask=some(0.5))
    flags = {name: draw(torch.rand, b) < 0.5 for name in given}
    return decision, pass_of(logits, at, inside, **flags), tokens, holes


def pass_of(logits, at, inside, **flags):
    """A pass over blocks in these columns."""
    first, width = at[:, 0].tolist(), inside.sum(-1).tolist()
    blocks, number = tuple((f, f + w) for f, w in zip(first, width, strict=True)), torch.zeros_like(at[:, 0])
    of_rows = {"step": number, "length": number, "total": number}
    window = Window(blocks=blocks, at=at, inside=inside, first=None, **of_rows)
    return Pass(window=window, prediction=Prediction(logits=logits), refreshed=(False,) * len(at), **flags)


PLAN = plan(Scripted(torch.zeros(4, V)), "fixed", None)


def _drawing(generator):
    return lambda function, *given: function(*given, generator=generator, device=generator.device)


def test_the_view_of_a_narrow_block():
    tokens = torch.tensor([[1, 2, MASK, 3, MASK]])
    holes = torch.tensor([[False, True, True, True, True]])
    at, inside = torch.tensor([[1, 2, 2]]), torch.tensor([[True, True, False]])
    view, _ = observe(Group(plan=PLAN, tokens=tokens, holes=holes), pass_of(torch.zeros(1, 3, V), at, inside))
    assert view.masked.tolist() == [[False, True, False]]
    assert view.decoded.tolist() == [[True, False, False]]
    assert view.tokens.tolist() == [[2, MASK, -1]]
    assert view.remaining.tolist() == [2]


def test_the_result_is_what_was_done_to_the_canvas():
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        decision, done, tokens, holes = case(generator, 4, 30, 8, given=("drifted", "pin_first"))
        group = Group(plan=PLAN, tokens=tokens, holes=holes)
        view, logits = observe(group, done)
        decided = commit(group, done, view, logits, decision)
        after = decided.tokens
        for row, result in enumerate(decided.read(decided.table.flatten().tolist())):
            first, end = done.window.blocks[row]
            assert not result.waiting
            assert result.drifted == done.drifted[row]
            largest = logits[row].amax(-1)[view.masked[row]]
            assert result.broken == any(not x.isfinite() for x in largest)
            standing = after[row, first:end].tolist()
            assert result.goes_on == (MASK in standing and not done.drifted[row])
            masked, decoded = view.masked[row].tolist(), view.decoded[row].tolist()
            for column, (token, before) in enumerate(zip(standing, tokens[row, first:end].tolist(), strict=True)):
                committed = result.committed.get(first + column)
                assert token == (
                    MASK if first + column in result.remasked else before if committed is None else committed
                )
                assert committed is None or masked[column]
                assert first + column not in result.remasked or decoded[column]
                assert committed is not None or not (masked[column] and decision.commit[row, column])
            assert bool(result.committed) == any(masked)
            assert not (done.pin_first[row] and first in result.remasked)
        outside = torch.ones_like(tokens).scatter(1, done.window.at, 0).bool()
        assert torch.equal(after[outside], tokens[outside])
