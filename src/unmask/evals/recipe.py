"""What to measure, read from a YAML file of the user or of the package: models x policies x settings x tasks.

Keys, names and values are checked here, before a model is loaded; every error is one line that names the file and the
key. `expand` makes the cells of a loaded model, and fills in what the recipe leaves out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Any

from unmask import policies
from unmask.errors import UnknownName, UnmaskError, WrongOption, check_known
from unmask.evals import tiny_suite
from unmask.evals.cell import TABLES, Cell, ModelInfo
from unmask.evals.harness import BENCHMARKS, describe_benchmark, unknown_task
from unmask.models.checkpoint.loading import choose_dtype
from unmask.models.quantized import FORMATS
from unmask.options import check_bounds, parameter, read_mapping
from unmask.policies.base import registry
from unmask.policies.presets import TASKS as PRESET_TASKS
from unmask.settings import Settings

_PACKAGE = Path(__file__).parents[1]
FOLDERS = (_PACKAGE / "recipes", _PACKAGE.parents[1] / "recipes")  # of a wheel, and of a clone
PLURAL = {"model": "models", "policy": "policies", "task": "tasks"}
FOR_ALL = ("device", "dtype", "quantize")  # keys of a model that a recipe may also give for all of its models

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
FREE = ("block_size", "temperature", "top_p", "seed")
PAPER_SETTINGS = {k: v for k, v in Settings(max_tokens=256, cache="none").to_dict().items() if k not in FREE}
# Settings that are younger than stored runs: at these values they are left out, so that the cells stay the same.
LATER = {"sliding": 1.0, "verify": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model of a recipe, and how to load it."""

    # Users write recipes: a wrong value must reach the checks below, not a run-time type checker.
    __no_type_check__ = True
    path: str = ""  # as `unmask.load` takes it
    device: str | None = None
    dtype: str | None = None
    quantize: str | None = None
    revision: str | None = None

    def __post_init__(self) -> None:
        given = {key: value for key, value in asdict(self).items() if value is not None}
        if not all(isinstance(value, str) and value for value in given.values()):
            keys = ", ".join(Checkpoint.__dataclass_fields__)
            raise UnmaskError(f"a model is a name or a folder, or a mapping of {keys}, got {given!r}")
        choose_dtype(self.dtype or "float32")
        if self.quantize is not None and self.quantize not in FORMATS:
            raise UnknownName("quantisation", self.quantize, FORMATS)

    @property
    def name(self) -> str:
        """What cells call it: another revision is another model, and so are quantised weights."""
        revision, quantize = f"@{self.revision}" if self.revision else "", f"+{self.quantize}" if self.quantize else ""
        return self.path + revision + quantize


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """A policy of a recipe: what differs from the preset that its name stands for."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)  # for this policy only


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A checked recipe."""

    __no_type_check__ = True
    name: str
    models: tuple[Checkpoint, ...] = ()
    policies: tuple[PolicyChoice, ...] = ()
    settings: tuple[dict[str, Any], ...] = ({},)
    tasks: tuple[str, ...] = ()
    table: str = parameter("main", choices=TABLES)
    title: str = ""
    data_dir: str | None = None
    limit: int | None = parameter(None, least=1)
    batch_size: int | None = parameter(None, least=1)
    shots: int | None = parameter(None, least=0)
    seed: int = parameter(0, least=0)  # of the items, where they are drawn
    allow_unsandboxed: bool = False
    shared: bool = False  # other work uses the device meanwhile, so that times are worth nothing

    def __post_init__(self) -> None:
        for key in ("models", "policies", "settings", "tasks"):
            values = getattr(self, key)
            if not values:
                raise UnmaskError(f"{key} is missing")
            _check_once(key, values)
        check_bounds(self)
        if not isinstance(self.title, str):
            raise WrongOption("title", f"must be text, got {self.title!r}")
        if self.data_dir is not None and not (isinstance(self.data_dir, str) and Path(self.data_dir).is_dir()):
            raise WrongOption("data_dir", f"must be a folder, got {self.data_dir}")
        if self.shots and all(task in tiny_suite.names() for task in self.tasks):
            raise WrongOption("shots", f"is given, but there are none for {', '.join(self.tasks)}")


