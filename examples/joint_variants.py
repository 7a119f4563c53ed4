"""The joint rule with one of its parts changed, for the ablation of docs/joint.md.

python examples/joint_variants.py --limit 1000      (or any other options of `unmask eval tiny/joint`)
"""

from __future__ import annotations

import sys

import torch

from unmask.cli import run
from unmask.policies import Joint
from unmask.policies.joint import ends_of_runs
from unmask.policies.scores import entropy


class OnlyCertain(Joint):
    """No pivot, unless nothing is certain: then the engine commits the position of the least cost."""

    pure = True

    def waits(self, view, before, uncertain):
        return torch.ones_like(uncertain[:, 0])


class NeverWaits(Joint):
    """The pivot never waits."""

    pure = True

    def waits(self, view, before, uncertain):
        return torch.zeros_like(uncertain[:, 0])


class WaitsForCertain(Joint):
    """The pivot waits for the certain tokens at its left, however fast the block was written so far."""

    pure = True

    def waits(self, view, before, uncertain):
        return 2 * (before & ends_of_runs(view)).sum(-1) > uncertain.sum(-1)


class ByEntropy(Joint):
    """The pivot is the position of least entropy, wherever it lies."""

    pure = True

    def cost(self, view, uncertain):
        return entropy(view)


if __name__ == "__main__":
    variants = (OnlyCertain, NeverWaits, WaitsForCertain, ByEntropy)
    rules = ["joint", *(f"{__file__}:{variant.__name__}" for variant in variants)]
    chosen = [word for rule in rules for word in ("--policy", rule)]
    if failed := run(["eval", "tiny/joint", *chosen, *sys.argv[1:]]):
        sys.exit(failed)
