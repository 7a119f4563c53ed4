"""Recipes: what they mean, and what is said about wrong ones. No model is loaded here."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unmask import policies
from unmask.errors import UnmaskError
from unmask.evals.cell import Cell, ModelInfo
from unmask.evals.recipe import Recipe, expand, parse, read

GOOD: dict[str, Any] = {"model": "toy", "policy": "mean_field", "tasks": ["sudoku"]}
LLADA = ModelInfo(family="llada", preset="GSAI-ML/LLaDA-8B-Instruct", dtype="bfloat16", device="cuda")
DREAM = ModelInfo(family="dream", preset="Dream-org/Dream-v0-Instruct-7B", dtype="bfloat16", device="cuda")
RECIPES = Path(__file__).parents[2] / "recipes"


def cells(recipe: Recipe, info: ModelInfo = LLADA) -> list[Cell]:
    return expand(recipe, recipe.models[0], info)


def cell_of(info: ModelInfo = LLADA, **changes: Any) -> Cell:
    (cell,) = cells(parse(GOOD | changes), info)
    return cell


def test_every_combination_is_a_cell_and_none_comes_twice() -> None:
    recipe = parse(
        {
            "models": ["toy", "tiny"],
            "policies": ["threshold", {"name": "fixed", "block_size": 8}],
            "settings": [{"block_size": 8}, {"block_size": 16}],
            "tasks": ["sudoku", "countdown-3"],
        }
    )
    found = [(cell.task, cell.policy["name"], cell.settings["block_size"]) for cell in cells(recipe)]
    per_task = [("threshold", 8), ("threshold", 16), ("fixed", 8)]
    assert found == [(task, *rest) for task in ("sudoku", "countdown-3") for rest in per_task]
    assert [model.path for model in recipe.models] == ["toy", "tiny"]


def test_a_policy_by_name_is_the_preset_of_family_and_task() -> None:
    for info, task, expected in ((LLADA, "humaneval", 0.9), (LLADA, "gsm8k", 0.6), (DREAM, "mbpp", 0.9)):
        cell = cell_of(info, policy="klass", tasks=[task])
        assert cell.policy["confidence"] == expected
        assert cell.decoding()[0] == policies.preset("klass", info.preset, task)
    assert cell_of(DREAM, policy="klass", tasks=["gsm8k"]).settings["top_p"] == 0.95


def test_a_mapping_changes_fields_of_the_preset_and_keeps_the_others() -> None:
    cell = cell_of(DREAM, policy={"name": "klass", "confidence": 0.5}, tasks=["gsm8k"])
    assert (cell.policy["confidence"], cell.policy["kl"], cell.policy["convention"]) == (0.5, 0.001, "dream")


@pytest.mark.parametrize(
    ("task", "policy", "settings", "expected"),
    [
        ("sudoku", "mean_field", {}, (82, 82)),  # the task's own, not the block that mean-field has on benchmarks
        ("word_problems", "klass", {"max_tokens": 64}, (64, 32)),
        ("gsm8k", "mean_field", {}, (256, 20)),
        ("gsm8k", "klass", {}, (256, 64)),
        ("gsm8k", "threshold", {}, (256, 32)),
        ("gsm8k", "klass", {"block_size": 16}, (256, 16)),
        ("gsm8k", {"name": "klass", "block_size": 8}, {"block_size": 16}, (256, 8)),
    ],
)
def test_lengths_come_from_task_then_preset_then_recipe_then_policy(
    task: str, policy: Any, settings: dict[str, int], expected: tuple[int, int]
) -> None:
    resolved = cell_of(tasks=[task], policy=policy, settings=settings).settings
    assert (resolved["max_tokens"], resolved["block_size"]) == expected


def test_lengths_of_the_checkpoint_come_after_those_of_a_task_and_before_the_presets() -> None:
    """As `generate` chooses them."""
    own = replace(LLADA, recommended={"max_tokens": 128, "block_size": 16})
    found = {}
    for task in ("sudoku", "gsm8k"):
        for settings in ({}, {"block_size": 8}, {"block_size": None}):
            resolved = cell_of(own, tasks=[task], policy="mean_field", settings=settings).settings
            found[task, settings.get("block_size")] = (resolved["max_tokens"], resolved["block_size"])
    assert found == {
        ("sudoku", None): (82, 82),
        ("sudoku", 8): (82, 8),
        ("gsm8k", None): (128, 16),
        ("gsm8k", 8): (128, 8),
    }
    silent = replace(LLADA, recommended={"max_tokens": 128, "block_size": None})
    assert cell_of(silent, tasks=["gsm8k"], policy="klass").settings["block_size"] == 64


def test_a_preset_that_samples_does_so_on_every_task() -> None:
    for task in ("sudoku", "gsm8k"):
        assert cell_of(DREAM, policy="klass", tasks=[task]).settings["temperature"] == 0.2


def test_batches_are_large_on_tiny_tasks_and_one_where_speed_is_compared() -> None:
    on_cpu = ModelInfo(family="llada", preset="llada", dtype="float32", device="cpu")
    assert [cell_of(info).batch_size for info in (LLADA, on_cpu)] == [512, 32]
    assert cell_of(tasks=["gsm8k"]).batch_size == 1
    assert cell_of(tasks=["gsm8k"], batch_size=4).batch_size == 4


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"limit": 10}, True),
        ({"batch_size": 2}, False),
        ({"shots": 0}, False),
        ({"settings": {"max_tokens": 128}}, False),
        ({"settings": {"cache": "dual"}}, False),
        ({"settings": {"cfg_scale": 2.0}}, False),
        ({"settings": {"top_k": 5}}, False),
        ({"settings": {"stop": ["x"]}}, False),
        ({"settings": {"reference_dtype": True}}, False),
        ({"settings": {"seed": 3}}, True),
        ({"model": "GSAI-ML/LLaDA-8B-Base"}, False),
        ({"tasks": ["math500"]}, False),
        ({"quantize": "int8"}, False),
    ],
)
def test_the_papers_values_stand_only_beside_its_own_protocol(changes: dict[str, Any], expected: bool) -> None:
    wanted = {"model": "GSAI-ML/LLaDA-8B-Instruct", "policy": "threshold", "tasks": ["gsm8k"]}
    assert cell_of(**wanted | changes).paper is expected


def test_revisions_of_a_model_are_different_models() -> None:
    recipe = parse(GOOD | {"model": [{"path": "a", "revision": "old"}, "a"]})
    assert [expand(recipe, model, LLADA)[0].model for model in recipe.models] == ["a@old", "a"]


def test_quantised_weights_are_a_model_of_their_own() -> None:
    models = ["a", {"path": "a", "quantize": "int8"}, {"path": "a", "revision": "old", "quantize": "fp8"}]
    recipe = parse(GOOD | {"model": models})
    found = [expand(recipe, model, LLADA)[0] for model in recipe.models]
    assert [cell.model for cell in found] == ["a", "a+int8", "a@old+fp8"]
    assert len({cell.key for cell in found}) == 3
    assert [cell.key.rpartition("-")[0] for cell in found] == [
        *("a-sudoku-mean_field", "a-int8-sudoku-mean_field", "a-old-fp8-sudoku-mean_field")
    ]


def test_a_format_is_given_for_all_models_for_one_or_by_a_flag() -> None:
    values = GOOD | {"model": ["a", {"path": "b", "quantize": "int8"}], "quantize": "fp8"}
    assert [model.quantize for model in parse(values).models] == ["fp8", "int8"]
    assert [model.quantize for model in parse(values, {"quantize": "int8"}).models] == ["int8", "int8"]
    assert [model.quantize for model in parse(values | {"quantize": None}).models] == [None, "int8"]
    with pytest.raises(UnmaskError, match=r"models has 'a\+int8' twice"):
        parse(GOOD | {"model": ["a", {"path": "a", "quantize": "int8"}]}, {"quantize": "int8"})


def test_flags_win_over_the_recipe_and_the_recipe_over_defaults() -> None:
    values = GOOD | {"models": ["a", {"path": "b", "dtype": "float16"}], "limit": 5, "dtype": "bfloat16"}
    del values["model"]
    assert [model.dtype for model in parse(values).models] == ["bfloat16", "float16"]
    flags = {"limit": 3, "tasks": ["countdown"], "dtype": "float32", "batch_size": None}
    recipe = parse(values, flags)
    assert (recipe.limit, recipe.tasks, recipe.batch_size) == (3, ("countdown",), None)
    assert [model.dtype for model in recipe.models] == ["float32", "float32"]
    assert [model.path for model in parse(values, {"model": ["c"]}).models] == ["c"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"task": ["sudoku", "sudoku"]}, "tasks has 'sudoku' twice"),
        ({"model": ["a", "a"]}, "models has 'a' twice"),
        ({"model": ["a"], "dtype": "flot"}, "unknown dtype 'flot'"),
        ({"quantize": "int9"}, "unknown quantisation 'int9'"),
        ({"shots": 2}, "shots is given, but there are none for sudoku"),
    ],
)
def test_the_file_is_not_blamed_for_a_flag(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(UnmaskError) as caught:
        parse(GOOD, flags, source="some.yaml")
    assert str(caught.value).startswith(said)


def test_the_file_is_blamed_for_its_own_keys_beside_flags() -> None:
    with pytest.raises(UnmaskError, match=r"^some\.yaml: unknown dtype 'flot'"):
        parse(GOOD | {"dtype": "flot"}, {"model": ["a"]}, source="some.yaml")


def test_a_key_that_a_flag_replaces_may_hold_what_is_not_installed() -> None:
    (choice,) = parse(GOOD | {"policy": "of_a_plugin"}, {"policy": ["fixed"]}).policies
    assert choice.name == "fixed"


def test_a_policy_of_a_user_may_have_a_parameter_that_other_projects_have(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from dataclasses import dataclass\nfrom unmask.policies.fixed import Fixed\n\n"
        "@dataclass(frozen=True)\nclass Mine(Fixed):\n    steps: int = 3\n"
    )
    (choice,) = parse(GOOD | {"policy": {"name": f"{path}:Mine", "steps": 4}}).policies
    assert choice.parameters == {"steps": 4}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"polices": ["fixed"]}, "unknown recipe key 'polices'; did you mean 'policies'?"),
        ({"models": ["toy"]}, "model and models are both given"),
        ({"policies": ["fixed"]}, "policy and policies are both given"),
        ({"gen_length": 128}, "here it is max_tokens, in settings"),
        ({"settings": {"block_length": 8}}, "unknown setting 'block_length'; here it is block_size"),
        ({"settings": {"steps": 64}}, "tokens_per_pass or passes of a policy"),
        ({"settings": {"remasking": "low_confidence"}}, "low_confidence is fixed"),
        ({"settings": {"threshold": 0.9}}, "it is a parameter of a policy: policy: {name: "),
        ({"settings": {"blocksize": 8}}, "unknown setting 'blocksize'; did you mean 'block_size'?"),
        ({"settings": {"block_size": 0}}, "block_size must be a whole number of at least 1, got 0"),
        ({"settings": [8]}, "settings must be a mapping or a list of mappings, got 8"),
        ({"max_tokens": 8}, "it is a setting: settings: {max_tokens: ...}"),
        ({"threshold": 0.9}, "it is a parameter of a policy"),
        ({"num_fewshot": 3}, "here it is shots"),
        ({"policy": "mean_feild"}, "unknown policy 'mean_feild'; did you mean 'mean_field'?"),
        ({"policy": {"name": "mean_field", "tau": 0.9}}, "unknown parameter of mean_field 'tau'"),
        ({"policy": {"name": "mean_field", "threshold": 3}}, "threshold must be a number in"),
        ({"policy": {"threshold": 0.9}}, "a policy is a name, or a mapping with a name"),
        ({"policy": {"name": "fixed", "steps": 9}}, "unknown parameter of fixed 'steps'; here it is tokens_per_pass"),
        ({"model": {"path": "toy", "torch_dtype": "float16"}}, "unknown key of a model 'torch_dtype'"),
        ({"model": 7}, "a model is a name or a folder"),
        ({"dtype": "float8"}, "unknown dtype 'float8'"),
        ({"quantize": "int9"}, "unknown quantisation 'int9'; did you mean 'int8'? known: fp8, int8"),
        ({"model": {"path": "a", "quantize": "bf16"}}, "unknown quantisation 'bf16'"),
        (
            {"quantize": 8},
            "a mapping of path, device, dtype, quantize, revision, got {'path': 'toy', 'quantize': 8}",
        ),
        ({"tasks": []}, "tasks is missing"),
        ({"tasks": ["sudokus"]}, "unknown task 'sudokus'; did you mean 'sudoku'?"),
        ({"tasks": ["gsm-8k"]}, "did you mean 'gsm8k'?"),
        (
            {"tasks": ["sodoku"]},
            "did you mean 'sudoku'? known, beside lm-eval's and YAML files of tasks: code_gaps, countdown, ",
        ),
        ({"tasks": ["sodoku"]}, "mbpp, number_gaps, sudoku, word_problems"),
        ({"task": "sudoku"}, "task and tasks are both given"),
        ({"tasks": ["sudoku", "sudoku"]}, "tasks has 'sudoku' twice"),
        ({"limit": 0}, "limit must be a whole number of at least 1, got 0"),
        ({"batch_size": True}, "batch_size must be a whole number of at least 1, got True"),
        ({"shots": 3}, "shots is given, but there are none for sudoku"),
        ({"table": "mian"}, "unknown table 'mian'; did you mean 'main'?"),
        ({"data_dir": "/not/there"}, "data_dir must be a folder, got /not/there"),
        ({"allow_unsandboxed": "yes"}, "allow_unsandboxed must be true or false"),
        ({"shared": 1}, "shared must be true or false, got 1"),
    ],
)
def test_a_wrong_recipe_is_one_line_that_names_file_and_key(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UnmaskError) as caught:
        parse(GOOD | changes, source="some.yaml")
    message = str(caught.value)
    assert message.startswith("some.yaml: ")
    assert said in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "said"),
    [("model: [", "is not YAML"), ("- toy", "must be a mapping"), ("", "must be a mapping"), (None, "cannot read")],
)
def test_a_file_that_is_no_recipe_is_one_line(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "bad.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UnmaskError, match=said) as caught:
        read(path)
    assert "bad.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_any_other_name_may_be_a_task_of_lm_eval() -> None:
    for name in ("arc_challenge", "mathqa", "math_word_problems", "humaneval_64"):
        assert parse(GOOD | {"tasks": [name]}).tasks == (name,)


def test_one_task_may_be_given_as_one() -> None:
    values = {"model": "toy", "policy": "fixed", "task": "sudoku"}
    assert parse(values).tasks == ("sudoku",)
    assert parse(values, {"tasks": ["countdown"]}).tasks == ("countdown",)


@pytest.mark.parametrize("path", sorted(RECIPES.rglob("*.yaml")), ids=lambda path: str(path.relative_to(RECIPES)))
def test_every_shipped_recipe_can_be_run(path: Path) -> None:
    recipe = read(path)
    for checkpoint in recipe.models:
        found = expand(recipe, checkpoint, DREAM if "Dream" in checkpoint.path else LLADA)
        assert all(cell.paper for cell in found) == (path.parent == RECIPES)
        for cell in found:
            cell.decoding()


def test_the_shipped_main_table_has_every_row_of_the_papers() -> None:
    recipe = read(RECIPES / "main.yaml")
    assert {model.path.split("/")[1] for model in recipe.models} == {
        "LLaDA-8B-Instruct",
        "LLaDA-1.5",
        "Dream-v0-Instruct-7B",
    }
    assert {choice.name for choice in recipe.policies} == {
        *("entropy", "klass", "local_leap", "dawn", "mean_field", "threshold")
    }
    assert set(recipe.tasks) == {"gsm8k", "math", "humaneval", "mbpp"}


def test_the_tiny_main_table_has_every_policy() -> None:
    named = {c.name for part in ("main", "later") for c in read(RECIPES / "tiny" / f"{part}.yaml").policies}
    assert named == {name for name in policies.names() if type(policies.get(name)).__module__.startswith("unmask.")}


def test_the_tiny_curves_have_the_slowest_point_of_every_policy_that_counts_tokens() -> None:
    """AUP begins at a policy's slowest point: without it, a policy that is bad at every speed would look good."""
    choices = read(RECIPES / "tiny" / "curves.yaml").policies
    for name in ("fixed", "entropy", "margin", "random"):
        assert {1, 8} <= {c.parameters["tokens_per_pass"] for c in choices if c.name == name}


@pytest.mark.parametrize("target", ["paper", "paper-full"])
def test_make_runs_every_tiny_recipe_and_only_speed_has_the_device_alone(target: str) -> None:
    command = ["make", "--dry-run", "--no-print-directory", target]
    made = subprocess.run(
        command, cwd=RECIPES.parent, capture_output=True, text=True, check=True, env=_plain_environment()
    )
    lines = [line for line in made.stdout.splitlines() if "unmask eval recipes/tiny/" in line]
    recipes = [line.split("recipes/tiny/")[1].split(".yaml")[0] for line in lines]
    # These belong to the pages about tiny, caches, quantised weights and the rule joint, not to the paper.
    others = {"few-passes", "refresh", "quantize", "joint", "gaps", "sliding", "sliding16"}
    assert {*recipes, *others} == {path.stem for path in (RECIPES / "tiny").glob("*.yaml")}
    assert [recipe for recipe, line in zip(recipes, lines, strict=True) if "--shared" not in line] == ["speed"]
    assert recipes[-1] == "speed"
    assert set(recipes[:5]) == {"main"}  # whose rows the others reuse


def _plain_environment() -> dict[str, str]:
    """Without what a make that runs the tests passes on to one that it starts."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