_KEYS = {item.name for item in fields(Recipe) if item.name != "name"} | {*PLURAL, *FOR_ALL}


def packaged() -> dict[str, Path]:
    """The recipes of the package by name, such as `tiny/main`."""
    folder = next((folder for folder in FOLDERS if folder.is_dir()), FOLDERS[0])
    found = sorted(folder.rglob("*.yaml"), key=lambda path: (len(path.parts), path))
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in found}


def recipe_file(name: str) -> tuple[Path, str]:
    """The file of a recipe, and what its run is called.

    A name is a path, or that of a recipe in the package, also in the form `recipes/tiny/main.yaml`.
    """
    known, path = packaged(), Path(name)
    bare = path.as_posix().removesuffix(path.suffix).removeprefix("recipes/")
    if not path.is_file() and bare not in known and path.suffix not in (".yaml", ".yml"):
        raise UnknownName("recipe", name, known, listed_as="in the package")
    path = path if path.is_file() else known.get(bare, path)
    own = next((name for name, file in known.items() if file.resolve() == path.resolve()), path.stem)
    return path, own.replace("/", "-")


def read(path: Path, flags: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe in that file; a flag that is not None wins over the key of its name, singular or plural."""
    values = read_mapping(path, "recipe", "keys such as model, policy and tasks")
    return parse(values, flags, source=str(path), name=path.stem)


def parse(
    values: Mapping[str, Any], flags: Mapping[str, Any] | None = None, *, source: str = "recipe", name: str = "recipe"
) -> Recipe:
    """The recipe in plain data; flags count as in `read`.

    Errors begin with the `source`, unless it is empty, or a flag is wrong.
    """
    typed = _made(flags or {})
    forced = {key: typed.pop(key) for key in FOR_ALL if key in typed}
    for model in typed.get("models", [Checkpoint(path="tiny")]):
        _placed(model, {}, forced)  # raises for what was typed
    try:
        made = _made(values, typed)
        for_all = {key: made.pop(key) for key in FOR_ALL if key in made}
        made |= typed
        made["models"] = tuple(_placed(model, for_all, forced) for model in made.get("models", ()))
        return Recipe(name=name, **made)
    except UnmaskError as error:
        if not source or getattr(error, "name", None) in typed:  # an option that the user typed
            raise
        raise UnmaskError(f"{source}: {error}") from error


def _made(values: Mapping[str, Any], replaced: Collection[str] = ()) -> dict[str, Any]:
    """Fields of a recipe and keys for all models, of the values that are not None; those `replaced` stay plain."""
    _check_keys("recipe key", values, _KEYS)
    for one, many in PLURAL.items():
        if one in values and many in values:
            raise UnmaskError(f"{one} and {many} are both given; keep one of them")
    found = {PLURAL.get(key, key): value for key, value in values.items() if value is not None}
    for key, make in {"models": _model, "policies": _policy, "tasks": _task, "settings": _settings}.items():
        if key in found and key not in replaced:
            several = found[key] if isinstance(found[key], list | tuple) else [found[key]]
            found[key] = tuple(make(item) for item in several)
            _check_once(key, found[key])
    return found


def _check_keys(kind: str, given: Collection[Any], known: Collection[str]) -> None:
    """Refuse an unknown key: say what it is called here, where it belongs, or the nearest known one."""
    for key in (key for key in given if key not in known):
        if key in _FOREIGN:
            raise UnmaskError(f"unknown {kind} {key!r}; here it is {_FOREIGN[key]}")
        if kind == "recipe key" and key in Settings.__dataclass_fields__:
            raise UnmaskError(f"unknown {kind} {key!r}; it is a setting: settings: {{{key}: ...}}")
        if owner := policies.owner_of(str(key)):
            way = f"policy: {{name: {owner}, {key}: ...}}"
            raise UnmaskError(f"unknown {kind} {key!r}; it is a parameter of a policy: {way}")
    check_known(kind, given, known)


def _check_once(key: str, values: Sequence[Any]) -> None:
    if doubled := [value for number, value in enumerate(values) if value in values[:number]]:
        raise UnmaskError(f"{key} has {getattr(doubled[0], 'name', doubled[0])!r} twice")


def _model(item: Any) -> Checkpoint:
    given = item if isinstance(item, dict) else {"path": item}
    _check_keys("key of a model", given, Checkpoint.__dataclass_fields__)
    return Checkpoint(**given)


def _placed(model: Checkpoint, for_all: Mapping[str, Any], forced: Mapping[str, Any]) -> Checkpoint:
    """The model with the keys for all models, which its own win over, and those that win over its own."""
    own = {key: value for key, value in asdict(model).items() if value is not None}
    return Checkpoint(**{**for_all, **own, **forced})


def _policy(item: Any) -> PolicyChoice:
    given = dict(item) if isinstance(item, dict) else {"name": item}
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise UnmaskError(f"a policy is a name, or a mapping with a name and parameters, got {item!r}")
    settings = {key: given.pop(key) for key in Settings.__dataclass_fields__ if key in given}
    known = policies.named(name)
    _check_keys(f"parameter of {name}", [key for key in given if key in _FOREIGN], registry.parameters(known))
    policies.get(known, **given)
    return PolicyChoice(name=name, parameters=given, settings=_settings(settings))


def _settings(item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise UnmaskError(f"settings must be a mapping or a list of mappings, got {item!r}")
    _check_keys("setting", item, Settings.__dataclass_fields__)
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


def expand(recipe: Recipe, checkpoint: Checkpoint, model: ModelInfo) -> list[Cell]:
    """The cells of one model, task by task, each once. A cell has no default left."""
    choices = product(recipe.tasks, recipe.policies, recipe.settings)
    cells = [_cell(recipe, checkpoint, model, *choice) for choice in choices]
    return list({cell.key: cell for cell in cells}.values())


def _cell(
    recipe: Recipe, checkpoint: Checkpoint, model: ModelInfo, task: str, choice: PolicyChoice, settings: dict[str, Any]
) -> Cell:
    # The fields that depend on the task: what the recipe gives, else the task's own.
    given: dict[str, Any] = {"items": recipe.limit, "batch_size": recipe.batch_size}
    about: dict[str, Any] = {"batch_size": 1}  # benchmarks one by one: speed is compared
    if task in tiny_suite.names():
        about |= tiny_suite.describe_tiny(task, model)
    else:
        about |= describe_benchmark(task, model, recipe.data_dir)
        given |= {"items": min(recipe.limit or about["items"], about["items"]), "shots": recipe.shots}
    about |= {key: value for key, value in given.items() if value is not None}
    column = task if task in PRESET_TASKS else None
    policy = policies.resolve(policies.named(choice.name), model.preset, task=column, parameters=choice.parameters)
    asked, known = settings | choice.settings, model.recommended | about.pop("settings", {})
    resolved = policies.resolve_settings(policy, model.preset, asked, task=column, recommended=known).to_dict()
    resolved = {name: value for name, value in resolved.items() if name not in LATER or LATER[name] != value}
    cell = Cell(
        model=checkpoint.name,
        family=model.family,
        policy=policies.describe(policy),
        settings=resolved,
        task=task,
        seed=recipe.seed,
        dtype=model.dtype,
        device=model.device,
        **about,
    )
    return replace(cell, paper=_follows_paper(checkpoint, cell))


def _follows_paper(checkpoint: Checkpoint, cell: Cell) -> bool:
    """Whether model, prompts and lengths are the paper's, and nothing else is changed."""
    return (
        checkpoint.path.rstrip("/").rsplit("/", 1)[-1].lower() in PAPER_MODELS
        and cell.task in PAPER_TASKS
        and checkpoint.quantize is None
        and all(cell.settings.get(key, value) == value for key, value in PAPER_SETTINGS.items())
        and (cell.dtype, cell.batch_size, cell.shots) == ("bfloat16", 1, BENCHMARKS[cell.task].shots)
    )
