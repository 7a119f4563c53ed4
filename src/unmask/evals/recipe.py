"""What to measure, read from a YAML file: models x policies x settings x tasks.

Keys, names and values are checked here, before a model is loaded; every error is one line that names the file and the
key. `expand.py`, which knows the model, fills in what a recipe leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from unmask import policies
from unmask.errors import UnknownName, UnmaskError, WrongOption, check_known
from unmask.evals import tiny_suite
from unmask.evals.cell import TABLES
from unmask.evals.harness import BENCHMARKS, unknown_task
from unmask.models.checkpoint.loading import choose_dtype
from unmask.models.quantized import FORMATS
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
    table: str = "main"
    title: str = ""
    data_dir: str | None = None
    limit: int | None = None
    batch_size: int | None = None
    shots: int | None = None
    seed: int = 0  # of the items, where they are drawn
    allow_unsandboxed: bool = False
    shared: bool = False  # other work uses the device meanwhile, so that times are worth nothing


_KEYS = {item.name for item in fields(Recipe) if item.name != "name"} | {*PLURAL, *FOR_ALL}
_LEAST = {"limit": 1, "batch_size": 1, "shots": 0, "seed": 0}
_TRUTHS, _TEXTS = ("allow_unsandboxed", "shared"), ("title", "data_dir", "table")


def read(path: Path, flags: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe in that file; a flag that is not None wins over the key of its name, singular or plural."""
    values = read_mapping(path, "recipe", "keys such as model, policy and tasks")
    return parse(values, flags, source=str(path), name=path.stem)


def parse(
    values: Mapping[str, Any], flags: Mapping[str, Any] | None = None, *, source: str = "recipe", name: str = "recipe"
) -> Recipe:
    """The recipe in plain data; flags count as in `read`. Errors begin with the `source`, unless it is empty."""
    typed = _in_plural(flags or {})

    def at(key: str) -> AbstractContextManager[None]:
        """Errors begin with the source, unless a flag was typed instead of the key."""
        return _at(source) if source and key not in typed else nullcontext()

    with at("recipe"):
        _check_keys("recipe key", values, _KEYS)
        given = _in_plural(values) | typed
    for_all, forced = ({key: found[key] for key in FOR_ALL if key in found} for found in (given, typed))
    lists = {"models": partial(_checkpoint, for_all=for_all, forced=forced), "policies": _policy, "tasks": _task}
    made: dict[str, Any] = {}
    for key, make in lists.items():
        with at(key):
            made[key] = _several(given, key, make)
    for key in (key for key in (*_LEAST, *_TRUTHS, *_TEXTS) if key in given):
        with at(key):
            made[key] = _plain(key, given[key])
    with at("settings"):
        made["settings"] = tuple(_settings(item) for item in _listed(given.get("settings") or {}))
    with at("shots"):
        if made.get("shots") and all(tiny_suite.knows(task) for task in made["tasks"]):
            raise WrongOption("shots", f"is given, but there are none for {', '.join(made['tasks'])}")
    return Recipe(name=name, **made)


def _in_plural(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are not None, under plural keys: `models` for `model`, and so on."""
    for one, many in PLURAL.items():
        if one in values and many in values:
            raise UnmaskError(f"{one} and {many} are both given; keep one of them")
    return {PLURAL.get(key, key): value for key, value in values.items() if value is not None}


@contextmanager
def _at(place: str) -> Generator[None]:
    """Errors from inside begin with the place in the recipe."""
    try:
        yield
    except UnmaskError as error:
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


def _several(given: Mapping[str, Any], key: str, make: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The result of `make` for each value of a key. There must be at least one value, and none twice."""
    made = [make(item) for item in _listed(given.get(key, []))]
    if not made:
        raise UnmaskError(f"{key} is missing")
    if doubled := [value for number, value in enumerate(made) if value in made[:number]]:
        raise UnmaskError(f"{key} has {getattr(doubled[0], 'name', doubled[0])!r} twice")
    return tuple(made)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


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


def _plain(key: str, value: Any) -> Any:
    """The value of a key that holds one number, text or truth value."""
    if key in _LEAST and (type(value) is not int or value < _LEAST[key]):
        raise WrongOption(key, f"must be a whole number of at least {_LEAST[key]}, got {value!r}")
    if key in _TRUTHS and not isinstance(value, bool):
        raise WrongOption(key, f"must be true or false, got {value!r}")
    if key in _TEXTS and not isinstance(value, str):
        raise WrongOption(key, f"must be text, got {value!r}")
    if key == "data_dir" and not Path(value).is_dir():
        raise WrongOption(key, f"must be a folder, got {value}")
    if key == "table" and value not in TABLES:
        raise UnknownName("table", value, TABLES)
    return value
