"""The records of each benchmark, from JSON lines in a folder or from the hub; and the fixed shots of MATH.

lm-eval calls a loader with what the task manager was told: `data_dir` is the folder, or None for the hub.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.evals.hub import asked_once

Row = dict[str, Any]

MATH_SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
MBPP_SHOTS, MBPP_TEST = range(2, 5), range(11, 511)  # by task_id


def gsm8k(*, data_dir: str | None = None, **_: Any) -> Any:
    return _splits({split: gsm8k_rows(data_dir, split) for split in ("train", "test")})


def math(*, data_dir: str | None = None, **_: Any) -> Any:
    return _splits({"test": math_rows(data_dir)})


def math500(*, data_dir: str | None = None, **_: Any) -> Any:
    return _splits({"test": math500_rows(data_dir)})


def humaneval(*, data_dir: str | None = None, cleaned: bool = False, **_: Any) -> Any:
    """`cleaned`: whether answers are tidied up before they run, which the scoring must be told with each record."""
    return _splits({"test": [row | {"cleaned": cleaned} for row in humaneval_rows(data_dir)]})


def mbpp(*, data_dir: str | None = None, **_: Any) -> Any:
    return _splits({"test": mbpp_rows(data_dir), "prompt": mbpp_rows(data_dir, "prompt")})


def gsm8k_rows(data_dir: str | None, split: str = "test") -> list[Row]:
    if data_dir is None:
        return _hub("openai/gsm8k", "main", split)
    return _local(data_dir, f"gsm8k/{split}.jsonl", "question", "answer")


def math_rows(data_dir: str | None) -> list[Row]:
    """All seven subjects, in an order that mixes them and is the same from every source, so that a limit is fair."""
    if data_dir is None:
        rows = [row for subject in MATH_SUBJECTS for row in _hub("EleutherAI/hendrycks_math", subject, "test")]
    else:
        rows = _local(data_dir, "math/test.jsonl", "problem", "solution")
    return sorted(rows, key=lambda row: hashlib.blake2b(row["problem"].encode(), digest_size=8).digest())


def math500_rows(data_dir: str | None) -> list[Row]:
    if data_dir is None:
        return _hub("HuggingFaceH4/MATH-500", "default", "test")
    return _local(data_dir, "math500/test.jsonl", "problem", "solution")


def humaneval_rows(data_dir: str | None) -> list[Row]:
    if data_dir is None:
        return _hub("openai/openai_humaneval", None, "test")
    return _local(data_dir, "humaneval/HumanEval.jsonl", "task_id", "prompt", "entry_point", "test")


def mbpp_rows(data_dir: str | None, split: str = "test") -> list[Row]:
    if data_dir is None:
        rows = _hub("google-research-datasets/mbpp", "full", split)
    else:
        rows = _local(data_dir, "mbpp/mbpp.jsonl", "task_id", "text", "code", "test_list")
    wanted = MBPP_TEST if split == "test" else MBPP_SHOTS
    return sorted((row for row in rows if row["task_id"] in wanted), key=lambda row: row["task_id"])


ROWS: dict[str, Callable[[str | None], list[Row]]] = {
    "gsm8k": gsm8k_rows,
    "math": math_rows,
    "math500": math500_rows,
    "humaneval": humaneval_rows,
    "mbpp": mbpp_rows,
}


# What prompts and scores are made of; a copy of the data may have more.
_USED = {
    "gsm8k": ("question", "answer"),
    "math": ("problem", "solution", "answer"),
    "math500": ("problem", "solution", "answer"),
    "humaneval": ("prompt", "test", "entry_point"),
    "mbpp": ("text", "code", "test_list", "test_setup_code", "test_imports"),
}


def used_records(task: str, data_dir: str | None) -> list[Row]:
    """The questions of a benchmark, then its shots, with nothing but the fields that show in a result."""
    rows = ROWS[task](data_dir)
    shots: dict[str, Callable[[], list[Row]]] = {
        "gsm8k": lambda: gsm8k_rows(data_dir, "train"),
        "mbpp": lambda: mbpp_rows(data_dir, "prompt"),
        "math": minerva_shots,
        "math500": minerva_shots,
    }
    rows = [*rows, *shots[task]()] if task in shots else rows
    return [{field: row.get(field) for field in _USED[task]} for row in rows]


def minerva_shots() -> list[Row]:
    """The four worked examples of the Minerva protocol, out of lm-eval's own file.

    Read, never imported: the module insists on a version of antlr that math-verify does not work with.
    """
    package = importlib.util.find_spec("lm_eval")
    assert package is not None
    assert package.submodule_search_locations
    path = Path(package.submodule_search_locations[0]) / "tasks" / "minerva_math" / "utils.py"
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == "list_fewshot_samples":
            returned = next(step.value for step in node.body if isinstance(step, ast.Return))
            return ast.literal_eval(returned) if returned else []
    raise UnmaskError(f"{path}: the shots of the Minerva protocol are not where lm-eval 0.4.13 has them")


def _splits(rows: dict[str, list[Row]]) -> Any:
    """As lm-eval wants them: split -> Dataset."""
    from datasets import Dataset

    return {split: Dataset.from_list(found) for split, found in rows.items()}


def _local(data_dir: str, name: str, *fields: str) -> list[Row]:
    """The records of that file, each with these fields."""
    for path in (Path(data_dir) / name, Path(data_dir) / f"{name}.gz"):
        if path.exists():
            opened = gzip.open if path.suffix == ".gz" else open
            try:
                with opened(path, "rt", encoding="utf-8") as file:
                    rows = [_record(path, number, line, fields) for number, line in enumerate(file, 1) if line.strip()]
            except (UnicodeDecodeError, EOFError, OSError) as error:
                raise UnmaskError(f"{path} cannot be read: {error}") from error
            if not rows:
                raise UnmaskError(f"{path} has no records")
            return rows
    raise UnmaskError(f"{data_dir} has no {name}, nor {name}.gz")


def _record(path: Path, number: int, line: str, fields: tuple[str, ...]) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UnmaskError(f"{path}, line {number}: is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise UnmaskError(f"{path}, line {number}: must be an object, got {line.strip()[:40]!r}")
    if missing := [field for field in fields if field not in row]:
        raise UnmaskError(f"{path}, line {number}: has no {', '.join(missing)}")
    return row


def _hub(name: str, config: str | None, split: str) -> list[Row]:
    import datasets

    with asked_once() as answered:
        try:
            return list(datasets.load_dataset(name, config, split=split))
        except Exception as error:  # connections, missing files and settings all have types of their own
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            reason = reason if answered else "it does not answer, and nothing was downloaded before"
            raise UnmaskError(f"{name} cannot be read from the hub ({reason}); local files: --data-dir DIR") from error
