"""Text in, text out: what `unmask.load` returns.

Turns prompts into canvases, runs the loop and reads the result back as text. All decoding decisions are the loop's
and the policy's; everything here is about names, defaults and where a text ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, overload

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.cache.kv import StoragePool
from unmask.engine.canvas import Canvas
from unmask.engine.clock import Clock
from unmask.engine.decode import Arrivals, decode
from unmask.engine.figures import Detail
from unmask.engine.flow import Request, flow
from unmask.engine.likelihood import loglikelihood
from unmask.engine.output import continued, filled, is_complete
from unmask.engine.prompts import Message, Prompt, as_batch, as_conversations, first_ids, token_list, token_rows
from unmask.engine.request import Plan, check_compatible, plan, quantization_of
from unmask.engine.warmup import rehearsals
from unmask.errors import UnmaskError
from unmask.models.base import LoadedModel, expect
from unmask.policies import Policy
from unmask.settings import Settings
from unmask.trace.record import Trace
from unmask.types import Output, StepEvent, StreamEvent


class Generator:
    """A loaded model, its tokenizer, and every way to decode with them.

    Options are the same everywhere: `policy` is a name (with the preset of the model's family) or a policy object;
    `settings` is a Settings object, and any field of it may be given as a keyword instead.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self.model = loaded.model
        self.codec = loaded.codec
        self.spec = loaded.model.spec
        self._pool = StoragePool()

    def __repr__(self) -> str:
        quantize = quantization_of(self.model)
        weights = "" if quantize is None else f", {quantize} weights"
        return f"<unmask.Generator: {self.spec.name} on {self.model.device}, {self.model.dtype}{weights}>"

    @overload
    def generate(self, prompt: str | Sequence[int], **options: Any) -> Output: ...

    @overload
    def generate(self, prompt: Sequence[str] | Sequence[Sequence[int]], **options: Any) -> list[Output]: ...

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        policy: str | Policy | None = None,
        settings: Settings | None = None,
        trace: bool | Detail = False,
        batch_size: int = 32,
        timed: bool = False,
        on_step: Callable[[StepEvent], None] | None = None,
        on_output: Callable[[Output], None] | None = None,
        **shorthand: Any,
    ) -> Output | list[Output]:
        """Continue a prompt, without a chat template: an Output, or a list of them for a list of prompts."""
        prompts, single = as_batch(prompt)
        outputs = self._continue(
            [self._encode(p) for p in prompts],
            policy,
            settings,
            shorthand,
            trace,
            batch_size,
            timed,
            on_step,
            on_output,
        )
        return outputs[0] if single else outputs

    @overload
    def chat(self, messages: Sequence[Message], **options: Any) -> Output: ...

    @overload
    def chat(self, messages: Sequence[Sequence[Message]], **options: Any) -> list[Output]: ...

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        *,
        policy: str | Policy | None = None,
        settings: Settings | None = None,
        trace: bool | Detail = False,
        batch_size: int = 32,
        timed: bool = False,
        on_step: Callable[[StepEvent], None] | None = None,
        on_output: Callable[[Output], None] | None = None,
        **shorthand: Any,
    ) -> Output | list[Output]:
        """Answer a conversation through the checkpoint's chat template; a list of conversations gives a list."""
        conversations, single = as_conversations(messages)
        ids = [self.codec.chat(conversation) for conversation in conversations]
        outputs = self._continue(ids, policy, settings, shorthand, trace, batch_size, timed, on_step, on_output)
        return outputs[0] if single else outputs

    @overload
    def infill(self, text: str | Sequence[int], **options: Any) -> Output: ...

    @overload
    def infill(self, text: Sequence[str] | Sequence[Sequence[int]], **options: Any) -> list[Output]: ...

    def infill(
        self,
        text: Prompt | Sequence[Prompt],
        *,
        policy: str | Policy | None = None,
        settings: Settings | None = None,
        trace: bool | Detail = False,
        batch_size: int = 32,
        timed: bool = False,
        on_step: Callable[[StepEvent], None] | None = None,
        on_output: Callable[[Output], None] | None = None,
        **shorthand: Any,
    ) -> Output | list[Output]:
        """Fill every mask in the text; the output's text and token ids are the whole of it, holes filled."""
        texts, single = as_batch(text)
        for name in ("max_tokens", "stop", "stop_token_ids"):
            if shorthand.get(name) or (settings is not None and getattr(settings, name)):
                raise UnmaskError(f"infill fills the masks that are there: {name} does not apply")
        job = plan(self.spec, policy, settings, shorthand)
        canvases = []
        for item in texts:
            ids = self._encode(item, special=False)
            if self.spec.mask_id not in ids:
                mask = self.codec.token_text(self.spec.mask_id)
                raise UnmaskError(f"the text has no mask to fill; write {mask} for each token that is missing")
            self._check_length(len(ids), 0)
            canvas = Canvas(tokens=ids, mask_id=self.spec.mask_id, block_size=job.block_size, seed=job.settings.seed)
            canvases.append(canvas)
        outputs = self._run(canvases, job, trace, batch_size, timed, on_step, on_output, self._filled)
        return outputs[0] if single else outputs

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        *,
        policy: str | Policy | None = None,
        settings: Settings | None = None,
        **shorthand: Any,
    ) -> Iterator[StreamEvent]:
        """Continue one prompt, or answer one conversation, piece by piece.

        The pieces add up to the text of the last event's output.
        """
        request = self.request(prompt, policy=policy, settings=settings, **shorthand)
        return (request.heard(step) for step in self._decode([request.canvas], request.plan))

    async def astream(
        self,
        prompt: Prompt | Sequence[Message],
        *,
        policy: str | Policy | None = None,
        settings: Settings | None = None,
        **shorthand: Any,
    ) -> AsyncIterator[StreamEvent]:
        """As `stream`, for `async for`; the model works in a thread, and leaving the loop ends the generation."""
        events = self.stream(prompt, policy=policy, settings=settings, **shorthand)
        pending: asyncio.Future[Any] | None = None
        try:
            while True:
                pending = asyncio.ensure_future(asyncio.to_thread(next, events, None))
                event = await asyncio.shield(pending)
                if event is None:
                    return
                yield event
        finally:
            if pending is not None and not pending.done():  # cancelled in the middle of a forward pass
                await asyncio.wait([pending])
            events.close()  # ty: ignore[missing-attribute]

    def request(
        self,
        prompt: Prompt | Sequence[Message],
        *,
        suffix: Prompt | None = None,
        policy: str | Policy | None = None,
        settings: Settings | None = None,
        **shorthand: Any,
    ) -> Request:
        """One prompt to continue, or one conversation to answer, for `flow`; what is wrong with it is said here.

        With a suffix, the text between prompt and suffix is asked for.
        """
        job = plan(self.spec, policy, settings, shorthand)
        check_compatible(job.policy, self.model, job.settings)
        messages = isinstance(prompt, list | tuple) and len(prompt) > 0 and isinstance(prompt[0], dict)
        ids = self.codec.chat(prompt) if messages else self._encode(prompt)  # ty: ignore[invalid-argument-type]
        after = [] if suffix is None else self._encode(suffix, special=False, begins=False)
        return Request(self._open_canvas(ids, job, after), job, job.ending(self.spec, self.codec))

    def flow(self, waiting: deque[Request], *, rows: int = 8) -> Iterator[tuple[Request, StreamEvent]]:
        """Decode the requests that wait, and those that come to wait meanwhile, up to `rows` at a time.

        They are taken from the left, in turn; a new one joins the batch under way when it is of the same policy and
        settings and a row is free. One event per request and pass; the last has its output, which means nothing if it
        was abandoned, and is None if it was before it began. Ends when nobody is left. An error ends it too, for all
        that it had taken.
        """
        return flow(waiting, self._decode, rows=rows, codec=self.codec)

    @torch.no_grad()
    def forward(self, token_ids: Sequence[Any] | Tensor) -> Float[Tensor, "b n v"]:
        """float32 logits of every position, aligned with positions, the mask token's untouched."""
        tokens = token_rows(token_ids, self.spec.vocab_size, self.model.device)
        self._check_length(tokens.shape[1], 0)
        return self.model.predict(tokens).logits.float()

    def loglikelihood(
        self, prompt: Prompt, continuation: Prompt, *, samples: int = 128, seed: int = 0, batch_size: int = 32
    ) -> float:
        """Monte Carlo estimate of ln p(continuation | prompt), as LLaDA's evaluation does it."""
        before = self._encode(prompt)
        after = self._encode(continuation, special=False, begins=False)
        self._check_length(len(before), len(after))
        return loglikelihood(self.model, before, after, samples=samples, seed=seed, batch_size=batch_size)

    def warmup(
        self,
        *,
        prompt_tokens: int = 512,
        batch_size: int = 1,
        policy: str | Policy | None = None,
        settings: Settings | None = None,
        **shorthand: Any,
    ) -> None:
        """Do what the first requests would wait for: compile kernels, take memory, capture graphs.

        For prompts of up to `prompt_tokens`, up to `batch_size` at a time, with these options; those of just that
        length are the fastest. Longer ones work as well: what they need is captured as it comes up. Does nothing where
        there is no CUDA device.
        """
        for name, value in (("prompt_tokens", prompt_tokens), ("batch_size", batch_size)):
            if value < 1:
                raise UnmaskError(f"{name} must be at least 1, got {value}")
        job = plan(self.spec, policy, settings, shorthand)
        check_compatible(job.policy, self.model, job.settings)
        self._check_length(prompt_tokens, job.max_tokens)
        if self.model.device.type != "cuda":
            return
        cached = job.settings.cache != "none"
        for found in rehearsals(prompt_tokens, job.max_tokens, batch_size, job.policy, cached=cached):
            canvases = [self._open_canvas([self.spec.eos_id] * length, job) for length in found.prompts]
            if found.expected:
                expect(self.model, len(canvases), len(canvases[0].tokens))
            # No text ends early: a block that is never reached would be captured by the first request that does.
            play = partial(self._decode, job=replace(job, policy=found.policy), ended=lambda _: False)
            found.play(canvases, play)

    def _encode(self, prompt: Prompt, *, special: bool = True, begins: bool = True) -> list[int]:
        """Token ids of a prompt, or of a text that does not begin a canvas."""
        if not isinstance(prompt, str):
            return token_list(prompt, self.spec.vocab_size)
        if begins:
            return first_ids(self.spec, self.codec, prompt, special=special)
        return self.codec.encode(prompt, special=special)

    def _check_length(self, prompt: int, new: int) -> None:
        if prompt + new > self.spec.max_length:
            extra = f" and {new} to generate" if new else ""
            raise UnmaskError(
                f"{prompt} tokens{extra} are more than the {self.spec.max_length} positions of {self.spec.name}"
            )

    def _open_canvas(self, prompt: list[int], job: Plan, suffix: Sequence[int] = ()) -> Canvas:
        """A canvas with the prompt, the masks to fill after it, and what follows them."""
        if self.spec.mask_id in prompt or self.spec.mask_id in suffix:
            mask = self.codec.token_text(self.spec.mask_id)
            raise UnmaskError(f"the prompt contains the mask token {mask}; to fill masks inside a text, use infill")
        self._check_length(len(prompt) + len(suffix), job.max_tokens)
        return Canvas.continuing(
            prompt,
            job.max_tokens,
            mask_id=self.spec.mask_id,
            block_size=job.block_size,
            seed=job.settings.seed,
            suffix=suffix,
        )

    def _continue(
        self,
        prompts: list[list[int]],
        policy: str | Policy | None,
        settings: Settings | None,
        shorthand: dict[str, Any],
        trace: bool | Detail,
        batch_size: int,
        timed: bool,
        on_step: Callable[[StepEvent], None] | None,
        on_output: Callable[[Output], None] | None,
    ) -> list[Output]:
        job = plan(self.spec, policy, settings, shorthand)
        canvases = [self._open_canvas(ids, job) for ids in prompts]
        return self._run(canvases, job, trace, batch_size, timed, on_step, on_output, self._continued)

    def _run(
        self,
        canvases: list[Canvas],
        job: Plan,
        trace: bool | Detail,
        batch_size: int,
        timed: bool,
        on_step: Callable[[StepEvent], None] | None,
        on_output: Callable[[Output], None] | None,
        read: Callable[[Canvas, Plan], Output],
    ) -> list[Output]:
        """Decode in batches; every canvas has been checked before the first one is decoded.

        Batches are of like length, unless somebody waits for outputs one by one: then they are in the order given.
        """
        if batch_size < 1:
            raise UnmaskError(f"batch_size must be at least 1, got {batch_size}")
        if not isinstance(trace, bool | Detail):
            raise UnmaskError(f"trace must be true, false or a Detail, got {trace!r}; a file is written by trace.save")
        detail = trace if isinstance(trace, Detail) else Detail() if trace else None
        traces = [self._new_trace(canvas, job) for canvas in canvases] if detail else None
        outputs: dict[int, Output] = {}
        order = list(range(len(canvases)))
        if on_output is None:
            order.sort(key=lambda index: len(canvases[index].tokens))
        for first in range(0, len(order), batch_size):
            batch = order[first : first + batch_size]
            clock = Clock(self.model.device, len(batch)) if timed else None
            for event in self._decode([canvases[index] for index in batch], job, detail=detail, clock=clock):
                index = batch[event.row]
                if traces:
                    traces[index].add(replace(event, row=0), self.codec.token_text)
                if on_step:
                    on_step(replace(event, row=index))
            read_back = [read(canvases[index], job) for index in batch]
            if clock:
                timings = zip(read_back, clock.stop(), strict=True)
                read_back = [replace(output, timing=timing) for output, timing in timings]
            if traces:
                read_back = [self._with_trace(o, traces[i]) for o, i in zip(read_back, batch, strict=True)]
            for index, output in zip(batch, read_back, strict=True):
                outputs[index] = output
                if on_output:
                    on_output(output)
        return [outputs[index] for index in range(len(canvases))]

    def _decode(
        self,
        canvases: list[Canvas],
        job: Plan,
        *,
        ended: Callable[[Canvas], bool] | None = None,
        detail: Detail | None = None,
        clock: Clock | None = None,
        arrivals: Arrivals | None = None,
        rows: int | None = None,
    ) -> Iterator[StepEvent]:
        ending = job.ending(self.spec, self.codec)
        options: dict[str, Any] = {"detail": detail, "clock": clock, "arrivals": arrivals, "rows": rows}
        options["ended"] = ended or (lambda canvas: is_complete(canvas, ending))
        return decode(self.model, canvases, job.policy, job.settings, pool=self._pool, **options)

    def _continued(self, canvas: Canvas, job: Plan) -> Output:
        return continued(canvas, job.ending(self.spec, self.codec))

    def _filled(self, canvas: Canvas, job: Plan) -> Output:
        return filled(canvas, self.codec)

    def _new_trace(self, canvas: Canvas, job: Plan) -> Trace:
        # A continuation's own masks are not part of its prompt; those inside an infilled text are.
        prompt = canvas.tokens[: canvas.holes[0]] if canvas.continues else canvas.tokens
        text = self.codec.decode(prompt, special=True)
        return Trace(header=job.header(self.model) | {"prompts": [{"text": text, "token_ids": list(prompt)}]})

    def _with_trace(self, output: Output, trace: Trace) -> Output:
        plain = output.to_dict()
        trace.results.append({"row": 0, **{key: plain[key] for key in ("text", "finish_reason", "usage")}})
        return replace(output, trace=trace)
