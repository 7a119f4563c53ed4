"""Executors answer questions: batches in, generations out. The executor of this process is here.

Batches and generations are plain data that can be pickled, and generations may come in any order. So another executor
may send batches to other processes or machines. It is a class with the methods of `Executor`, found by its name in the
entry point group `unmask.backends`. Knows nothing of scores and files.

An answer to a benchmark is read and counted as the public wrapper of the model's family does it, byte for byte and
count for count. The two families differ, which is why their columns are not comparable with each other.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import torch

from unmask import policies
from unmask.engine.generator import Generator
from unmask.engine.load import load
from unmask.engine.plan import plan, preset_name, recommended
from unmask.engine.text import Ending
from unmask.evals.cell import Generation, ModelInfo
from unmask.models.base import ModelSpec
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.models.device import device_name
from unmask.policies import Policy
from unmask.registry import Registry
from unmask.settings import Settings

if TYPE_CHECKING:
    from unmask.evals.recipe import Checkpoint
    from unmask.types import Output, StepEvent

WARM_UP = "one generation before the first item of each model and policy, not timed"
LIKELIHOOD_SAMPLES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One item as it is put to a model: a prompt to continue or fill, or prompts whose continuations are compared."""

    id: int  # its number within the task
    text: str  # of the prompt
    prompts: tuple[list[int], ...]
    filled_from: int | None = None  # the prompt has masks to fill, and the answer begins here; None: it is continued
    continuations: tuple[list[int], ...] = ()
    stop: tuple[str, ...] = ()  # what ends an answer, beside the strings of the settings
    reading: Literal["text", "wrapper", "whole"] = "text"  # the engine's text, or the family's wrapper's, cut or not
    truncated: bool = False
    note: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Questions to answer together, all with the same stop strings; or one question with continuations to compare."""

    questions: tuple[Question, ...]
    policy: Policy
    settings: Settings
    batch_size: int  # rows of a forward pass


def batches(questions: Iterable[Question], *, policy: Policy, settings: Settings, batch_size: int) -> Iterator[Batch]:
    """Batches of questions of like length and with the same stop strings. They depend on the cell alone.

    The longest come first, so that memory runs out at once or never. Continuations are compared one item at a time.
    """
    ordered = sorted(questions, key=lambda asked: (bool(asked.continuations), asked.stop, -len(asked.prompts[0])))
    for (compared, _), group in groupby(ordered, key=lambda asked: (bool(asked.continuations), asked.stop)):
        alike, size = tuple(group), 1 if compared else batch_size
        for first in range(0, len(alike), size):
            part = alike[first : first + size]
            yield Batch(questions=part, policy=policy, settings=settings, batch_size=batch_size)


@runtime_checkable
class TextModel(Protocol):
    """A model's special tokens and tokenizer. Generators and executors have both."""

    spec: ModelSpec
    codec: TextCodec


@runtime_checkable
class Executor(TextModel, Protocol):
    """A model at work, here or elsewhere."""

    info: ModelInfo
    shared: bool  # whether other work uses its devices meanwhile, so that times are worth nothing
    status: str  # what a line of progress says of the executor; empty: nothing

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> Executor:
        """Load that model wherever batches are going to be decoded."""

    def check(self, policy: Policy, settings: Settings) -> None:
        """Raise an error of one line if the model cannot decode with these."""

    def map(self, batches: Iterable[Batch]) -> Iterator[list[Generation]]:
        """The generations of each batch as soon as it is decoded, in any order of batches."""

    def close(self) -> None:
        """Give back what the model holds."""


class LocalExecutor:
    """Decodes in this process, one batch after the other."""

    shared, status = False, ""

    def __init__(self, llm: Generator) -> None:
        self.llm, self.spec, self.codec = llm, llm.spec, llm.codec
        self.info = ModelInfo(
            family=llm.spec.convention,
            preset=preset_name(llm.spec),
            dtype=str(llm.model.dtype).removeprefix("torch."),
            device=llm.model.device.type,
            recommended=recommended(llm.spec),
            device_name=device_name(llm.model.device),
            threads=torch.get_num_threads(),
        )
        self._warm: set[str] = set()

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> LocalExecutor:
        options = {key: getattr(checkpoint, key) for key in ("device", "dtype", "quantize", "revision")}
        return cls(load(checkpoint.path, **options))

    def check(self, policy: Policy, settings: Settings) -> None:
        plan(self.llm.model, policy, settings)

    def map(self, batches: Iterable[Batch]) -> Iterator[list[Generation]]:
        for batch in batches:
            if (name := policies.name_of(batch.policy)) not in self._warm:
                self.llm.generate("warm-up", policy=batch.policy, settings=batch.settings)
                self._warm.add(name)
            yield answer(self.llm, batch)

    def close(self) -> None:
        del self.llm
        gc.collect()
        torch.cuda.empty_cache()


