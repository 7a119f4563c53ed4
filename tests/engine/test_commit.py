"""What the loop does around a decision: by hand, and its kernels in Triton's interpreter against plain torch."""

import os

import pytest
import torch
from decision_cases import FLAGS, MASK, case, check_case, check_state, some_flags, window
from doubles import Scripted, fill

from unmask import policies
from unmask.engine.canvas import Canvas
from unmask.engine.commit import BROKEN, DRIFTED, GOES_ON, WAITING, PassResult, apply, outcome_of
from unmask.engine.observe import window_state
from unmask.settings import Settings

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SHAPES = [(1, 9, 1), (2, 40, 5), (3, 40, 32), (1, 70, 70), (4, 1030, 33)]


@pytest.mark.parametrize(("b", "n", "k"), SHAPES)
def test_the_kernel_finds_the_state_of_every_window(interpreted, b, n, k):
    generator = torch.Generator().manual_seed(n)
    for _ in range(3):
        interpreted(check_state, *window(generator, b, n, k))


@pytest.mark.parametrize(
    "given", [(), *((flag,) for flag in FLAGS), FLAGS], ids=lambda given: "+".join(given) or "none"
)
def test_the_kernel_commits_as_plain_torch_does(interpreted, given):
    generator = torch.Generator().manual_seed(len(given))
    for _ in range(4):
        interpreted(check_case, *case(generator, 3, 20, 6, given=given))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("b", "n", "k"), SHAPES)
def test_the_kernel_takes_every_shape_and_dtype(interpreted, b, n, k, dtype):
    generator = torch.Generator().manual_seed(k)
    for _ in range(3):
        given = some_flags(generator)
        interpreted(check_case, *case(generator, b, n, k, given=given, dtype=dtype, score_dtype=dtype))


def test_the_kernel_takes_a_window_wider_than_it_looks_at_together(interpreted):
    generator = torch.Generator().manual_seed(0)
    for given in ((), FLAGS):
        interpreted(check_case, *case(generator, 2, 2500, 2300, given=given))
    interpreted(check_state, *window(generator, 2, 2500, 2300))


def decoded(policy, settings, *, by_kernels=False):
    """Every event of a batch whose blocks differ in width, from logits in half precision."""
    rows = 2.0 * torch.randn(24, 8, generator=torch.Generator().manual_seed(1))
    canvases = [Canvas.continuing([0] * size, 9, mask_id=MASK, block_size=5) for size in (3, 9)]
    os.environ["UNMASK_KERNELS"] = "interpret" if by_kernels else "0"
    try:
        return fill(Scripted(rows.bfloat16()), canvases, policy, settings)
    finally:
        del os.environ["UNMASK_KERNELS"]


@pytest.mark.parametrize("policy", [name for name in policies.names() if not policies.needs_of(policies.get(name))])
def test_a_generation_by_kernels_is_the_one_without(interpreted, policy):
    settings = Settings(confidence_eos_eot_inf=policy == "fixed")
    assert interpreted(decoded, policy, settings, by_kernels=True) == decoded(policy, settings)


def test_the_state_of_a_narrow_block():
    tokens = torch.tensor([[1, 2, MASK, 3, MASK]])
    holes = torch.tensor([[False, True, True, True, True]])
    at, inside = torch.tensor([[1, 2, 2]]), torch.tensor([[True, True, False]])
    state = window_state(tokens, holes, at, inside, mask_id=MASK)
    assert state.masked.tolist() == [[False, True, False]]
    assert state.decoded.tolist() == [[True, False, False]]
    assert state.tokens.tolist() == [[2, MASK, -1]]
    assert (state.remaining.tolist(), state.total.tolist()) == ([2], [4])


def test_the_result_is_what_was_done_to_the_canvas():
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        made, tokens = case(generator, 4, 30, 8, given=("remask", "drifted", "pinned"))
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
            if made.pinned[row]:
                assert not remask[0]
        outside = torch.ones_like(tokens).scatter(1, made.at, 0).bool()
        assert torch.equal(after[outside], tokens[outside])
