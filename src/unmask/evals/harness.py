"""Benchmarks: lm-eval brings the texts, shots and scores of a task; prompts, decoding, reading and counting are ours.

Prompts follow the public wrapper of the model's family, byte for byte. lm-eval is imported when a benchmark is
described or measured, not before.
"""

from __future__ import annotations

import math
import random
import warnings
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.engine.prompts import encode_prompt
from unmask.errors import UnknownName, UnmaskError, WorkFailed, one_line
from unmask.evals import tiny_suite
from unmask.evals.cell import Cell, Generation, ModelInfo
from unmask.evals.executor import Question, TextModel
from unmask.evals.lm_tasks.loaders import BENCHMARKS, asked_once, quiet, records

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.task import Task
    from lm_eval.tasks import TaskManager

OUR_TASKS = Path(__file__).parent / "lm_tasks"
SEED, SHOT_SEED = 0, 1234  # lm-eval's own; the second also seeds numpy
TEMPLATES = ("none", "chat")
SHOT_END = "\x1e"  # marks the end of every shot, so that shots can be left out; a model never sees it


def template_of(family: str, model: str) -> str:
    """'chat' for LLaDA checkpoints that are called instruct, else 'none': what the public scripts do.

    The scripts look for the word in the path, so LLaDA-1.5 gets raw text. Dream's instruct models get raw text as well.
    """
    return "chat" if family == "llada" and "instruct" in model.lower() else "none"


def describe_benchmark(task: str, model: ModelInfo, data_dir: str | Path | None = None) -> dict[str, Any]:
    """The fields of a cell that depend on the task: headline, shots, template and number of items.

    A benchmark of ours has the items of the public data, or of the files in `data_dir`. Any other task, lm-eval's or a
    YAML file, is loaded to find these fields.
    """
    template = template_of(model.family, model.preset)
    if task in BENCHMARKS:
        known = BENCHMARKS[task]
        items = known.items if data_dir is None else len(records(task, data_dir))
        return {"headline": known.headline, "shots": known.shots, "template": template, "items": items}
    tasks = _load_tasks(task)
    first = tasks[0]
    return {
        "headline": _score_name(next(iter(first.aggregation())), first._filters[0].name),
        "shots": first.get_config("num_fewshot") or 0,
        "template": template if first.OUTPUT_TYPE == "generate_until" else "none",
        "items": sum(len(each.eval_docs) for each in tasks),
    }


def questions_of(task: str, data_dir: str | Path | None) -> Iterator[Any]:
    """The questions and shots of a task, and the configuration of one that is not ours, as plain data."""
    for each in _load_tasks(task, data_dir):
        if task not in BENCHMARKS:  # the files of our tasks count as code
            yield each.dump_config()
        yield from each.eval_docs
        if each.get_config("num_fewshot"):
            yield from each.fewshot_docs()


