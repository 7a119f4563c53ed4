"""Makes the cells of one model out of a recipe and a loaded model's description. A cell has no default left."""

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

# The protocol of the paper's benchmarks. The tables compare policies, blocks and sampling, so these are free.
PAPER_MODELS = ("llada-8b-instruct", "llada-1.5", "dream-v0-instruct-7b")
PAPER_TASKS = ("gsm8k", "math", "humaneval", "mbpp")
PAPER_SETTINGS = Settings(max_tokens=256, cache="none").to_dict()
PAPER_FREE = ("block_size", "temperature", "top_p", "seed")
# Settings that are younger than stored runs: at these values they are left out, so that the cells stay the same.
LATER = {"sliding": 1.0, "verify": 0}


def expand(recipe: Recipe, checkpoint: Checkpoint, model: ModelInfo) -> list[Cell]:
    """The cells of one model, task by task, each once."""
    choices = product(recipe.tasks, recipe.policies, recipe.settings)
    cells = [_cell(recipe, checkpoint, model, *choice) for choice in choices]
    return list({cell.key: cell for cell in cells}.values())


def _cell(
    recipe: Recipe, checkpoint: Checkpoint, model: ModelInfo, task: str, choice: PolicyChoice, settings: dict[str, Any]
) -> Cell:
    column = task if task in PRESET_TASKS else None
    policy = policies.resolve(policies.named(choice.name), model.preset, task=column, parameters=choice.parameters)
    about = _of_task(recipe, task, model)
    given, known = settings | choice.settings, model.recommended | about.pop("settings", {})
    resolved = policies.resolve_settings(policy, model.preset, given, task=column, recommended=known).to_dict()
    resolved = {name: value for name, value in resolved.items() if name not in LATER or LATER[name] != value}
    return Cell(
        model=checkpoint.name,
        family=model.family,
        policy=policies.describe(policy),
        settings=resolved,
        task=task,
        seed=recipe.seed,
        dtype=model.dtype,
        device=model.device,
        paper=_follows_paper(checkpoint, model, task, resolved, about),
        **about,
    )


def _of_task(recipe: Recipe, task: str, model: ModelInfo) -> dict[str, Any]:
    """The fields that depend on the task: what the recipe gives, else the task's own."""
    given: dict[str, Any] = {"items": recipe.limit, "batch_size": recipe.batch_size}
    if tiny_suite.knows(task):
        known = tiny_suite.describe_tiny(task, model)
    else:
        known = describe_benchmark(task, model, None if recipe.data_dir is None else Path(recipe.data_dir))
        given["items"] = min(recipe.limit or known["items"], known["items"])
        given |= {"batch_size": recipe.batch_size or 1, "shots": recipe.shots}  # one by one, since speed is compared
    return known | {key: value for key, value in given.items() if value is not None}


def _follows_paper(
    checkpoint: Checkpoint, model: ModelInfo, task: str, settings: dict[str, Any], about: dict[str, Any]
) -> bool:
    """Whether model, prompts and lengths are the paper's, and nothing else is changed."""
    name = checkpoint.path.rstrip("/").rsplit("/", 1)[-1].lower()
    return (
        name in PAPER_MODELS
        and task in PAPER_TASKS
        and checkpoint.quantize is None
        and all(settings.get(key, value) == value for key, value in PAPER_SETTINGS.items() if key not in PAPER_FREE)
        and (model.dtype, about["batch_size"], about["shots"]) == ("bfloat16", 1, BENCHMARKS[task].shots)
    )
