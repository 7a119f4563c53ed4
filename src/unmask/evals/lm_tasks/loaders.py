"""The benchmarks of the paper: how they are run, and their records, from JSON lines in a folder or from the hub.

lm-eval calls `splits` with the values of a task's file and of the task manager: `data_dir` is the folder, or missing
for the hub. A hub that is out of reach is asked once, and what was downloaded before is used.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError, one_line

Row = dict[str, Any]
PATIENCE_S = 5.0  # with the hub

MATH_SUBJECTS = ("algebra", "counting_and_probability", "geometry", "intermediate_algebra")
MATH_SUBJECTS += ("number_theory", "prealgebra", "precalculus")
MBPP_SHOTS, MBPP_TEST = range(2, 5), range(11, 511)  # by task_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A benchmark as the paper runs it: where its records are, and which of their fields prompts and scores need."""

    headline: str  # the score that tables show
    shots: int
    most_shots: int
    items: int  # in the public data
    hub: str
    configs: tuple[str | None, ...]
    file: str  # in a folder
    fields: tuple[str, ...]
    optional: tuple[str, ...] = ()  # not every copy has them
    shot_split: str | None = None


# fmt: off
_MATH: dict[str, Any] = {
    "headline": "exact_match", "shots": 4, "most_shots": 4, "fields": ("problem", "solution"), "optional": ("answer",),
}
BENCHMARKS = {
    "gsm8k": Benchmark(
        headline="flexible-extract", shots=5, most_shots=7473, items=1319, shot_split="train",
        hub="openai/gsm8k", configs=("main",), file="gsm8k/{split}.jsonl", fields=("question", "answer"),
    ),
    "math": Benchmark(
        items=5000, hub="EleutherAI/hendrycks_math", configs=MATH_SUBJECTS, file="math/test.jsonl", **_MATH,
    ),
    "math500": Benchmark(
        items=500, hub="HuggingFaceH4/MATH-500", configs=("default",), file="math500/test.jsonl", **_MATH,
    ),
    "humaneval": Benchmark(
        headline="pass@1", shots=0, most_shots=0, items=164,
        hub="openai/openai_humaneval", configs=(None,), file="humaneval/HumanEval.jsonl",
        fields=("task_id", "prompt", "entry_point", "test"),
    ),
    "mbpp": Benchmark(
        headline="pass@1", shots=3, most_shots=3, items=500, shot_split="prompt",
        hub="google-research-datasets/mbpp", configs=("full",), file="mbpp/mbpp.jsonl",
        fields=("task_id", "text", "code", "test_list"), optional=("test_setup_code", "test_imports"),
    ),
}
# fmt: on


def records(task: str, data_dir: str | Path | None, split: str = "test") -> list[Row]:
    """The records of a benchmark, in the same order from every source."""
    known = BENCHMARKS[task]
    if data_dir is not None:
        rows = _local(data_dir, known.file.format(split=split), known.fields)
    else:
        rows = [row for config in known.configs for row in _hub(known.hub, config, split)]
    if task == "math":  # in an order that mixes the subjects, so that a limit is fair
        rows.sort(key=lambda row: hashlib.blake2b(row["problem"].encode(), digest_size=8).digest())
    if task == "mbpp":
        wanted = MBPP_TEST if split == "test" else MBPP_SHOTS
        rows = sorted((row for row in rows if row["task_id"] in wanted), key=lambda row: row["task_id"])
    return rows


def splits(*, task: str, data_dir: str | Path | None = None, **_: Any) -> Any:
    """The splits as lm-eval wants them, name -> Dataset, with only the fields that prompts and scores need."""
    from datasets import Dataset

    known, found = BENCHMARKS[task], {}
    for split in filter(None, ("test", known.shot_split)):
        rows = records(task, data_dir, split)
        keys = (*known.fields, *known.optional)
        found[split] = Dataset.from_list([{key: row.get(key) for key in keys} for row in rows])
    return found


def _local(data_dir: str | Path, name: str, fields: tuple[str, ...]) -> list[Row]:
    """The records of that file, each with these fields."""
    path = Path(data_dir) / name
    path = path if path.exists() else path.with_name(f"{path.name}.gz")
    if not path.exists():
        raise UnmaskError(f"{data_dir} has no {name}, nor {name}.gz")
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            lines = [(f"{path}, line {number}", line) for number, line in enumerate(file, 1) if line.strip()]
    except (UnicodeDecodeError, EOFError, OSError) as error:
        raise UnmaskError(f"{path} cannot be read: {error}") from error
    if not lines:
        raise UnmaskError(f"{path} has no records")
    rows = []
    for place, line in lines:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise UnmaskError(f"{place}: is not JSON: {error}") from error
        if missing := [field for field in fields if not isinstance(rows[-1], dict) or field not in rows[-1]]:
            raise UnmaskError(f"{place}: has no {', '.join(missing)}")
    return rows


def _hub(name: str, config: str | None, split: str) -> list[Row]:
    import datasets

    with asked_once() as answered:
        try:
            return list(datasets.load_dataset(name, config, split=split))
        except Exception as error:  # connections, missing files and settings all have types of their own
            reason = one_line(error) if answered else "it does not answer, and nothing was downloaded before"
            raise UnmaskError(f"{name} cannot be read from the hub ({reason}); local files: --data-dir DIR") from error


@contextmanager
def quiet() -> Generator[None]:
    """Silence bars, messages and warnings, which are about other command lines. Errors come as exceptions."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def asked_once() -> Generator[bool]:
    """Silence loads inside. If the hub does not answer, they use earlier downloads alone, and False is yielded."""
    from datasets import config
    from huggingface_hub import constants

    before = (constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE)
    there = constants.HF_HUB_OFFLINE or _answers(constants.ENDPOINT)
    try:
        if not there:
            constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
        with quiet():
            yield there
    finally:
        constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE = before


@cache
def _answers(endpoint: str) -> bool:
    """Whether the hub gives any answer. Cached, because behind some firewalls the question takes the whole wait."""
    from huggingface_hub import get_session

    try:
        get_session().head(endpoint, timeout=PATIENCE_S)
    except Exception:  # each release of the hub's package has errors of its own for this
        return False
    return True