class BenchmarkTask:
    """The items of a cell, asked and scored as the task's file says."""

    def __init__(self, cell: Cell, model: TextModel, data_dir: str | Path | None) -> None:
        known = BENCHMARKS.get(cell.task)
        if known and (cell.shots or 0) > known.most_shots:
            raise UnmaskError(f"{cell.task} has at most {known.most_shots} shots, got {cell.shots}")
        # HumanEval answers of chat models and of Dream are cleaned before they run.
        self._protocol = {"cleaned": cell.template == "chat" or cell.family == "dream"} if known else {}
        tasks = _load_tasks(cell.task, data_dir)
        sizes = [len(task.eval_docs) for task in tasks]
        # A limit on several tasks is shared out evenly.
        limit = math.ceil(cell.items / len(tasks)) if 0 < cell.items < sum(sizes) else None
        # Items are numbered through where a name stands for several tasks.
        self._asked: dict[int, tuple[Task, list[Instance]]] = {}
        with quiet():
            for at, task in enumerate(tasks):
                if task.get_config("num_fewshot") != 0:  # 0: the task takes no shots
                    task.set_config(key="num_fewshot", value=cell.shots or 0)
                task.set_fewshot_seed(seed=SHOT_SEED)
                _seed()
                task.build_all_requests(limit=limit)
                for request in task.instances:
                    number = sum(sizes[:at]) + (request.doc_id or 0)
                    self._asked.setdefault(number, (task, []))[1].append(request)
        self.questions = [
            question_of(asked, model, id=number, template=cell.template, new_tokens=cell.settings["max_tokens"])
            for number, (_, asked) in self._asked.items()
        ]

    def score(self, rows: Sequence[Generation]) -> dict[int, dict[str, float]]:
        """The scores of each item; a task that reads answers in several ways has a score for each way.

        An answer that the task's code cannot read is wrong, and a warning says so: no other item has to wait for it.
        """
        scores, unread = {}, list[str]()
        with quiet():
            for row in rows:
                try:
                    scores[row.id] = self._score(row)
                except UnmaskError:  # of this machine, not of the answer
                    raise
                except Exception as error:
                    task, _ = self._asked[row.id]
                    worst = {name: 0.0 if better else math.inf for name, better in task.higher_is_better().items()}
                    ways = [(way.name, name, value) for way in task._filters for name, value in worst.items()]
                    scores[row.id] = {_score_name(name, way): value for way, name, value in ways}
                    unread.append(f"{row.id} ({type(error).__name__})")
        if unread:
            warnings.warn(f"answers that cannot be scored count as wrong: items {', '.join(unread)}", stacklevel=2)
        return scores

    def _score(self, row: Generation) -> dict[str, float]:
        task, asked = self._asked[row.id]
        for request, response in zip(asked, responses_of(row, len(asked)), strict=True):
            request.resps = [response] * (request.repeats or 1)
        found = {}
        for reading in task._filters:
            reading.apply(asked)
            results = [request.filtered_resps[reading.name] for request in asked]
            for metric, value in task.process_results({**asked[0].doc, **self._protocol}, results).items():
                if isinstance(value, int | float):
                    found[_score_name(metric, reading.name)] = float(value)
        return found


def question_of(requests: Sequence[Instance], model: TextModel, *, id: int, template: str, new_tokens: int) -> Question:
    """What the requests of one item ask: a text to continue, or continuations to compare, on raw text."""
    first = requests[0]
    if first.request_type != "generate_until":
        pairs = []
        for request in requests:
            *shots, asked = request.args[0].split(SHOT_END)
            bare = asked.rstrip()  # as lm-eval splits them: spaces between the two go with the continuation
            before, whole = (model.codec.encode(text, special=False) for text in (bare, asked + request.args[1]))
            after = whole[len(before) :]
            fitted = fitted_prompt(model, shots=shots, question=bare, template="none", new_tokens=len(after))
            pairs.append((after, *fitted))
        continuations, prompts, truncated = zip(*pairs, strict=True)
        text = model.codec.decode(prompts[-1], special=True)
        return Question(id=id, text=text, prompts=prompts, continuations=continuations, truncated=any(truncated))
    *shots, asked = first.args[0].split(SHOT_END)
    prompt, truncated = fitted_prompt(model, shots=shots, question=asked, template=template, new_tokens=new_tokens)
    until = first.args[1].get("until") or ()
    stop = (until,) if isinstance(until, str) else tuple(until)
    # LLaDA's wrapper does not cut a chat model's answer to HumanEval: text around the code does not end the answer.
    whole = template == "chat" and str(first.doc.get("task_id", "")).lower().startswith("humaneval")
    return Question(
        id=id,
        text=model.codec.decode(prompt, special=True),
        prompts=(prompt,),
        stop=() if whole else stop,
        reading="whole" if whole else "wrapper",
        truncated=truncated,
    )


