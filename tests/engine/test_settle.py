"""What the loop does around a decision: by hand, and its kernels in Triton's interpreter against plain torch."""

from contextlib import ExitStack
from unittest.mock import patch

import pytest
import torch
from decision_cases import FLAGS, MASK, case, check_case, check_facts, some_flags, window
from doubles import Scripted

from unmask import policies
from unmask.engine.canvas import Canvas
from unmask.engine.decode import decode
from unmask.engine.facts import facts_of
from unmask.engine.settle import outcome_of, settle
from unmask.settings import Settings

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SHAPES = [(1, 9, 1), (2, 40, 5), (3, 40, 32), (1, 70, 70), (4, 1030, 33)]


@pytest.mark.parametrize(("b", "n", "k"), SHAPES)
def test_the_kernel_finds_the_facts_of_every_window(interpreted, b, n, k):
    generator = torch.Generator().manual_seed(n)
    for _ in range(3):
        interpreted(check_facts, *window(generator, b, n, k))


@pytest.mark.parametrize(
    "given", [(), *((flag,) for flag in FLAGS), FLAGS], ids=lambda given: "+".join(given) or "none"
)
def test_the_kernel_settles_as_plain_torch_does(interpreted, given):
    generator = torch.Generator().manual_seed(len(given))
    for _ in range(4):
        interpreted(check_case, *case(generator, 3, 20, 6, given=given))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("b", "n", "k"), SHAPES)
def test_the_kernel_settles_every_shape_and_dtype(interpreted, b, n, k, dtype):
    generator = torch.Generator().manual_seed(k)
    for _ in range(3):
        given = some_flags(generator)
        interpreted(check_case, *case(generator, b, n, k, given=given, dtype=dtype, score_dtype=dtype))


def test_the_kernel_settles_a_window_wider_than_it_looks_at_together(interpreted):
    generator = torch.Generator().manual_seed(0)
    for given in ((), FLAGS):
        interpreted(check_case, *case(generator, 2, 2500, 2300, given=given))
    interpreted(check_facts, *window(generator, 2, 2500, 2300))


def decoded(policy, settings, *, by_kernels=False):
    """Every event of a batch whose blocks differ in width, from logits in half precision."""
    rows = 2.0 * torch.randn(24, 8, generator=torch.Generator().manual_seed(1))
    canvases = [Canvas.continuing([0] * size, 9, mask_id=MASK, block_size=5) for size in (3, 9)]
    with ExitStack() as patches:
        for module in ("rules.kernels", "engine.facts", "engine.settle") if by_kernels else ():
            patches.enter_context(patch(f"unmask.{module}.kernels_run", lambda device: True))
        return list(decode(Scripted(rows.bfloat16()), canvases, policies.get(policy), settings))


@pytest.mark.parametrize("policy", [name for name in policies.names() if not policies.needs_of(policies.get(name))])
def test_a_generation_by_kernels_is_the_one_without(interpreted, policy):
    settings = Settings(confidence_eos_eot_inf=policy == "fixed")
    assert interpreted(decoded, policy, settings, by_kernels=True) == decoded(policy, settings)


def test_facts_about_a_narrow_block():
    tokens = torch.tensor([[1, 2, MASK, 3, MASK]])
    holes = torch.tensor([[False, True, True, True, True]])
    at, inside = torch.tensor([[1, 2, 2]]), torch.tensor([[True, True, False]])
    facts = facts_of(tokens, holes, at, inside, mask_id=MASK)
    assert facts.masked.tolist() == [[False, True, False]]
    assert facts.decoded.tolist() == [[True, False, False]]
    assert facts.standing.tolist() == [[2, MASK, -1]]
    assert (facts.remaining.tolist(), facts.total.tolist()) == ([2], [4])


def test_what_is_told_is_what_was_done_to_the_canvas():
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        made, tokens = case(generator, 4, 30, 8, given=("remask", "drifted"))
        after, told = settle(made, tokens)
        outcome = outcome_of(made)
        for row, values in enumerate(told.tolist()):
            standing, commit, remask, flags = values[:8], values[8:16], values[16:24], values[24:]
            width = int((made.seen.tokens[row] >= 0).sum())
            first = int(made.at[row, 0])
            assert after[row, first : first + width].tolist() == standing[:width]
            assert commit == outcome.commit[row].tolist()
            assert remask == outcome.remask[row].tolist()
            assert flags[0] == 0
            assert flags[1] == made.drifted[row]
            assert flags[2] == any(not x.isfinite() for x in made.seen.logits[row].amax(-1)[made.seen.view.masked[row]])
            assert flags[3] == (MASK in standing and not made.drifted[row])
        outside = torch.ones_like(tokens).scatter(1, made.at, 0).bool()
        assert torch.equal(after[outside], tokens[outside])
