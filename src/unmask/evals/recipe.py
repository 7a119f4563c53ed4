"""What to measure, read from a YAML file: models x policies x settings x tasks.

Keys, names and values are checked here, before a model is loaded; every error is one line that names the file and the
key. `expand` makes the cells of a loaded model, and fills in what the recipe leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from unmask import policies
from unmask.errors import UnknownName, UnmaskError, WrongOption, check_known
from unmask.evals import tiny_suite
from unmask.evals.cell import TABLES, Cell, ModelInfo
from unmask.evals.harness import BENCHMARKS, describe_benchmark, unknown_task
from unmask.models.checkpoint.loading import choose_dtype
from unmask.models.quantized import FORMATS
from unmask.options import check_bounds, parameter
from unmask.policies.presets import TASKS as PRESET_TASKS
from unmask.settings import Settings
from unmask.yaml_file import read_mapping

PLURAL = {"model": "models", "policy": "policies", "task": "tasks"}
FOR_ALL = ("device", "dtype", "quantize")  # keys of a model that a recipe may also give for all of its models
SETTINGS = Settings.__dataclass_fields__

# Keys of other projects -> our key, and where it stands.
_FOREIGN = {
    "gen_length": "max_tokens, in settings",
    "max_new_tokens": "max_tokens, in settings",
    "max_gen_toks": "max_tokens, in settings",
    "block_length": "block_size, in settings",
    "steps": "tokens_per_pass or passes of a policy, as in policy: {name: fixed, tokens_per_pass: 2}",
    "diffusion_steps": "tokens_per_pass or passes of a policy, as in policy: {name: entropy, tokens_per_pass: 2}",
    "remasking": "a policy: low_confidence is fixed, random is random",
    "alg": "a policy: entropy, margin (topk_margin), fixed (maskgit_plus) or random (origin)",
    "num_fewshot": "shots",
    "model_path": "model",
    "pretrained": "model",
    "use_cache": "cache, in settings",
}

# The protocol of the paper's benchmarks. The tables compare policies, blocks and sampling, so these are free.
PAPER_MODELS = ("llada-8b-instruct", "llada-1.5", "dream-v0-instruct-7b")
PAPER_TASKS = ("gsm8k", "math", "humaneval", "mbpp")
PAPER_SETTINGS = Settings(max_tokens=256, cache="none").to_dict()
PAPER_FREE = ("block_size", "temperature", "top_p", "seed")
# Settings that are younger than stored runs: at these values they are left out, so that the cells stay the same.
LATER = {"sliding": 1.0, "verify": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model of a recipe, and how to load it."""

    path: str  # as `unmask.load` takes it
    device: str | None = None
    dtype: str | None = None
    quantize: str | None = None
    revision: str | None = None

    @property
    def name(self) -> str:
        """What cells call it: another revision is another model, and so are quantised weights."""
        revision = "" if self.revision is None else f"@{self.revision}"
        quantize = "" if self.quantize is None else f"+{self.quantize}"
        return f"{self.path}{revision}{quantize}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """A policy of a recipe: what differs from the preset that its name stands for."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)  # for this policy only


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A checked recipe."""

    name: str
    models: tuple[Checkpoint, ...]
    policies: tuple[PolicyChoice, ...]
    settings: tuple[dict[str, Any], ...]
    tasks: tuple[str, ...]
    table: str = parameter("main", choices=TABLES)
    title: str = ""
    data_dir: str | None = None
    limit: int | None = parameter(None, least=1)
    batch_size: int | None = parameter(None, least=1)
    shots: int | None = parameter(None, least=0)
    seed: int = parameter(0, least=0)  # of the items, where they are drawn
    allow_unsandboxed: bool = False
    shared: bool = False  # other work uses the device meanwhile, so that times are worth nothing


_KEYS = {item.name for item in fields(Recipe) if item.name != "name"} | {*PLURAL, *FOR_ALL}


def read(path: Path, flags: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe in that file; a flag that is not None wins over the key of its name, singular or plural."""
    values = read_mapping(path, "recipe", "keys such as model, policy and tasks")
    return parse(values, flags, source=str(path), name=path.stem)


def parse(
    values: Mapping[str, Any], flags: Mapping[str, Any] | None = None, *, source: str = "recipe", name: str = "recipe"
) -> Recipe:
    """The recipe in plain data; flags count as in `read`. Errors begin with the `source`, unless it is empty."""
    typed = _in_plural(flags or {})
    with _at(source):
        _check_keys("recipe key", values, _KEYS)
        given = {"settings": {}, **_in_plural(values), **typed}
    for_all, forced = ({key: found[key] for key in FOR_ALL if key in found} for found in (given, typed))
    checkpoint = partial(_checkpoint, for_all=for_all, forced=forced)
    made: dict[str, Any] = {key: value for key, value in given.items() if key not in FOR_ALL}
    for key, make in {"models": checkpoint, "policies": _policy, "tasks": _task, "settings": _settings}.items():
        with _at("" if key in typed else source):
            made[key] = _several(key, given.get(key, []), make)
    with _at(source, typed):
        _check_plain(SimpleNamespace(**{item.name: item.default for item in fields(Recipe)} | made))
    return Recipe(name=name, **made)


