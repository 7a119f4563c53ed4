"""What to measure, read from a YAML file: models x policies x settings x tasks.

Everything that can be wrong in a recipe is found here, before a model is loaded; every complaint is one line that names
the file and the key. What a recipe leaves open is filled in by `expand.py`, which knows the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import yaml

from unmask import policies
from unmask.errors import UnknownName, UnmaskError
from unmask.evals import tiny_suite
from unmask.evals.cell import TABLES
from unmask.evals.harness import benchmark_names, unknown_task
from unmask.settings import Settings

CHECKPOINT_KEYS = ("path", "device", "dtype", "quantize", "revision")
SHARED_KEYS = ("device", "dtype", "quantize")  # which a recipe may also give for all of its models

# What other projects call our keys, and where it goes here.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model of a recipe, and how to load it."""

    path: str  # as `unmask.load` takes it
    device: str | None = None
    dtype: str | None = None
    revision: str | None = None
    quantize: str | None = None

    @property
    def name(self) -> str:
        """What cells call it: two revisions are two models, and so are quantised weights and those they come from."""
        revision = "" if self.revision is None else f"@{self.revision}"
        quantize = "" if self.quantize is None else f"+{self.quantize}"
        return f"{self.path}{revision}{quantize}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `quantize` only where it is set, as in runs from before there was such a thing."""
        plain = asdict(self)
        return plain if self.quantize is not None else {key: plain[key] for key in plain if key != "quantize"}


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
    table: str = "main"
    title: str = ""
    data_dir: str | None = None
    limit: int | None = None
    batch_size: int | None = None
    shots: int | None = None
    seed: int = 0  # of the items, where they are drawn
    allow_unsandboxed: bool = False
    shared: bool = False  # other work uses the device meanwhile, so that times are worth nothing

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as JSON has it."""
        plain = asdict(self) | {"models": [model.to_dict() for model in self.models]}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()}


_KEYS = {
    *("model", "models", "policy", "policies", "settings", "task", "tasks", *SHARED_KEYS),
    *(item.name for item in fields(Recipe) if item.name != "name"),
}


def read(path: Path, flags: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe in that file; a flag that is not None wins over the key of its name, one or many."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnmaskError(f"cannot read the recipe {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UnmaskError(f"the recipe {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UnmaskError(f"the recipe {path} must be a mapping of keys such as model, policy and tasks")
    return parse(values, flags, source=str(path), name=path.stem)


def parse(
    values: Mapping[str, Any], flags: Mapping[str, Any] | None = None, *, source: str = "recipe", name: str = "recipe"
) -> Recipe:
    """As `read`, from plain data."""
    reader = _Reader(source)
    for key in values:
        if key not in _KEYS:
            reader.refuse_key("recipe key", key, _KEYS)
    typed = {key: value for key, value in (flags or {}).items() if value is not None}
    for one, many, flag in (("model", "models", "model"), ("task", "tasks", "tasks")):
        if flag in typed:
            values = {key: value for key, value in values.items() if key not in (one, many)}
    values = {**values, **typed}
    recipe = Recipe(
        name=name,
        models=tuple(_checkpoint(reader, item, values, typed) for item in reader.one_or_many(values, "model")),
        policies=tuple(_policy(reader, item) for item in reader.one_or_many(values, "policy", "policies")),
        settings=tuple(_settings(reader, item) for item in _listed(values.get("settings") or {})),
        tasks=tuple(_task(reader, item) for item in reader.one_or_many(values, "task")),
        **_plain(reader, values),
    )
    _check_whole(reader, recipe)
    return recipe


class _Reader:
    """Where the values come from, so that every complaint can say so."""

    def __init__(self, source: str) -> None:
        self.source = source

    def fail(self, problem: str) -> NoReturn:
        raise UnmaskError(f"{self.source}: {problem}")

    def refuse_key(self, kind: str, key: Any, known: Any) -> NoReturn:
        """An unknown key: what it is called here, where it belongs, or the nearest known one."""
        if key in _FOREIGN:
            self.fail(f"unknown {kind} {key!r}; here it is {_FOREIGN[key]}")
        if kind == "recipe key" and key in Settings.__dataclass_fields__:
            self.fail(f"unknown {kind} {key!r}; it is a setting: settings: {{{key}: ...}}")
        if owner := policies.owner_of(str(key)):
            self.fail(f"unknown {kind} {key!r}; it is a parameter of a policy: policy: {{name: {owner}, {key}: ...}}")
        self.fail(str(UnknownName(kind, str(key), known)))

    def required(self, values: Mapping[str, Any], key: str) -> list[Any]:
        listed = _listed(values.get(key))
        return listed or self.fail(f"{key} is missing")

    def one_or_many(self, values: Mapping[str, Any], one: str, many: str = "") -> list[Any]:
        many = many or f"{one}s"
        if one in values and many in values:
            self.fail(f"{one} and {many} are both given; keep one of them")
        return self.required(values, one if one in values else many)

    def checked(self, key: str, make: Callable[[], Any]) -> Any:
        """What `make` returns; its complaint, with the place in front."""
        try:
            return make()
        except UnmaskError as error:
            self.fail(f"{key}: {error}")


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def _checkpoint(reader: _Reader, item: Any, values: Mapping[str, Any], typed: Mapping[str, Any]) -> Checkpoint:
    given = item if isinstance(item, dict) else {"path": item}
    for key in given:
        if key not in CHECKPOINT_KEYS:
            reader.refuse_key("key of a model", key, CHECKPOINT_KEYS)
    shared = {key: values[key] for key in SHARED_KEYS if values.get(key) is not None}
    given = shared | given | {key: typed[key] for key in SHARED_KEYS if key in typed}
    if not all(isinstance(value, str) and value for value in given.values()) or "path" not in given:
        keys = ", ".join(CHECKPOINT_KEYS[:-1])
        reader.fail(f"a model is a name or a folder, or a mapping with {keys} and {CHECKPOINT_KEYS[-1]}, got {item!r}")
    if "dtype" in given:
        from unmask.models.loading import choose_dtype

        reader.checked("dtype", lambda: choose_dtype(given["dtype"]))
    if "quantize" in given:
        from unmask.models.quantized import FORMATS

        if given["quantize"] not in FORMATS:
            reader.fail(f"quantize: {UnknownName('quantisation', given['quantize'], FORMATS)}")
    return Checkpoint(**given)


def _policy(reader: _Reader, item: Any) -> PolicyChoice:
    given = dict(item) if isinstance(item, dict) else {"name": item}
    name = given.pop("name", None)
    if not isinstance(name, str):
        reader.fail(f"a policy is a name, or a mapping with a name and parameters, got {item!r}")
    settings = {key: given.pop(key) for key in list(given) if key in Settings.__dataclass_fields__}
    for key in given:
        if key in _FOREIGN:
            reader.refuse_key(f"parameter of {name}", key, ())
    reader.checked("policy", lambda: policies.get(name, **given))
    return PolicyChoice(name=name, parameters=given, settings=_settings(reader, settings))


def _settings(reader: _Reader, item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        reader.fail(f"settings must be a mapping or a list of mappings, got {item!r}")
    for key in item:
        if key not in Settings.__dataclass_fields__:
            reader.refuse_key("setting", key, Settings.__dataclass_fields__)
    reader.checked("settings", lambda: Settings.from_dict(item))
    return dict(item)


def _task(reader: _Reader, item: Any) -> str:
    """A task's name. Any name may be one of lm-eval's, unless it is one of ours but for a slip."""
    if not isinstance(item, str) or not item:
        reader.fail(f"tasks must hold names, got {item!r}")
    ours = [*tiny_suite.names(), *benchmark_names()]
    near = get_close_matches(item, ours, n=1, cutoff=0.75)
    if item not in ours and near and abs(len(near[0]) - len(item)) <= 1:
        reader.fail(str(unknown_task(item)))
    return item


def _plain(reader: _Reader, values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that hold one number, word or truth value, checked; null counts as absent."""
    numbers = {"limit": 1, "batch_size": 1, "shots": 0, "seed": 0}
    truths = ("allow_unsandboxed", "shared")
    given = {
        key: values[key] for key in (*numbers, "table", "title", "data_dir", *truths) if values.get(key) is not None
    }
    for key, value in given.items():
        if key in numbers and (type(value) is not int or value < numbers[key]):
            reader.fail(f"{key} must be a whole number of at least {numbers[key]}, got {value!r}")
        if key in truths and not isinstance(value, bool):
            reader.fail(f"{key} must be true or false, got {value!r}")
        if key in ("title", "data_dir") and not isinstance(value, str):
            reader.fail(f"{key} must be text, got {value!r}")
        if key == "data_dir" and not Path(value).is_dir():
            reader.fail(f"data_dir {value} is not a folder")
        if key == "table" and value not in TABLES:
            reader.fail(str(UnknownName("table", str(value), TABLES)))
    return given


def _check_whole(reader: _Reader, recipe: Recipe) -> None:
    if recipe.shots and all(tiny_suite.knows(task) for task in recipe.tasks):
        reader.fail(f"shots is given, but {', '.join(recipe.tasks)} take none")
    for key in ("tasks", "policies", "models"):
        values = getattr(recipe, key)
        if doubled := [value for number, value in enumerate(values) if value in values[:number]]:
            reader.fail(f"{key} has {getattr(doubled[0], 'name', doubled[0])!r} twice")
