"""From a recipe and what a loaded model tells of itself to the model's cells, in which nothing is left open."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

from unmask import policies
from unmask.evals import tiny_suite
from unmask.evals.cell import Cell, ModelInfo
from unmask.evals.harness import BENCHMARKS, describe_benchmark
from unmask.evals.recipe import Checkpoint, PolicyChoice, Recipe
from unmask.policies.presets import TASKS as PRESET_TASKS
from unmask.settings import Settings

# The protocol of the paper's benchmarks.
PAPER_LENGTH = 256
PAPER_MODELS = ("llada-8b-instruct", "llada-1.5", "dream-v0-instruct-7b")
PAPER_TASKS = ("gsm8k", "math", "humaneval", "mbpp")

# Rows decoded together where a recipe does not say: what keeps the device busy, and one where speed is compared.
TINY_BATCH = {"cuda": 512}
TINY_BATCH_ELSEWHERE, BENCHMARK_BATCH = 32, 1


def expand(recipe: Recipe, checkpoint: Checkpoint, model: ModelInfo) -> list[Cell]:
    """The cells of one model, task by task, each once."""
    choices = product(recipe.tasks, recipe.policies, recipe.settings)
    cells = [_cell(recipe, checkpoint, model, *choice) for choice in choices]
    return list({cell.key: cell for cell in cells}.values())


def _cell(
    recipe: Recipe, checkpoint: Checkpoint, model: ModelInfo, task: str, choice: PolicyChoice, settings: dict[str, Any]
) -> Cell:
    column = task if task in PRESET_TASKS else None
    policy = policies.resolve(choice.name, model.preset, task=column, parameters=choice.parameters)
    about = _of_tiny_task(recipe, task, model) if tiny_suite.knows(task) else _of_benchmark(recipe, task, model)
    given, known = settings | choice.settings, model.recommended | about.pop("documented")
    resolved = policies.resolve_settings(policy, model.preset, given, task=column, recommended=known)
    return Cell(
        model=checkpoint.name,
        family=model.family,
        policy=policies.describe(policy),
        settings=resolved.to_dict(),
        task=task,
        seed=recipe.seed,
        dtype=model.dtype,
        device=model.device,
        paper=_follows_paper(checkpoint, model, task, resolved, about),
        **about,
    )


def _of_tiny_task(recipe: Recipe, task: str, model: ModelInfo) -> dict[str, Any]:
    documented = tiny_suite.find(task)
    return {
        "documented": {"max_tokens": documented.max_tokens, "block_size": documented.block_size},
        "items": recipe.limit or tiny_suite.DEFAULT_ITEMS,
        "batch_size": recipe.batch_size or TINY_BATCH.get(model.device, TINY_BATCH_ELSEWHERE),
    }


def _of_benchmark(recipe: Recipe, task: str, model: ModelInfo) -> dict[str, Any]:
    data = None if recipe.data_dir is None else Path(recipe.data_dir)
    known = describe_benchmark(task, model.family, model.preset, data)
    own = {"items": min(recipe.limit or known["items"], known["items"])}
    own |= {"batch_size": recipe.batch_size or BENCHMARK_BATCH}
    own |= {} if recipe.shots is None else {"shots": recipe.shots}
    return known | own | {"documented": {}}


def _follows_paper(checkpoint: Checkpoint, model: ModelInfo, task: str, settings: Settings, about: dict) -> bool:
    """Whether model, prompts and lengths are the paper's, and nothing else is changed.

    Policy, block and sampling are not looked at: the tables compare those themselves.
    """
    name = checkpoint.path.rstrip("/").rsplit("/", 1)[-1].lower()
    if name not in PAPER_MODELS or task not in PAPER_TASKS or checkpoint.quantize is not None:
        return False
    free = ("block_size", "temperature", "top_p", "seed")
    plain, given = Settings(max_tokens=PAPER_LENGTH, cache="none").to_dict(), settings.to_dict()
    unchanged = all(given[key] == plain[key] for key in plain if key not in free)
    return (
        unchanged
        and about["batch_size"] == 1
        and about["shots"] == BENCHMARKS[task].shots
        and model.dtype == "bfloat16"
    )
