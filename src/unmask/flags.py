"""The flags that commands share, and what they turn into. Nothing heavy is imported at the top: `--help` is instant."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from unmask.errors import UnknownName, UnmaskError
from unmask.options import option
from unmask.remote.cluster import ClusterConfig
from unmask.settings import Settings

if TYPE_CHECKING:
    from unmask.bench.workload import Workload
    from unmask.engine.generator import Generator
    from unmask.evals.executor import Executor
    from unmask.evals.recipe import Checkpoint, Recipe
    from unmask.models.base import LoadedModel, MaskedLM, ModelSpec
    from unmask.policies import Policy

# Flags of several commands.
LIVE = option(None, "Show the canvas as it fills. [default: one prompt, on a terminal]", "--live/--no-live")
JSON = option(False, "Print JSON, one object per line.", "--json")
BATCH_SIZE = option(32, "Texts decoded together.", least=1)
EARLY_STOP = Settings(early_stop=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The device, dtype and quantisation of a model, and the threads to run it."""

    device: str | None = option(None, "cuda, mps or cpu. [default: the best there is]")
    dtype: str | None = option(None, "float32, bfloat16 or float16. [default: by device]")
    quantize: str | None = option(None, "Keep the weights of the blocks in 8 bits. [default: off]", metavar="fp8|int8")
    threads: int | None = option(None, "Threads of the CPU. [default: one for each core]", least=1)

    def __post_init__(self) -> None:
        if self.threads is not None:
            os.environ["OMP_NUM_THREADS"] = str(self.threads)  # read when the work imports torch

    def placed(self) -> dict[str, Any]:
        """Where and how weights are kept, as functions that load a model take it."""
        return {"device": self.device, "dtype": self.dtype, "quantize": self.quantize}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model(Device):
    """Which model to decode with, and how positions are chosen."""

    model: str = option("tiny", "Checkpoint folder, hub name, 'tiny' or 'toy'.")
    revision: str | None = option(None, "Branch, tag or commit of a hub name.")
    policy: str | None = option(None, "A name of `unmask policies`, or FILE.py:Class. [default: mean_field]")
    set_: Sequence[str] = option((), "A parameter of the policy (may be repeated).", metavar="KEY=VALUE")

    def __post_init__(self) -> None:
        Device.__post_init__(self)
        # A replica on a cluster opens the model in another folder.
        file, colon, kind = (self.policy or "").rpartition(":")
        if colon and file.endswith(".py"):
            object.__setattr__(self, "policy", f"{Path(file).expanduser().absolute()}:{kind}")

    def open(self, **more: Any) -> tuple[Generator, Policy]:
        """The model, and the policy for it; `more` is for `load`."""
        from unmask.engine.load import load

        llm = load(self.model, revision=self.revision, **self.placed(), **more)
        return llm, choose_policy(llm.spec, self.policy, self.set_)

    def about(self, prompts: list[str]) -> str | None:
        """A note on prompts that the embedded model was not trained for; None where there is nothing to note."""
        from unmask import tasks

        prefixes = sorted({tasks.get(name).prefix for name in tasks.names()})
        if self.model != "tiny" or all(prompt.startswith(tuple(prefixes)) for prompt in prompts):
            return None
        known = ", ".join(repr(prefix.strip()) for prefix in prefixes)
        return f"tiny only knows prompts beginning with {known}; load a real checkpoint with --model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(Device):
    """What `unmask eval` measures: a recipe, and the flags that replace keys of it."""

    model: Sequence[str] = option((), "Checkpoint folder, hub name or 'tiny', instead of the recipe's. [default: tiny]")
    task: Sequence[str] = option((), "A task or benchmark, instead of the recipe's (may be repeated).")
    policy: Sequence[str] = option(
        (), "A policy or FILE.py:Class, instead of the recipe's (may be repeated). [default: mean_field]"
    )
    set_: Sequence[str] = option((), "A parameter of the one --policy (may be repeated).", metavar="KEY=VALUE")
    limit: int | None = option(None, "At most so many items a cell.")
    data_dir: str | None = option(None, "Benchmark files here, instead of the hub's.", metavar="FOLDER")
    batch_size: int | None = option(None, "Items decoded together.")
    shots: int | None = option(None, "Worked examples in the prompt.")
    allow_unsandboxed: bool = option(
        False, "Run code that a model wrote even without bubblewrap.", "--allow-unsandboxed"
    )
    shared: bool = option(False, "Other work uses the device meanwhile: keep times out of reports.", "--shared")

    def recipe(self, name: str | None) -> tuple[Recipe, str]:
        """The recipe of that name or file, or of flags alone, and what its run is called."""
        from unmask.evals.recipe import parse, read, recipe_file

        given = {item.name: value for item in fields(self) if (value := getattr(self, item.name)) != item.default}
        given.pop("threads", None)  # they change no result
        if parameters := parse_fields(given.pop("set_", ())):
            if len(self.policy) != 1:
                raise UnmaskError(f"--set is for one --policy, got {', '.join(self.policy) or 'none'}")
            given["policy"] = [{"name": self.policy[0], **parameters}]
        if name is not None:
            file, run = recipe_file(name)
            return read(file, given), run
        if not self.task:
            raise UnmaskError("nothing to measure: give a RECIPE or --task; `unmask eval --list` names them")
        alone = parse({"model": "tiny", "policy": "mean_field"}, given, source="", name="flags")
        words = [*(model.name for model in alone.models), *alone.tasks, *(policy.name for policy in alone.policies)]
        return alone, "-".join(Path(word.rpartition(":")[2]).name for word in words)[:120]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend(ClusterConfig):
    """Where batches are decoded: in this process, or by replicas on a cluster."""

    backend: str = option("local", "Where batches are decoded: local, ray, or an installed plug-in.")

    def loader(self) -> Callable[[Checkpoint], Executor]:
        """The function that loads a model of a recipe there."""
        from unmask.evals.executor import backends

        load: Any = backends.find(self.backend).load
        return partial(load, cluster=self) if self.on_ray() else load

    def quiet(self) -> contextlib.AbstractContextManager[None]:
        """Leave stdout to the results while batches are decoded."""
        from unmask.remote.cluster import quiet

        return quiet() if self.backend == "ray" else contextlib.nullcontext()

    def on_ray(self, command: str | None = None) -> bool:
        """Whether a Ray cluster decodes; flags of a cluster are an error elsewhere.

        A `command` that is named takes no plug-ins.
        """
        if command and self.backend not in ("local", "ray"):
            raise UnknownName(f"backend of `unmask {command}`", self.backend, ("local", "ray"))
        for item in () if self.backend == "ray" else fields(ClusterConfig):
            if getattr(self, item.name) != item.default:
                raise UnmaskError(f"--{item.name.replace('_', '-')} is for --backend ray, got --backend {self.backend}")
        return self.backend == "ray"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchModel(Device):
    """Which model `unmask bench` measures."""

    model: str | None = option(None, "Checkpoint folder, hub name, 'tiny' or 'toy'.", "MODEL")
    shape: str | None = option(
        None, "Instead of a model, its sizes: llada-8b, dream-7b, sdar-8b or tiny. [default: by device]"
    )
    random_weights: bool = option(False, "Only the sizes are real: no weights are read.", "--random-weights")

    def load(self, seed: int) -> LoadedModel:
        """The model and its tokenizer; `seed` is that of random weights."""
        from unmask.bench.subject import open_loaded

        return open_loaded(self.model, shape=self.shape, random_weights=self.random_weights, seed=seed, **self.placed())


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPolicy(BenchModel):
    """What `unmask bench step` and `generate` measure: a model, and how positions are chosen."""

    policy: str | None = option(
        None, "A name of `unmask policies`, or FILE.py:Class. [default: fixed, passes = block size / 4]"
    )
    set_: Sequence[str] = option((), "A parameter of the policy (may be repeated).", metavar="KEY=VALUE")

    def open(self, workload: Workload) -> tuple[MaskedLM, Workload]:
        """The model, and the workload with the policy in it."""
        model = self.load(workload.seed).model
        if self.policy or self.set_:
            workload = replace(workload, policy=choose_policy(model.spec, self.policy or "fixed", self.set_))
        return model, workload


