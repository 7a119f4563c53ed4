"""Benchmarks: lm-eval brings the prompts, shots and scores of a task; decoding, reading and counting are ours.

lm-eval is imported when a benchmark is described or measured, not before.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.errors import UnmaskError, WorkFailed
from unmask.evals import tiny_suite
from unmask.evals.cell import Cell, Generation
from unmask.evals.digests import records_digest
from unmask.evals.executor import Question
from unmask.evals.hub import asked_once, quiet
from unmask.evals.lm_tasks.loaders import BENCHMARKS, records, used_records
from unmask.evals.prompts import FittedPrompt, TextModel, fitted_prompt, template_of

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.task import Task
    from lm_eval.tasks import TaskManager

OUR_TASKS = Path(__file__).parent / "lm_tasks"
SEED, SHOT_SEED = 0, 1234  # lm-eval's own; the second also seeds numpy
SHOT_END = "\x1e"  # marks the end of every shot, so that shots can be left out; never seen by a model


def describe_benchmark(task: str, family: str, model_name: str, data_dir: Path | None = None) -> dict[str, Any]:
    """What a cell of this task has to say: headline, shots, template, and how many items there are.

    The items are those of the public data, or of the files where a folder is given. Any other task of lm-eval, or a
    path to the YAML file of one, is loaded to find out.
    """
    template = template_of(family, model_name)
    if task in BENCHMARKS:
        known = BENCHMARKS[task]
        items = known.items if data_dir is None else len(records(task, str(data_dir)))
        return {"headline": known.headline, "shots": known.shots, "template": template, "items": items}
    tasks = _load_tasks(task)
    first = tasks[0]
    return {
        "headline": _score_name(next(iter(first.aggregation())), first._filters[0].name),
        "shots": first.get_config("num_fewshot") or 0,
        "template": template if first.OUTPUT_TYPE == "generate_until" else "none",
        "items": sum(len(each.eval_docs) for each in tasks),
    }


def questions_digest(task: str, data_dir: Path | None) -> str:
    """Of all that a task asks, its shots and how it asks: another copy of the data, or an edited task, shows."""
    _require_lm_eval()
    if task in BENCHMARKS:
        return records_digest(used_records(task, None if data_dir is None else str(data_dir)))
    return records_digest(record for each in _load_tasks(task) for record in _records(each))


def _records(task: Task) -> Iterator[Any]:
    yield task.dump_config()
    yield from task.eval_docs
    if task.get_config("num_fewshot"):
        yield from task.fewshot_docs()


class BenchmarkTask:
    """The items of a cell, asked and scored as the task's file says."""

    def __init__(self, cell: Cell, model: TextModel, data_dir: Path | None) -> None:
        known = BENCHMARKS.get(cell.task)
        if known and (cell.shots or 0) > known.most_shots:
            raise UnmaskError(f"{cell.task} has at most {known.most_shots} shots, got {cell.shots}")
        # The answers of chat models are tidied up before they run, and so are Dream's.
        self._cleaned = cell.template == "chat" or cell.family == "dream"
        self._asked = _requests(cell, _load_tasks(cell.task, data_dir))
        self.questions = [
            question_of(asked, model, id=number, template=cell.template, new_tokens=cell.settings["max_tokens"])
            for number, (_, asked) in self._asked.items()
        ]

    def score(self, rows: Sequence[Generation]) -> dict[int, dict[str, float]]:
        """By name; a task that reads answers in several ways has a score for each."""
        with quiet():
            return {row.id: self._score(row) for row in rows}

    def _score(self, row: Generation) -> dict[str, float]:
        task, asked = self._asked[row.id]
        doc = {**asked[0].doc, "cleaned": self._cleaned} if task.task_name in BENCHMARKS else asked[0].doc
        for request, response in zip(asked, responses_of(row, asked), strict=True):
            request.resps = [response] * (request.repeats or 1)
        found = {}
        for reading in task._filters:
            reading.apply(asked)
            results = [request.filtered_resps[reading.name] for request in asked]
            for metric, value in task.process_results(doc, results).items():
                if isinstance(value, int | float):
                    found[_score_name(metric, reading.name)] = float(value)
        return found


def question_of(requests: Sequence[Instance], model: TextModel, *, id: int, template: str, new_tokens: int) -> Question:
    """What the requests of one item ask: a text to continue, or continuations to compare, on raw text."""
    first = requests[0]
    if first.request_type != "generate_until":
        pairs = [_pair(request, model) for request in requests]
        prompts, continuations = zip(*pairs, strict=True)
        return Question(
            id=id,
            text=prompts[-1].text,
            prompts=tuple(prompt.ids for prompt in prompts),
            continuations=continuations,
            choices=tuple(request.args[1] for request in requests),
            truncated=prompts[-1].truncated,
        )
    *shots, asked = first.args[0].split(SHOT_END)
    prompt = fitted_prompt(model, shots=shots, question=asked, template=template, new_tokens=new_tokens)
    until = first.args[1].get("until") or ()
    # LLaDA's wrapper leaves what chat models write for HumanEval uncut: text around the code is not its end.
    whole = template == "chat" and str(first.doc.get("task_id", "")).lower().startswith("humaneval")
    return Question(
        id=id,
        text=prompt.text,
        prompts=(prompt.ids,),
        stop=() if whole else (until,) if isinstance(until, str) else tuple(until),
        reading="whole" if whole else "wrapper",
        truncated=prompt.truncated,
    )


