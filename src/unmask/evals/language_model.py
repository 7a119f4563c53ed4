"""Our models as lm-eval knows language models: requests in, texts or log-likelihoods out.

Every finished item is handed to the cell's folder at once, and what lies there already is not computed again. Knows
nothing of tasks, except what their requests say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from unmask.engine.generator import Generator
from unmask.engine.load import load
from unmask.engine.plan import plan
from unmask.errors import UnmaskError
from unmask.evals.cell import Generation
from unmask.evals.prompts import Prompt, fitted_prompt, read_answer
from unmask.evals.store import CellFolder
from unmask.policies import Policy
from unmask.policies import get as get_policy
from unmask.settings import Settings
from unmask.types import Output

SHOT_END = "\x1e"  # put behind every shot by the harness, so that shots can be left out; never seen by a model
LIKELIHOOD_SAMPLES = 128


@register_model("unmask")
class UnmaskLM(LM):
    """A generator, a policy and settings behind lm-eval's interface.

    `pretrained` is a generator, or what `unmask.load` takes; further keywords are fields of Settings. The task's stop
    strings are applied, its wishes for lengths and sampling are not: those are the settings'.

    folder:    where items are kept; an item's number is `first_ids` of its task plus its number in the task
    on_item:   called with how many items are done, and of how many
    """

    def __init__(
        self,
        pretrained: str | Generator = "toy",
        *,
        policy: str | Policy | None = None,
        settings: Settings | None = None,
        template: str = "none",
        batch_size: int | str | None = 1,
        max_batch_size: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
        folder: CellFolder | None = None,
        first_ids: Mapping[str, int] | None = None,
        on_item: Callable[[int, int], None] | None = None,
        **fields: Any,
    ) -> None:
        super().__init__()
        del max_batch_size  # lm-eval passes it along; there is no size to find out
        if not str(batch_size or 1).isdecimal() or int(batch_size or 1) < 1:
            raise UnmaskError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
        self.batch_size = int(batch_size or 1)
        loaded = pretrained if isinstance(pretrained, Generator) else load(pretrained, device=device, dtype=dtype)
        self.llm: Generator = loaded
        self._job = plan(loaded.model, policy, settings, fields)
        self._template = template
        self._folder = folder
        self._first_ids = first_ids or {}
        self._on_item = on_item or (lambda done, total: None)

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Texts, cut as the public wrapper of the model's family cuts them."""
        numbers = self._numbers(requests)
        known = dict(self._folder.generations) if self._folder else {}
        waiting = {number: request for number, request in zip(numbers, requests, strict=True) if number not in known}
        items = set(numbers)
        self._on_item(len(items) - len(waiting), len(items))
        for batch in self._batches(waiting):
            prompts = [prompt for _, prompt in batch]
            until = self._until(waiting[batch[0][0]])
            outputs = self.llm.generate(
                [prompt.ids for prompt in prompts],
                policy=self._job.policy,
                settings=self._job.settings.with_(stop=until),
                batch_size=self.batch_size,
                timed=True,
            )
            done = [
                self._generation(number, waiting[number], prompt, output)
                for (number, prompt), output in zip(batch, outputs, strict=True)
            ]
            known |= {generation.id: generation for generation in done}
            if self._folder:
                self._folder.add(done)
            self._on_item(sum(number in known for number in items), len(items))
        return [known[number].text for number in numbers]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Monte Carlo estimates of ln p(continuation | context), as LLaDA's evaluation makes them, on raw text.

        All continuations of one item are written together. Whether a continuation is what greedy decoding gives is
        found out only where an item has no other: a choice among several does not ask for it.
        """
        numbers = self._numbers(requests)
        choices: dict[int, dict[int, Instance]] = {}
        for number, request in zip(numbers, requests, strict=True):
            choices.setdefault(number, {})[request.idx] = request
        known = dict(self._folder.generations) if self._folder else {}
        for done, (number, of_item) in enumerate(choices.items(), 1):
            if number not in known:
                known[number] = self._likelihoods(number, list(of_item.values()))
                if self._folder:
                    self._folder.add([known[number]])
            self._on_item(done, len(choices))
        found = {
            (number, index): (value, greedy)
            for number, of_item in choices.items()
            for index, value, greedy in zip(
                of_item, known[number].note["loglikelihoods"], known[number].note["greedy"], strict=True
            )
        }
        return [found[number, request.idx] for number, request in zip(numbers, requests, strict=True)]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError(
            "perplexity of running text is not defined for a masked diffusion model here: use tasks that generate, "
            "or that compare continuations"
        )

    def _numbers(self, requests: Sequence[Instance]) -> list[int]:
        """Of every request, its item's number; without a folder, requests of one item are told by task and document."""
        items: dict[tuple[Any, Any], int] = {}
        if self._folder:
            return [self._first_ids.get(str(request.task_name), 0) + (request.doc_id or 0) for request in requests]
        return [items.setdefault((request.task_name, request.doc_id), len(items)) for request in requests]

    def _batches(self, waiting: Mapping[int, Instance]) -> Iterator[list[tuple[int, Prompt]]]:
        """Items of like length and with the same stop strings, the longest first: memory runs out at once or never."""
        jobs = [(number, self._prompt(request)) for number, request in waiting.items()]
        jobs.sort(key=lambda job: (_stop_strings(waiting[job[0]]), -len(job[1].ids)))
        for _, alike in groupby(jobs, key=lambda job: _stop_strings(waiting[job[0]])):
            group = list(alike)
            for first in range(0, len(group), self.batch_size):
                yield group[first : first + self.batch_size]

    def _prompt(self, request: Instance) -> Prompt:
        *shots, question = request.args[0].split(SHOT_END)
        return fitted_prompt(
            self.llm.spec,
            self.llm.codec,
            shots=shots,
            question=question,
            template=self._template,
            new_tokens=self._job.max_tokens,
        )

    def _generation(self, number: int, request: Instance, prompt: Prompt, output: Output) -> Generation:
        stops = self._job.settings.stop_token_ids
        answer = read_answer(
            self.llm.spec,
            self.llm.codec,
            list(takewhile(lambda token: token not in stops, output.canvas_ids)),
            until=self._until(request),
            whole=self._is_whole(request),
        )
        assert output.timing is not None
        seconds = {"model": output.timing.model_s, "policy": output.timing.policy_s, "rest": output.timing.rest_s}
        return Generation(
            id=number,
            prompt=prompt.text,
            text=answer.text,
            token_ids=[token for token in output.canvas_ids if token != self.llm.spec.mask_id],
            tokens_reference=answer.tokens_reference,
            tokens_answer=answer.tokens_answer,
            passes=output.usage.forward_passes,
            seconds=seconds,
            truncated=prompt.truncated,
        )

    def _is_whole(self, request: Instance) -> bool:
        """LLaDA's wrapper leaves what chat models write for HumanEval uncut: text around the code is not its end."""
        return self._template == "chat" and str(request.doc.get("task_id", "")).lower().startswith("humaneval")

    def _until(self, request: Instance) -> tuple[str, ...]:
        """What ends a text: the settings' strings, and the task's where the protocol applies them."""
        return (*self._job.settings.stop, *(() if self._is_whole(request) else _stop_strings(request)))

    def _likelihoods(self, number: int, choices: list[Instance]) -> Generation:
        start = time.perf_counter()
        values, greedy, passes, prompt = [], [], 0, None
        for request in choices:
            prompt, continuation = self._pair(*request.args[:2])
            samples = 1 if len(continuation) == 1 else LIKELIHOOD_SAMPLES  # one token can be masked in one way only
            values.append(self.llm.loglikelihood(prompt.ids, continuation, samples=samples, batch_size=self.batch_size))
            passes += samples
            greedy.append(len(choices) == 1 and self._is_greedy(prompt.ids, continuation))
        assert prompt is not None
        best = max(range(len(values)), key=values.__getitem__)
        return Generation(
            id=number,
            prompt=prompt.text,
            text=choices[best].args[1],
            token_ids=[],
            tokens_reference=0,
            tokens_answer=0,
            passes=passes,
            seconds={"model": time.perf_counter() - start, "policy": 0.0, "rest": 0.0},
            truncated=prompt.truncated,
            note={"loglikelihoods": values, "greedy": greedy},
        )

    def _pair(self, context: str, continuation: str) -> tuple[Prompt, list[int]]:
        """The prompt and the continuation's ids, split as lm-eval splits them: spaces go with what follows."""
        *shots, question = context.split(SHOT_END)
        bare = question.rstrip()
        continuation = question[len(bare) :] + continuation
        codec = self.llm.codec
        after = codec.encode(bare + continuation, special=False)[len(codec.encode(bare, special=False)) :]
        prompt = fitted_prompt(self.llm.spec, codec, shots=shots, question=bare, template="none", new_tokens=len(after))
        return prompt, after

    def _is_greedy(self, prompt: list[int], continuation: list[int]) -> bool:
        length = len(continuation)
        settings = Settings(max_tokens=length, block_size=length)
        return self.llm.generate(prompt, policy=get_policy("fixed"), settings=settings).canvas_ids == continuation


def _stop_strings(request: Instance) -> tuple[str, ...]:
    until = request.args[1].get("until") or ()
    return (until,) if isinstance(until, str) else tuple(until)