backends: Registry[Executor] = Registry("backend", "unmask.backends")
backends.register("local")(LocalExecutor)


def answer(llm: Generator, batch: Batch) -> list[Generation]:
    """The model's generation for each question."""
    if batch.questions[0].continuations:
        return [_compared(llm, question, batch.batch_size) for question in batch.questions]
    settings = batch.settings.with_(stop=(*batch.settings.stop, *batch.questions[0].stop))
    refreshes: Counter[int] = Counter()

    def count(event: StepEvent) -> None:
        refreshes[event.row] += event.refreshed

    prompts, decode = [question.prompts[0] for question in batch.questions], llm.generate
    if batch.questions[0].filled_from is not None:
        decode, settings = llm.infill, settings.with_(max_tokens=None)  # the masks are there
    outputs = decode(
        prompts, policy=batch.policy, settings=settings, batch_size=batch.batch_size, timed=True, on_step=count
    )
    return [
        _read(llm, question, output, settings, refreshes[row])
        for row, (question, output) in enumerate(zip(batch.questions, outputs, strict=True))
    ]


def _read(llm: Generator, question: Question, output: Output, settings: Settings, refreshes: int) -> Generation:
    ids = [token for token in output.canvas_ids if token != llm.spec.mask_id]  # an early stop leaves positions open
    text, tokens = output.text, output.usage.completion_tokens
    if question.filled_from is not None:
        text = llm.codec.decode(output.token_ids[question.filled_from :])
    reference = sum(token != llm.spec.eos_id for token in ids)
    if question.reading != "text":
        before = list(takewhile(lambda token: token not in settings.stop_token_ids, ids))
        text, reference, tokens = read_answer(llm, before, until=settings.stop, whole=question.reading == "whole")
    return Generation(
        id=question.id,
        prompt=question.text,
        text=text,
        token_ids=ids,
        tokens_reference=reference,
        tokens_answer=tokens,
        passes=output.usage.forward_passes,
        seconds={part: round(getattr(output.timing, f"{part}_s"), 6) for part in ("model", "policy", "rest")},
        truncated=question.truncated,
        refreshes=refreshes,
        note=question.note,
    )


def read_answer(
    model: TextModel, ids: Sequence[int], *, until: Sequence[str], whole: bool = False
) -> tuple[str, int, int]:
    """The text of an answer, its tokens as the wrapper counts them, and those up to the end of text or a stop string.

    `whole`: counted before the cuts, as LLaDA's wrapper does it for HumanEval.
    """
    spec, codec = model.spec, model.codec
    counted = ids = [token for token in ids if token != spec.mask_id]  # left open behind an early stop
    text, cuts = codec.decode(ids, special=spec.convention == "dream" or not whole), tuple(until)
    if spec.convention == "dream":
        # The public code counts the text behind the cuts as well.
        cuts = (codec.token_text(spec.eos_id), *cuts)
    for string in cuts:
        text = text.partition(string)[0]
    if spec.convention != "dream" and not whole:
        # The end-of-text token is no stop string: text decoded behind it stays, and the last step drops the token.
        counted = codec.encode(text, special=False)
        text = codec.decode(counted)
    kept, _, _ = Ending(token_ids=spec.end_ids, strings=tuple(until), codec=codec).cut(ids)
    return text, sum(token != spec.eos_id for token in counted), len(kept)


def _compared(llm: Generator, question: Question, batch_size: int) -> Generation:
    """Monte Carlo estimates of ln p(continuation | prompt), as LLaDA's evaluation makes them.

    Greedy decoding is tried only where an item has one continuation: a choice among several does not need it.
    """
    start, values, passes, greedy = time.perf_counter(), list[float](), 0, False
    for prompt, continuation in zip(question.prompts, question.continuations, strict=True):
        samples = 1 if len(continuation) == 1 else LIKELIHOOD_SAMPLES  # one token can be masked in one way only
        values.append(llm.loglikelihood(prompt, continuation, samples=samples, batch_size=batch_size))
        passes += samples
        if len(question.prompts) == 1:
            settings = Settings(max_tokens=len(continuation), block_size=len(continuation))
            greedy = llm.generate(prompt, policy=policies.get("fixed"), settings=settings).canvas_ids == continuation
    return Generation(
        id=question.id,
        prompt=question.text,
        text=llm.codec.decode(question.continuations[max(range(len(values)), key=values.__getitem__)]),
        passes=passes,
        seconds={"model": round(time.perf_counter() - start, 6), "policy": 0.0, "rest": 0.0},
        truncated=question.truncated,
        note={"loglikelihoods": values, "greedy": [greedy] * len(values)},
    )
