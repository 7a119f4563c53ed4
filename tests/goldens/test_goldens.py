"""Every version of the engine decodes the cases to the same tokens, in the same passes, by the same calls.

`python -m pytest tests/goldens --remake-goldens` writes what the present code gives. That is for a fault that was
mended or a case that was added, never for a change that was meant to leave everything as it was.
"""

from __future__ import annotations

import pytest
from safetensors.torch import load_file, save_file

import unmask
from goldens.cases import cases
from goldens.run import goldens, run, save

CASES = cases()


HEADS = {"llada": "model.transformer.ff_out.weight", "dream": "lm_head.weight"}


@pytest.fixture(scope="session")
def models(make_llada, make_dream):
    """Random weights, with a head that is sure of some positions and torn at others."""
    folders = {"llada": make_llada(seed=1), "dream": make_dream(seed=2)}
    for family, folder in folders.items():
        weights = load_file(folder / "model.safetensors")
        weights[HEADS[family]] *= 4.0
        save_file(weights, folder / "model.safetensors")
    return {family: unmask.load(str(folder), device="cpu") for family, folder in folders.items()}


@pytest.mark.parametrize("name", list(CASES))
def test_a_case_is_decoded_as_ever(name, models, request):
    if request.config.getoption("--remake-goldens"):
        pytest.skip("the goldens are made anew")
    assert run(models[CASES[name]["family"]], CASES[name]) == goldens()[name]


def test_there_is_a_golden_for_every_case(models, request):
    if request.config.getoption("--remake-goldens"):
        save({name: run(models[case["family"]], case) for name, case in CASES.items()})
    assert list(goldens()) == list(CASES)
