"""The benchmarks, run by lm-eval: which there are, and one cell of a table from its prompts to its scores.

lm-eval brings prompts, shots and the order of things; decoding, counting and scoring are ours. It is imported when a
benchmark runs, not before.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections import abc
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from unmask.errors import UnmaskError, WorkFailed
from unmask.evals import tiny_suite
from unmask.evals.cell import Cell
from unmask.evals.hub import asked_once
from unmask.evals.origins import records_digest
from unmask.evals.prompts import template_of
from unmask.evals.store import CellFolder
from unmask.settings import Settings

if TYPE_CHECKING:
    from lm_eval.api.task import Task
    from lm_eval.tasks import TaskManager

    from unmask.engine.generator import Generator
    from unmask.policies import Policy

OUR_TASKS = Path(__file__).parent / "lm_tasks"
SEEDS = {"random_seed": 0, "numpy_random_seed": 1234, "torch_random_seed": 1234, "fewshot_random_seed": 1234}


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One benchmark as the paper runs it."""

    headline: str  # the score that tables show
    shots: int
    most_shots: int
    items: int  # in the public data


BENCHMARKS = {
    "gsm8k": Benchmark(headline="flexible-extract", shots=5, most_shots=7473, items=1319),
    "math": Benchmark(headline="exact_match", shots=4, most_shots=4, items=5000),
    "math500": Benchmark(headline="exact_match", shots=4, most_shots=4, items=500),
    "humaneval": Benchmark(headline="pass@1", shots=0, most_shots=0, items=164),
    "mbpp": Benchmark(headline="pass@1", shots=3, most_shots=3, items=500),
}


def benchmark_names() -> list[str]:
    return sorted(BENCHMARKS)


def describe_benchmark(task: str, family: str, model_name: str, data_dir: Path | None = None) -> dict[str, Any]:
    """What a cell of this task has to say: headline, shots, template, and how many items there are.

    The items are those of the public data, or of the files where a folder is given. Any other task of lm-eval, or a
    path to the YAML file of one, is loaded to find out.
    """
    if task in BENCHMARKS:
        known = BENCHMARKS[task]
        items = known.items if data_dir is None else _count(task, data_dir)
        template = template_of(family, model_name)
        return {"headline": known.headline, "shots": known.shots, "template": template, "items": items}
    with _quiet():
        tasks = _load_tasks(task, data_dir=None, cleaned=False)[1]
    first = tasks[0]
    generates = first.OUTPUT_TYPE == "generate_until"
    return {
        "headline": _score_name(next(iter(first.aggregation())), first._filters[0].name),
        "shots": first.get_config("num_fewshot") or 0,
        "template": template_of(family, model_name) if generates else "none",
        "items": sum(len(each.eval_docs) for each in tasks),
    }


def questions_digest(task: str, data_dir: Path | None) -> str:
    """Of all that a task asks, its shots and how it asks: another copy of the data, or an edited task, shows."""
    if task in BENCHMARKS:
        from unmask.evals.lm_tasks.loaders import used_records

        return records_digest(used_records(task, None if data_dir is None else str(data_dir)))
    with _quiet():
        tasks = _load_tasks(task, data_dir=None, cleaned=False)[1]
        return records_digest(record for each in tasks for record in _asked(each))


def _asked(task: Task) -> Iterator[Any]:
    yield task.dump_config()
    yield from task.eval_docs
    if task.get_config("num_fewshot"):
        yield from task.fewshot_docs()


def check_task(task: str) -> None:
    """Refuse a name that nobody knows, before anything large is loaded."""
    if task in BENCHMARKS:
        return
    with _quiet():
        _manager_of(task)


def run_benchmark(
    llm: Generator,
    cell_folder: CellFolder,
    *,
    policy: Policy | str | None,
    settings: Settings,
    data_dir: Path | None,
    on_item: Callable[[int, int], None],
) -> None:
    """Decode and score every item of the cell that its folder does not have; `on_item` hears how many are done."""
    cell = cell_folder.cell
    _check_shots(cell)
    with _quiet():
        import lm_eval

        from unmask.evals.language_model import UnmaskLM

        # The answers of chat models are tidied up before they run, and so are Dream's.
        cleaned = cell.template == "chat" or cell.family == "dream"
        manager, tasks = _load_tasks(cell.task, data_dir=data_dir, cleaned=cleaned)
        first_ids = _first_ids(tasks)
        model = UnmaskLM(
            llm,
            policy=policy,
            settings=settings,
            template=cell.template,
            batch_size=cell.batch_size,
            folder=cell_folder,
            first_ids=first_ids,
            on_item=on_item,
        )
        results = lm_eval.simple_evaluate(
            model=model,
            tasks=list(tasks),
            task_manager=manager,
            num_fewshot=cell.shots,
            limit=_limit(cell, tasks),
            bootstrap_iters=0,
            confirm_run_unsafe_code=True,  # only ours come this far, and they go through the sandbox
            **SEEDS,
        )
    assert results is not None
    scores = _scores(results["samples"], first_ids)
    cell_folder.add_scores({number: found for number, found in scores.items() if number not in cell_folder.scores})


