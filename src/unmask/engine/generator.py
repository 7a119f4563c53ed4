"""Text in, text out: what `unmask.load` returns.

Turns prompts into requests, gives them to the loop and reads the results back as text. Decides nothing about decoding:
that is for the loop and the policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Unpack, overload

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.cache.storage import StoragePool
from unmask.device import fast_module
from unmask.engine.decode import decode
from unmask.engine.likelihood import loglikelihood
from unmask.engine.plan import OF_BATCHES, Detail, plan, quantization_of
from unmask.engine.prompts import (
    Message,
    Prompt,
    as_batch,
    as_conversations,
    check_length,
    encode_prompt,
    new_trace,
    requests_for,
    token_rows,
)
from unmask.engine.run import events_of, failure, stream_of, watched
from unmask.engine.runner import Runner, TimedRunner, runner_for
from unmask.engine.scheduler import Request, Scheduler
from unmask.errors import UnmaskError, WrongOption
from unmask.models.base import LoadedModel
from unmask.policies import Policy
from unmask.settings import Settings, SettingsFields
from unmask.trace.record import Trace
from unmask.types import Output, StepEvent, StreamEvent


class RequestKeywords(SettingsFields, total=False):
    """What `stream` and `astream` take beside their first argument."""

    policy: str | Policy | None
    settings: Settings | None
    trace: bool | Detail


class Keywords(RequestKeywords, total=False):
    """What `generate`, `chat` and `infill` take, so that type checkers and editors know it behind `**options`."""

    batch_size: int
    timed: bool
    on_step: Callable[[StepEvent], None] | None
    on_output: Callable[[Output], None] | None


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
    def generate(self, prompt: str | Sequence[int], **options: Unpack[Keywords]) -> Output: ...

    @overload
    def generate(
        self, prompt: Sequence[str] | Sequence[Sequence[int]], **options: Unpack[Keywords]
    ) -> list[Output]: ...

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
        **shorthand: Unpack[SettingsFields],
    ) -> Output | list[Output]:
        """Continue a prompt, without a chat template: an Output, or a list of them for a list of prompts.

        Args:
            prompt: A text or its token ids, or a list of either.
            policy: The name of a policy, with the preset of the model's family, or a policy object. None: mean_field.
            settings: Everything else about decoding. Its fields may be given as keywords instead.
            trace: Record every pass in `Output.trace`; a Detail says how much of it.
            batch_size: Prompts decoded at a time.
            timed: Measure where the time goes, in `Output.timing`.
            on_step: Called with the event of every pass and prompt; `row` is the number of the prompt.
            on_output: Called with every output, in the order of the prompts.
            **shorthand: Any field of Settings: `max_tokens=64, block_size=32`. `help(unmask.Settings)` has them all.
        """
        prompts, single = as_batch(prompt)
        ids = [self._encode(one) for one in prompts]
        requests = requests_for(self._loaded, ids, policy=policy, settings=settings, trace=trace, **shorthand)
        outputs = self.run(requests, batch_size=batch_size, timed=timed, on_step=on_step, on_output=on_output)
        return outputs[0] if single else outputs

    @overload
    def chat(self, messages: Sequence[Message], **options: Unpack[Keywords]) -> Output: ...

    @overload
    def chat(self, messages: Sequence[Sequence[Message]], **options: Unpack[Keywords]) -> list[Output]: ...

    def chat(
        self, messages: Sequence[Message] | Sequence[Sequence[Message]], **options: Unpack[Keywords]
    ) -> Output | list[Output]:
        """Answer a conversation through the checkpoint's chat template; a list of conversations gives a list.

        Options are those of `generate`.
        """
        conversations, single = as_conversations(messages)
        outputs = self.generate([self.codec.chat(one) for one in conversations], **options)
        return outputs[0] if single else outputs

    @overload
    def infill(self, text: str | Sequence[int], **options: Unpack[Keywords]) -> Output: ...

    @overload
    def infill(self, text: Sequence[str] | Sequence[Sequence[int]], **options: Unpack[Keywords]) -> list[Output]: ...

    def infill(self, text: Prompt | Sequence[Prompt], **options: Unpack[Keywords]) -> Output | list[Output]:
        """Fill every mask in the text; the output has the whole text and its token ids, with the holes filled.

        Options are those of `generate`.
        """
        texts, single = as_batch(text)
        ids = [self._encode(one, special=False) for one in texts]
        of_run: Any = {name: options.pop(name) for name in OF_BATCHES if name in options}
        outputs = self.run(requests_for(self._loaded, ids, infill=True, **options), **of_run)
        return outputs[0] if single else outputs

    def stream(
        self, prompt: Prompt | Sequence[Message] | Request, **options: Unpack[RequestKeywords]
    ) -> Iterator[StreamEvent]:
        """Continue one prompt, or answer one conversation, piece by piece; or decode a request made by `request`.

        The pieces add up to the text of the last event's output. Options are `policy`, `settings`, `trace` and the
        fields of Settings, as in `generate`. `trace` records every pass: the numbers are in the events, and the output
        has the trace.
        """
        if isinstance(prompt, Request) and options:
            raise UnmaskError(f"a request has its options already, got {', '.join(options)} for it")
        request = prompt if isinstance(prompt, Request) else self.request(prompt, **options)
        return stream_of(request, self._runner())

    async def astream(
        self, prompt: Prompt | Sequence[Message], **options: Unpack[RequestKeywords]
    ) -> AsyncIterator[StreamEvent]:
        """As `stream`, for `async for`; the model works in a thread. Leaving the `async for` ends the generation."""
        events = self.stream(prompt, **options)
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
        infill: bool = False,
        **options: Unpack[RequestKeywords],
    ) -> Request:
        """One prompt to continue, or one conversation to answer, for `decode`; raises if it cannot be decoded.

        With a suffix, the text between prompt and suffix is decoded; with `infill`, the masks in the prompt. Other
        options are those of `stream`.
        """
        given: Any = prompt
        messages = isinstance(given, list | tuple) and len(given) > 0 and isinstance(given[0], dict)
        ids = self.codec.chat(given) if messages and not infill else self._encode(given, special=not infill)
        after = [] if suffix is None else self._encode(suffix, special=False, begins=False)
        return requests_for(self._loaded, [ids], suffix=after, infill=infill, **options)[0]

    def run(
        self,
        requests: Sequence[Request],
        *,
        batch_size: int = 32,
        timed: bool = False,
        on_step: Callable[[StepEvent], None] | None = None,
        on_output: Callable[[Output], None] | None = None,
    ) -> list[Output]:
        """Decode requests made by `request`, the longest first; in their order if `on_output` is given.

        Options are those of `generate`. If a request fails, the others are decoded before its error is raised.
        """
        if batch_size < 1:
            raise WrongOption("batch_size", f"must be at least 1, got {batch_size}")
        order = list(range(len(requests)))
        if on_output is None:
            order.sort(key=lambda index: -requests[index].canvas.length)
        outputs: dict[int, Output] = {}
        errors: dict[int, UnmaskError] = {}
        told, clock = 0, TimedRunner(self.model, self._pool) if timed else None
        events = decode(Scheduler([requests[index] for index in order], rows=batch_size), clock or self._runner())
        for event in watched(events, len(requests)):
            index = order[event.row]
            output = requests[index].hear(event)
            if on_step is not None:
                on_step(replace(event, row=index))
            if event.error is not None:
                errors[index] = event.error
            elif output is not None:
                outputs[index] = replace(output, timing=None if clock is None else clock.spent[event.row])
            while on_output is not None and told in outputs:
                on_output(outputs[told])
                told += 1
        if errors:
            raise failure(errors, len(requests))
        return [outputs[index] for index in range(len(requests))]

    def decode(self, scheduler: Scheduler) -> Iterator[tuple[Request, StreamEvent]]:
        """Decode the scheduler's requests, also requests added meanwhile, until none is left.

        There is one event per request and pass. The last event of a request has its output or, in `step.error`, the
        reason why it could not be decoded. The output of an abandoned request means nothing; a request that was
        abandoned before it began has one event without a step. An error of the model or the device ends all requests.
        """
        return events_of(scheduler, self._runner())

    def new_trace(self, request: Request) -> Trace:
        """A trace of the request without passes: call it before the request is decoded."""
        return new_trace(self._loaded, request)

    @torch.no_grad()
    def forward(self, token_ids: Sequence[Any] | Tensor) -> Float[Tensor, "b n v"]:
        """float32 logits of every position, aligned with positions; the mask token's logits are not suppressed."""
        tokens = token_rows(token_ids, self.spec.vocab_size, self.model.device)
        check_length(self.spec, tokens.shape[1], 0)
        return self.model.predict(tokens).logits.float()

    def loglikelihood(
        self, prompt: Prompt, continuation: Prompt, *, samples: int = 128, seed: int = 0, batch_size: int = 32
    ) -> float:
        """Monte Carlo estimate of ln p(continuation | prompt), as LLaDA's evaluation does it."""
        before = self._encode(prompt)
        after = self._encode(continuation, special=False, begins=False)
        check_length(self.spec, len(before), len(after))
        return loglikelihood(self.model, before, after, samples=samples, seed=seed, batch_size=batch_size)

    def warmup(
        self,
        *,
        prompt_tokens: int = 512,
        batch_size: int = 1,
        policy: str | Policy | None = None,
        settings: Settings | None = None,
        **shorthand: Unpack[SettingsFields],
    ) -> None:
        """Do what the first requests would wait for: compile kernels, take memory, capture graphs.

        For prompts of up to `prompt_tokens`, up to `batch_size` at a time, with these options; prompts of exactly that
        length are the fastest. Longer prompts work as well: their passes are captured as they come up. Does nothing
        without a CUDA device, or where kernels are off.
        """
        for name, value in (("prompt_tokens", prompt_tokens), ("batch_size", batch_size)):
            if value < 1:
                raise WrongOption(name, f"must be at least 1, got {value}")
        job = plan(self.model, policy, settings, shorthand)
        check_length(self.spec, prompt_tokens, job.max_tokens)
        cuda = fast_module("unmask.engine.cuda.warmup", self.model.device)
        if cuda is not None:
            cuda.warm_up(self._runner(), job, prompt_tokens=prompt_tokens, rows=batch_size)

    @property
    def _loaded(self) -> LoadedModel:
        return LoadedModel(model=self.model, codec=self.codec)

    def _runner(self) -> Runner:
        return runner_for(self.model, self._pool)

    def _encode(self, prompt: Prompt, *, special: bool = True, begins: bool = True) -> list[int]:
        return encode_prompt(self.spec, self.codec, prompt, special=special, begins=begins)