def _in_plural(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are not None, under plural keys: `models` for `model`, and so on."""
    for one, many in PLURAL.items():
        if one in values and many in values:
            raise UnmaskError(f"{one} and {many} are both given; keep one of them")
    return {PLURAL.get(key, key): value for key, value in values.items() if value is not None}


@contextmanager
def _at(place: str, typed: Collection[str] = ()) -> Generator[None]:
    """Errors from inside begin with the place in the recipe, unless it is empty, or a flag was typed for the option."""
    try:
        yield
    except UnmaskError as error:
        if not place or getattr(error, "name", None) in typed:
            raise
        raise UnmaskError(f"{place}: {error}") from error


def _check_keys(kind: str, given: Iterable[Any], known: Collection[str]) -> None:
    """Refuse an unknown key: say what it is called here, where it belongs, or the nearest known one."""
    for key in (key for key in given if key not in known):
        if key in _FOREIGN:
            raise UnmaskError(f"unknown {kind} {key!r}; here it is {_FOREIGN[key]}")
        if kind == "recipe key" and key in SETTINGS:
            raise UnmaskError(f"unknown {kind} {key!r}; it is a setting: settings: {{{key}: ...}}")
        if owner := policies.owner_of(str(key)):
            way = f"policy: {{name: {owner}, {key}: ...}}"
            raise UnmaskError(f"unknown {kind} {key!r}; it is a parameter of a policy: {way}")
    check_known(kind, given, known)


def _several(key: str, value: Any, make: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The result of `make` for each value of a key. There must be at least one value, and none twice."""
    made = [make(item) for item in (value if isinstance(value, list | tuple) else [value])]
    if not made:
        raise UnmaskError(f"{key} is missing")
    if doubled := [value for number, value in enumerate(made) if value in made[:number]]:
        raise UnmaskError(f"{key} has {getattr(doubled[0], 'name', doubled[0])!r} twice")
    return tuple(made)


def _checkpoint(item: Any, *, for_all: Mapping[str, Any], forced: Mapping[str, Any]) -> Checkpoint:
    given = item if isinstance(item, dict) else {"path": item}
    known = [each.name for each in fields(Checkpoint)]
    _check_keys("key of a model", given, known)
    given = {**for_all, **given, **forced}
    if not all(isinstance(value, str) and value for value in given.values()) or "path" not in given:
        keys = f"{', '.join(known[:-1])} and {known[-1]}"
        raise UnmaskError(f"a model is a name or a folder, or a mapping with {keys}, got {item!r}")
    choose_dtype(given.get("dtype", "float32"))
    if "quantize" in given and given["quantize"] not in FORMATS:
        raise UnknownName("quantisation", given["quantize"], FORMATS)
    return Checkpoint(**given)


def _policy(item: Any) -> PolicyChoice:
    given = dict(item) if isinstance(item, dict) else {"name": item}
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise UnmaskError(f"a policy is a name, or a mapping with a name and parameters, got {item!r}")
    settings = {key: given.pop(key) for key in list(given) if key in SETTINGS}
    _check_keys(f"parameter of {name}", (key for key in given if key in _FOREIGN), ())
    policies.get(known := policies.named(name))
    with _at("policy"):
        policies.get(known, **given)
    return PolicyChoice(name=name, parameters=given, settings=_settings(settings))


def _settings(item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise UnmaskError(f"settings must be a mapping or a list of mappings, got {item!r}")
    _check_keys("setting", item, SETTINGS)
    with _at("settings"):
        Settings.from_dict(item)
    return dict(item)


def _task(item: Any) -> str:
    """The name of a task. Any name may be one of lm-eval's; one that almost equals a name of ours is refused."""
    if not isinstance(item, str) or not item:
        raise UnmaskError(f"tasks must hold names, got {item!r}")
    ours = [*tiny_suite.names(), *BENCHMARKS]
    near = get_close_matches(item, ours, n=1, cutoff=0.75)
    if item not in ours and near and abs(len(near[0]) - len(item)) <= 1:
        raise unknown_task(item)
    return item


def _check_plain(recipe: Any) -> None:
    """Check the keys that hold one number, text or truth value."""
    check_bounds(recipe, Recipe)
    if not isinstance(recipe.title, str):
        raise WrongOption("title", f"must be text, got {recipe.title!r}")
    if recipe.data_dir is not None and not (isinstance(recipe.data_dir, str) and Path(recipe.data_dir).is_dir()):
        raise WrongOption("data_dir", f"must be a folder, got {recipe.data_dir}")
    if recipe.shots and all(tiny_suite.knows(task) for task in recipe.tasks):
        raise WrongOption("shots", f"is given, but there are none for {', '.join(recipe.tasks)}")


def expand(recipe: Recipe, checkpoint: Checkpoint, model: ModelInfo) -> list[Cell]:
    """The cells of one model, task by task, each once. A cell has no default left."""
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