def _load_tasks(task: str, *, data_dir: Path | None, cleaned: bool) -> tuple[TaskManager, list[Task]]:
    """The lm-eval tasks of that name, each shot marked at its end so that it can be left out of a long prompt."""
    from unmask.evals.language_model import SHOT_END

    if task in BENCHMARKS:
        told = {"data_dir": None if data_dir is None else str(data_dir), "cleaned": cleaned}
        manager = _task_manager(ours=True, metadata=tuple(told.items()))
    else:
        manager = _manager_of(task)
    with nullcontext(True) if task in BENCHMARKS else asked_once() as answered:
        try:
            loaded = manager.load([task])["tasks"]
        except UnmaskError:
            raise
        except Exception as error:  # whatever a task's own code, its data and the hub may raise
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            reason += "" if answered else " (the hub does not answer)"
            raise WorkFailed(f"the task {task} could not be loaded: {reason}") from error
    for each in loaded.values():
        _check_kind(each, ours=task in BENCHMARKS)
        if (shots := getattr(each, "fewshot_cfg", None)) is not None:
            shots.fewshot_delimiter = (shots.fewshot_delimiter or "") + SHOT_END
    return manager, list(loaded.values())


def _manager_of(task: str) -> TaskManager:
    """Of a task that is not ours: lm-eval's own, or none but the file's."""
    manager = _task_manager(ours=False, defaults=not _is_file(task))
    if task not in manager.all_tasks and not _is_file(task):
        raise unknown_task(task, manager.all_tasks)
    return manager


def _check_kind(task: Task, *, ours: bool) -> None:
    """Refuses what lm-eval would fail at later, or do in a way that is not safe."""
    if getattr(task, "UNSAFE_CODE", False) and not ours:
        raise UnmaskError(f"{task.task_name} runs code that a model wrote, outside our sandbox; use humaneval or mbpp")
    if task.OUTPUT_TYPE == "loglikelihood_rolling":
        raise UnmaskError(f"{task.task_name} wants the perplexity of running text, which these models do not give")


@cache
def _task_manager(*, ours: bool, defaults: bool = False, metadata: tuple[tuple[str, Any], ...] = ()) -> TaskManager:
    """Kept, since lm-eval takes half a minute to look through its own tasks; ours take none."""
    from lm_eval.tasks import TaskManager

    return TaskManager(
        include_path=str(OUR_TASKS) if ours else None, include_defaults=defaults, metadata=dict(metadata)
    )


def _is_file(task: str) -> bool:
    return task.endswith((".yaml", ".yml")) and Path(task).is_file()


def unknown_task(task: str, others: Iterable[str] = ()) -> UnmaskError:
    """What to say of a name that is neither ours nor among the others, lm-eval's."""
    ours = sorted([*tiny_suite.names(), *benchmark_names()])
    near = get_close_matches(task, ours, n=1) or get_close_matches(task, others, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    known = f"{', '.join(ours)}, every task of lm-eval, and the path of a task's YAML file"
    return UnmaskError(f"unknown task {task!r}{hint} known: {known}")


def _check_shots(cell: Cell) -> None:
    known = BENCHMARKS.get(cell.task)
    if known and cell.shots is not None and not 0 <= cell.shots <= known.most_shots:
        raise UnmaskError(f"{cell.task} has at most {known.most_shots} shots, got {cell.shots}")


def _count(task: str, data_dir: Path) -> int:
    from unmask.evals.lm_tasks.loaders import ROWS

    return len(ROWS[task](str(data_dir)))


def _first_ids(tasks: list[Task]) -> dict[str, int]:
    """Where the numbers of each task's items begin, when a name stands for several tasks."""
    first_ids, total = {}, 0
    for task in tasks:
        first_ids[task.task_name] = total
        total += len(task.eval_docs)
    return first_ids


def _limit(cell: Cell, tasks: list[Task]) -> int | None:
    """Per task; a limit on several is shared out evenly."""
    total = sum(len(task.eval_docs) for task in tasks)
    return None if not 0 < cell.items < total else math.ceil(cell.items / len(tasks))


def _scores(samples: dict[str, list[dict[str, Any]]], first_ids: dict[str, int]) -> dict[int, dict[str, float]]:
    """Item -> every number that its task gave it; one name for each way to read the answer, if there are several."""
    scores: dict[int, dict[str, float]] = {}
    for task, rows in samples.items():
        for row in rows:
            found = scores.setdefault(first_ids[task] + row["doc_id"], {})
            for metric in row["metrics"]:
                if isinstance(row[metric], int | float):
                    found[_score_name(metric, row["filter"])] = float(row[metric])
    return scores


def _score_name(metric: str, reading: str) -> str:
    return metric if reading == "none" else f"{metric},{reading}"


@contextmanager
def _quiet() -> abc.Generator[None, None, None]:
    """lm-eval's messages, bars and warnings are about its own command line; errors still come as exceptions."""
    try:
        import datasets
        from lm_eval import evaluator
        from lm_eval.api import task
    except ModuleNotFoundError as error:
        raise UnmaskError(f"benchmarks need {error.name}, which is missing: pip install 'unmask[eval]'") from error
    logger = logging.getLogger("lm_eval")
    level, bars = logger.level, datasets.are_progress_bars_disabled()
    logger.setLevel(logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings(), ExitStack() as replaced:
            for module in ("lm_eval", "datasets"):
                warnings.filterwarnings("ignore", module=rf"{module}(\..*)?")
            replaced.enter_context(_replaced(task, "tqdm", partial(task.tqdm, disable=True)))
            # It asks git about the working folder, which complains where there is no repository.
            replaced.enter_context(_replaced(evaluator, "get_git_commit_hash", lambda: None))
            yield
    finally:
        logger.setLevel(level)
        if not bars:
            datasets.enable_progress_bars()


@contextmanager
def _replaced(module: ModuleType, name: str, value: Any) -> abc.Generator[None, None, None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
