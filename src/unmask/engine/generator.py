"""Text in, text out: what `unmask.load` returns.

Turns prompts into requests, gives them to the loop and reads the results back as text. Decides nothing about decoding:
that is for the loop and the policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Unpack, overload

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.cache.storage import StoragePool
from unmask.device import fast_module
from unmask.engine.detail import Detail
from unmask.engine.keywords import Keywords
from unmask.engine.likelihood import loglikelihood
from unmask.engine.plan import plan, quantization_of
from unmask.engine.prompts import Message, Prompt, as_batch, as_conversations, encode_prompt, token_rows
from unmask.engine.requests import check_infill, check_length, continuing, detail_of, infilling, new_trace
from unmask.engine.run import dropped, events_of, outputs_of
from unmask.engine.runner import Runner, runner_for
from unmask.engine.scheduler import Request, Scheduler
from unmask.engine.timed import TimedRunner
from unmask.errors import WrongOption
from unmask.models.base import LoadedModel
from unmask.policies import Policy
from unmask.settings import Settings, SettingsFields
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
        job, detail = plan(self.model, policy, settings, shorthand), detail_of(trace)
        requests = [continuing(self._loaded, self._encode(p), job, detail) for p in prompts]
        outputs = self.run(requests, batch_size=batch_size, timed=timed, on_step=on_step, on_output=on_output)
        return outputs[0] if single else outputs

    @overload
    def chat(self, messages: Sequence[Message], **options: Unpack[Keywords]) -> Output: ...

    @overload
    def chat(self, messages: Sequence[Sequence[Message]], **options: Unpack[Keywords]) -> list[Output]: ...

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
        **shorthand: Unpack[SettingsFields],
    ) -> Output | list[Output]:
        """Answer a conversation through the checkpoint's chat template; a list of conversations gives a list.

        Options are those of `generate`.
        """
        conversations, single = as_conversations(messages)
        job, detail = plan(self.model, policy, settings, shorthand), detail_of(trace)
        requests = [continuing(self._loaded, self.codec.chat(one), job, detail) for one in conversations]
        outputs = self.run(requests, batch_size=batch_size, timed=timed, on_step=on_step, on_output=on_output)
        return outputs[0] if single else outputs

    @overload
    def infill(self, text: str | Sequence[int], **options: Unpack[Keywords]) -> Output: ...

    @overload
    def infill(self, text: Sequence[str] | Sequence[Sequence[int]], **options: Unpack[Keywords]) -> list[Output]: ...

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
        **shorthand: Unpack[SettingsFields],
    ) -> Output | list[Output]:
        """Fill every mask in the text; the output has the whole text and its token ids, with the holes filled.

        Options are those of `generate`.
        """
        texts, single = as_batch(text)
        check_infill(None, settings, shorthand)
        job, detail = plan(self.model, policy, settings, shorthand), detail_of(trace)
        requests = [infilling(self._loaded, self._encode(one, special=False), job, detail) for one in texts]
        outputs = self.run(requests, batch_size=batch_size, timed=timed, on_step=on_step, on_output=on_output)
        return outputs[0] if single else outputs

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        *,
        policy: str | Policy | None = None,
        settings: Settings | None = None,
        trace: bool | Detail = False,
        **shorthand: Unpack[SettingsFields],
    ) -> Iterator[StreamEvent]:
        """Continue one prompt, or answer one conversation, piece by piece.

        The pieces add up to the text of the last event's output. `trace` records every pass: the numbers are in the
        events, and the output has the trace.
        """
        request = self.request(prompt, policy=policy, settings=settings, trace=trace, **shorthand)
        return (event for _, event in events_of(Scheduler([request], rows=1), self._runner()))

    async def astream(
        self,
        prompt: Prompt | Sequence[Message],
        *,
        policy: str | Policy | None = None,
        settings: Settings | None = None,
        trace: bool | Detail = False,
        **shorthand: Unpack[SettingsFields],
    ) -> AsyncIterator[StreamEvent]:
        """As `stream`, for `async for`; the model works in a thread. Leaving the `async for` ends the generation."""
        events = self.stream(prompt, policy=policy, settings=settings, trace=trace, **shorthand)
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
        policy: str | Policy | None = None,
        settings: Settings | None = None,
        trace: bool | Detail = False,
        **shorthand: Unpack[SettingsFields],
    ) -> Request:
        """One prompt to continue, or one conversation to answer, for `decode`; raises if it cannot be decoded.

        With a suffix, the text between prompt and suffix is decoded; with `infill`, the masks in the prompt. `trace` is
        that of `stream`.
        """
        if infill:
            check_infill(suffix, settings, shorthand)
        job = plan(self.model, policy, settings, shorthand)
        if infill:
            ids = self._encode(prompt, special=False)  # ty: ignore[invalid-argument-type]
            return infilling(self._loaded, ids, job, detail_of(trace))
        messages = isinstance(prompt, list | tuple) and len(prompt) > 0 and isinstance(prompt[0], dict)
        ids = self.codec.chat(prompt) if messages else self._encode(prompt)  # ty: ignore[invalid-argument-type]
        after = [] if suffix is None else self._encode(suffix, special=False, begins=False)
        return continuing(self._loaded, ids, job, detail_of(trace), after)

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
        runner = TimedRunner(self.model, self._pool) if timed else self._runner()
        return outputs_of(requests, runner, batch_size=batch_size, on_step=on_step, on_output=on_output)

    def decode(self, scheduler: Scheduler) -> Iterator[tuple[Request, StreamEvent]]:
        """Decode the scheduler's requests, also requests added meanwhile, until none is left.

        There is one event per request and pass. The last event of a request has its output or, in `step.error`, the
        reason why it could not be decoded. The output of an abandoned request means nothing; a request that was
        abandoned before it began has one event without a step. An error of the model or the device ends all requests.
        """
        for pair in events_of(scheduler, self._runner(), failing_alone=True):
            yield pair
            yield from dropped(scheduler)
        yield from dropped(scheduler)

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
