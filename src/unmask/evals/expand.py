"""From a recipe and what is known of a loaded model to its cells, in which nothing is left to default."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from unmask import policies
from unmask.evals import tiny_suite
from unmask.evals.cell import Cell
from unmask.evals.harness import BENCHMARKS, describe_benchmark
from unmask.evals.recipe import Checkpoint, PolicyChoice, Recipe
from unmask.policies import Policy
from unmask.policies.presets import TASKS as PRESET_TASKS
from unmask.settings import Settings

# The protocol of the paper's benchmarks.
LENGTH, BLOCK = 256, 32
PAPER_MODELS = ("llada-8b-instruct", "llada-1.5", "dream-v0-instruct-7b")
PAPER_TASKS = ("gsm8k", "math", "humaneval", "mbpp")

# Rows decoded together where a recipe does not say: what keeps the device busy, and one where speed is compared.
TINY_BATCH = {"cuda": 512}
TINY_BATCH_ELSEWHERE, BENCHMARK_BATCH = 32, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the cells of a model depend on and only the loaded model tells."""

    family: str  # 'llada' or 'dream'
    preset: str  # the name under which presets know it
    dtype: str
    device: str  # type only


def expand(recipe: Recipe, checkpoint: Checkpoint, facts: Facts) -> list[Cell]:
    """The cells of one model, task by task, each once."""
    choices = product(recipe.tasks, recipe.policies, recipe.settings)
    cells = [_cell(recipe, checkpoint, facts, *choice) for choice in choices]
    return list({cell.key: cell for cell in cells}.values())


def decoding_of(cell: Cell) -> tuple[Policy, Settings]:
    """The policy and the settings of a cell, as objects."""
    return policies.get(**cell.policy), Settings.from_dict(cell.settings)


def _cell(
    recipe: Recipe, checkpoint: Checkpoint, facts: Facts, task: str, choice: PolicyChoice, settings: dict[str, Any]
) -> Cell:
    column = task if task in PRESET_TASKS else None
    policy = policies.preset(choice.name, facts.preset, column)
    policy = policies.get(**policies.describe(policy) | choice.parameters)
    about = _of_tiny_task(recipe, task, facts) if tiny_suite.knows(task) else _of_benchmark(recipe, task, facts)
    defaults = about.pop("settings") or policies.preset_settings(choice.name, facts.preset, column)
    length = {"max_tokens": LENGTH, "block_size": BLOCK}
    resolved = Settings.from_dict(length | defaults | settings | choice.settings)
    return Cell(
        model=checkpoint.name,
        family=facts.family,
        policy=policies.describe(policy),
        settings=resolved.to_dict(),
        task=task,
        seed=recipe.seed,
        dtype=facts.dtype,
        device=facts.device,
        paper=_follows_paper(checkpoint, facts, task, resolved, about),
        **about,
    )


def _of_tiny_task(recipe: Recipe, task: str, facts: Facts) -> dict[str, Any]:
    documented = tiny_suite.find(task)
    return {
        "settings": {"max_tokens": documented.max_tokens, "block_size": documented.block_size},
        "items": recipe.limit or tiny_suite.DEFAULT_ITEMS,
        "batch_size": recipe.batch_size or TINY_BATCH.get(facts.device, TINY_BATCH_ELSEWHERE),
    }


def _of_benchmark(recipe: Recipe, task: str, facts: Facts) -> dict[str, Any]:
    data = None if recipe.data_dir is None else Path(recipe.data_dir)
    known = describe_benchmark(task, facts.family, facts.preset, data)
    return {
        "settings": {},
        "items": min(recipe.limit or known["items"], known["items"]),
        "batch_size": recipe.batch_size or BENCHMARK_BATCH,
        "shots": known["shots"] if recipe.shots is None else recipe.shots,
        "template": known["template"],
        "headline": known["headline"],
    }


def _follows_paper(checkpoint: Checkpoint, facts: Facts, task: str, settings: Settings, about: dict[str, Any]) -> bool:
    """Whether model, prompts and lengths are the paper's, and nothing else is changed.

    Which policy it is, with which block and sampling, the tables look up themselves.
    """
    name = checkpoint.path.rstrip("/").rsplit("/", 1)[-1].lower()
    if name not in PAPER_MODELS or task not in PAPER_TASKS or checkpoint.quantize is not None:
        return False
    plain, given = Settings(max_tokens=LENGTH).to_dict(), settings.to_dict()
    unchanged = all(
        given[key] == plain[key] for key in plain if key not in ("block_size", "temperature", "top_p", "seed")
    )
    protocol = about["batch_size"] == 1 and about["shots"] == BENCHMARKS[task].shots and facts.dtype == "bfloat16"
    return unchanged and protocol