def _pair(request: Instance, model: TextModel) -> tuple[FittedPrompt, list[int]]:
    """Prompt and continuation, split as lm-eval splits them: spaces between them go with the continuation."""
    context, continuation = request.args[:2]
    *shots, asked = context.split(SHOT_END)
    bare = asked.rstrip()
    after = model.codec.encode(asked + continuation, special=False)
    after = after[len(model.codec.encode(bare, special=False)) :]
    return fitted_prompt(model, shots=shots, question=bare, template="none", new_tokens=len(after)), after


def responses_of(row: Generation, requests: Sequence[Instance]) -> list[Any]:
    """What lm-eval hears of an item, for each of its requests."""
    if requests[0].request_type == "generate_until":
        return [row.text] * len(requests)
    return list(zip(row.note["loglikelihoods"], row.note["greedy"], strict=True))


def _score_name(metric: str, reading: str) -> str:
    return metric if reading == "none" else f"{metric},{reading}"


def _requests(cell: Cell, tasks: list[Task]) -> dict[int, tuple[Task, list[Instance]]]:
    """Of each item its task and its requests; items are numbered through where a name stands for several tasks."""
    sizes = [len(task.eval_docs) for task in tasks]
    # A limit on several tasks is shared out evenly.
    limit = math.ceil(cell.items / len(tasks)) if 0 < cell.items < sum(sizes) else None
    asked: dict[int, tuple[Task, list[Instance]]] = {}
    with quiet():
        for number, task in enumerate(tasks):
            if task.get_config("num_fewshot") != 0:  # which means that the task has none
                task.set_config(key="num_fewshot", value=cell.shots or 0)
            task.set_fewshot_seed(seed=SHOT_SEED)
            _seed()
            task.build_all_requests(limit=limit)
            for request in task.instances:
                asked.setdefault(sum(sizes[:number]) + (request.doc_id or 0), (task, []))[1].append(request)
    return asked


def _load_tasks(task: str, data_dir: Path | None = None) -> list[Task]:
    """The lm-eval tasks of that name, each shot marked at its end so that it can be left out of a long prompt."""
    ours = task in BENCHMARKS
    _require_lm_eval()
    with quiet(), nullcontext(True) if ours else asked_once() as answered:
        manager = _manager_of(task, None if data_dir is None else str(data_dir))
        _seed()
        try:
            loaded = list(manager.load([task])["tasks"].values())
        except UnmaskError:
            raise
        except Exception as error:  # whatever a task's own code, its data and the hub may raise
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            reason += "" if answered else " (the hub does not answer)"
            raise WorkFailed(f"the task {task} could not be loaded: {reason}") from error
    for each in loaded:
        _check_kind(each, ours=ours)
        if (shots := getattr(each, "fewshot_cfg", None)) is not None:
            shots.fewshot_delimiter = (shots.fewshot_delimiter or "") + SHOT_END
    return loaded


def _seed() -> None:
    """As lm-eval does: a task's own code may draw from the generators that all share."""
    random.seed(SEED)
    np.random.seed(SHOT_SEED)


def _require_lm_eval() -> None:
    try:
        from lm_eval.api import task  # noqa: F401
    except ModuleNotFoundError as error:
        raise UnmaskError(f"benchmarks need {error.name}, which is missing: pip install 'unmask[eval]'") from error


def _manager_of(task: str, data_dir: str | None = None) -> TaskManager:
    """One that knows our tasks, lm-eval's own, or none but the file's."""
    if task in BENCHMARKS:
        return _task_manager(ours=True, data_dir=data_dir)
    is_file = task.endswith((".yaml", ".yml")) and Path(task).is_file()
    manager = _task_manager(defaults=not is_file)
    if task not in manager.all_tasks and not is_file:
        raise unknown_task(task, manager.all_tasks)
    return manager


@cache
def _task_manager(*, ours: bool = False, defaults: bool = False, data_dir: str | None = None) -> TaskManager:
    """Kept, since lm-eval takes half a minute to look through its own tasks; ours take none."""
    from lm_eval.tasks import TaskManager

    path = str(OUR_TASKS) if ours else None
    told: dict[str, Any] = {} if data_dir is None else {"data_dir": data_dir}
    return TaskManager(include_path=path, include_defaults=defaults, metadata=told)


def _check_kind(task: Task, *, ours: bool) -> None:
    """Refuse what would fail later, or run in a way that is not safe."""
    if getattr(task, "UNSAFE_CODE", False) and not ours:
        raise UnmaskError(f"{task.task_name} runs code that a model wrote, outside our sandbox; use humaneval or mbpp")
    if getattr(task, "MULTIMODAL", False):
        raise UnmaskError(f"{task.task_name} asks about images or sound, which these models cannot read")
    if task.OUTPUT_TYPE == "loglikelihood_rolling":
        raise UnmaskError(f"{task.task_name} wants the perplexity of running text, which these models do not give")


def unknown_task(task: str, others: Iterable[str] = ()) -> UnmaskError:
    """What to say of a name that is neither ours nor among the others, lm-eval's."""
    ours = sorted([*tiny_suite.names(), *BENCHMARKS])
    near = get_close_matches(task, ours, n=1) or get_close_matches(task, others, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    known = f"{', '.join(ours)}, every task of lm-eval, and the path of a task's YAML file"
    return UnmaskError(f"unknown task {task!r}{hint} known: {known}")
