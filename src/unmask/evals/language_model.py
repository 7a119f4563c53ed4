"""Our models as lm-eval knows language models: `lm_eval.simple_evaluate(model=UnmaskLM(...))`."""

from __future__ import annotations

from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from unmask.engine.generator import Generator
from unmask.engine.load import load
from unmask.engine.plan import plan
from unmask.errors import UnmaskError
from unmask.evals.executor import answer
from unmask.evals.harness import question_of, responses_of
from unmask.evals.loop import batches
from unmask.policies import Policy
from unmask.settings import Settings


@register_model("unmask")
class UnmaskLM(LM):
    """A generator, a policy and settings behind lm-eval's interface.

    `pretrained` is a generator, or what `unmask.load` takes; further keywords are fields of Settings. The task's stop
    strings are applied, its wishes for lengths and sampling are not: those are the settings'.
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
        **fields: Any,
    ) -> None:
        super().__init__()
        del max_batch_size  # lm-eval passes it along; there is no size to find out
        if not str(batch_size or 1).isdecimal() or int(batch_size or 1) < 1:
            raise UnmaskError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
        self.batch_size = int(batch_size or 1)
        loaded = pretrained if isinstance(pretrained, Generator) else load(pretrained, device=device, dtype=dtype)
        self.llm: Generator = loaded
        self._plan = plan(loaded.model, policy, settings, fields)
        self._template = template

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Texts, cut as the public wrapper of the model's family cuts them."""
        return self._answers(requests)

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Estimates of ln p(continuation | context), and whether greedy decoding gives the continuation."""
        return self._answers(requests)

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError(
            "perplexity of running text is not defined for a masked diffusion model here: use tasks that generate, "
            "or that compare continuations"
        )

    def _answers(self, requests: list[Instance]) -> list[Any]:
        chosen = self._plan
        questions = [
            question_of([request], self.llm, id=number, template=self._template, new_tokens=chosen.max_tokens)
            for number, request in enumerate(requests)
        ]
        cut = batches(questions, policy=chosen.policy, settings=chosen.settings, batch_size=self.batch_size)
        responses = {row.id: responses_of(row, 1)[0] for batch in cut for row in answer(self.llm, batch)}
        return [responses[number] for number in range(len(requests))]