def choose_policy(spec: ModelSpec, name: str | None, pairs: Sequence[str] = ()) -> Policy:
    """The family's preset of the named policy, with the fields given by `--set` changed."""
    from unmask import policies
    from unmask.engine.plan import preset_name

    known = None if name is None else policies.named(name)
    return policies.resolve(known, preset_name(spec), parameters=parse_fields(pairs))


def from_extra(module: str, extra: str, what: str) -> ModuleType:
    """A module that an extra is for; raises an error of one line if a package that it needs is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UnmaskError(f"{what} needs {error.name}, which is missing: pip install 'unmask[{extra}]'") from error


def parse_fields(pairs: Sequence[str]) -> dict[str, Any]:
    """key=value pairs; a value is a number, true, false, none or a word."""
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key or key == "name":
            raise UnmaskError(f"--set takes KEY=VALUE with a parameter of the policy, got {pair!r}")
        if key in Settings.__dataclass_fields__:
            way = f"--{key.replace('_', '-')} {text}"
            raise UnmaskError(f"--set is for parameters of the policy, and {key} is a setting: give {way}")
        if key in values:
            raise UnmaskError(f"--set {key} is given twice")
        values[key] = _parse_value(text)
    return values


def _parse_value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    return text


def check_writable(path: Path | None) -> None:
    """Refuse an output file that could not be written, before any work is done."""
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UnmaskError(f"cannot write {path}: it is a folder, or its folder is missing or not writable")