def fitted_prompt(
    model: TextModel, *, shots: Sequence[str], question: str, template: str, new_tokens: int
) -> tuple[list[int], bool]:
    """The tokens of the prompt, and whether it is truncated: shots, then text at its start give way to the answer."""
    if template not in TEMPLATES:
        raise UnknownName("template", template, TEMPLATES)
    spec, codec, words = model.spec, model.codec, model.codec.encode(question, special=False)

    def encoded(lost: int) -> list[int]:
        text = "".join([*shots[lost:], question]) if lost <= len(shots) else codec.decode(words[lost - len(shots) :])
        if template == "chat":
            return codec.chat([{"role": "user", "content": text}])
        return encode_prompt(spec, codec, text)

    def fits(lost: int) -> bool:
        return len(encoded(lost)) <= spec.max_length - new_tokens

    parts = max(1, len(shots) + len(words))
    lost = 0 if fits(0) else bisect_left(range(parts), True, lo=1, key=fits)
    if lost == parts:
        room = f"in the {spec.max_length} positions of {spec.name}"
        raise UnmaskError(f"{new_tokens} new tokens leave no room for a prompt {room}")
    return encoded(lost), lost > 0


def responses_of(row: Generation, requests: int) -> list[Any]:
    """The response to each request of an item, as lm-eval wants it: the text, or likelihood and greediness."""
    if "loglikelihoods" not in row.note:
        return [row.text] * requests
    return list(zip(row.note["loglikelihoods"], row.note["greedy"], strict=True))


def _score_name(metric: str, reading: str) -> str:
    return metric if reading == "none" else f"{metric},{reading}"


def _load_tasks(task: str, data_dir: str | Path | None = None) -> list[Task]:
    """The lm-eval tasks of that name, each shot marked at its end so that it can be left out of a long prompt."""
    try:
        from lm_eval.api import task as _  # noqa: F401
    except ModuleNotFoundError as error:
        raise UnmaskError(f"benchmarks need {error.name}, which is missing: pip install 'unmask[eval]'") from error
    with quiet(), nullcontext(True) if task in BENCHMARKS else asked_once() as answered:
        manager = _manager_of(task, data_dir)
        _seed()
        try:
            loaded = list(manager.load([task])["tasks"].values())
        except UnmaskError:
            raise
        except Exception as error:  # whatever a task's own code, its data and the hub may raise
            silent = "" if answered else " (the hub does not answer)"
            raise WorkFailed(f"the task {task} could not be loaded: {one_line(error)}{silent}") from error
    for each in loaded:  # refuse a task that would fail later, or that runs code in a way that is not safe
        name = each.task_name
        if getattr(each, "UNSAFE_CODE", False) and task not in BENCHMARKS:
            raise UnmaskError(f"{name} runs code that a model wrote, outside our sandbox; use humaneval or mbpp")
        if getattr(each, "MULTIMODAL", False):
            raise UnmaskError(f"{name} asks about images or sound, which these models cannot read")
        if each.OUTPUT_TYPE == "loglikelihood_rolling":
            raise UnmaskError(f"{name} wants the perplexity of running text, which these models do not give")
        if (shots := getattr(each, "fewshot_cfg", None)) is not None:
            shots.fewshot_delimiter = (shots.fewshot_delimiter or "") + SHOT_END
    return loaded


def _seed() -> None:
    """Seed the generators of the process as lm-eval does, because a task's own code may draw from them."""
    random.seed(SEED)
    np.random.seed(SHOT_SEED)


def _manager_of(task: str, data_dir: str | Path | None) -> TaskManager:
    """The manager for a task: of our tasks, of no tasks for one in a file, or of all of lm-eval's."""
    from lm_eval.tasks import TaskManager

    if task in BENCHMARKS:
        metadata: dict[str, Any] = {"data_dir": data_dir}
        return TaskManager(include_path=str(OUR_TASKS), include_defaults=False, metadata=metadata)
    if task.endswith((".yaml", ".yml")) and Path(task).is_file():
        return TaskManager(include_defaults=False)
    if task not in (every := every_task()).all_tasks:
        raise unknown_task(task, every.all_tasks)
    return every


@cache
def every_task() -> TaskManager:
    """The manager of all of lm-eval's tasks. Cached, since looking through them takes half a minute."""
    from lm_eval.tasks import TaskManager

    return TaskManager()


def unknown_task(task: str, others: Iterable[str] = ()) -> UnmaskError:
    """The error for a name that is neither a task of ours nor among `others`, the tasks of lm-eval."""
    known = {*tiny_suite.names(), *BENCHMARKS, *get_close_matches(task, others, n=1)}
    return UnknownName("task", task, known, listed_as="known, beside lm-eval's and YAML files of tasks")
