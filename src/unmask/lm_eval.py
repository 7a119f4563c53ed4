"""Our models as lm-eval knows language models: `lm_eval.simple_evaluate(model=UnmaskLM(...))`, and lm-eval's command.

lm-eval asks no entry points for models, so ours must be registered in the process of its command:
`python -m unmask.lm_eval --model unmask ...`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import groupby
from typing import Any

from unmask.engine.generator import Generator
from unmask.engine.load import load
from unmask.engine.plan import plan
from unmask.errors import UnmaskError
from unmask.evals.executor import answer, batches
from unmask.evals.harness import question_of, responses_of
from unmask.policies import Policy, named
from unmask.settings import Settings

MISSING = "unmask: lm-eval needs {}, which is missing: pip install 'unmask[eval]'"

try:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ModuleNotFoundError as error:
    if __name__ != "__main__":
        raise
    sys.exit(MISSING.format(error.name))


@register_model("unmask")
class UnmaskLM(LM):
    """A generator, a policy and settings behind lm-eval's interface.

    `pretrained` is a generator, or what `unmask.load` takes; further keywords are fields of Settings. A task's stop
    strings apply. Its lengths and sampling do not: the settings decide these.
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
        del max_batch_size  # lm-eval passes it, for a search for the largest batch; there is none here
        if not str(batch_size or 1).isdecimal() or int(batch_size or 1) < 1:
            raise UnmaskError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
        self.batch_size = int(batch_size or 1)
        loaded = pretrained if isinstance(pretrained, Generator) else load(pretrained, device=device, dtype=dtype)
        self.llm: Generator = loaded
        policy = named(policy) if isinstance(policy, str) else policy
        self._plan = plan(loaded.model, policy, settings, fields)
        self._template = template

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Texts, cut as the public wrapper of the model's family cuts them."""
        return self._answers(requests, lambda request: (request.task_name, request.doc_id, request.idx))

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Estimates of ln p(continuation | context); for a lone continuation, whether greedy decoding gives it."""
        return self._answers(requests, lambda request: (request.task_name, request.doc_id))

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError(
            "perplexity of running text is not defined for a masked diffusion model here: use tasks that generate, "
            "or that compare continuations"
        )

    def _answers(self, requests: list[Instance], item_of: Callable[[Instance], Any]) -> list[Any]:
        """The response to each request. The requests of an item, which lm-eval puts side by side, are one question."""
        chosen, items = self._plan, [list(found) for _, found in groupby(requests, key=item_of)]
        questions = [
            question_of(item, self.llm, id=number, template=self._template, new_tokens=chosen.max_tokens)
            for number, item in enumerate(items)
        ]
        cut = batches(questions, policy=chosen.policy, settings=chosen.settings, batch_size=self.batch_size)
        rows = {row.id: row for batch in cut for row in answer(self.llm, batch)}
        return [response for number, item in enumerate(items) for response in responses_of(rows[number], len(item))]


def main() -> None:
    """Run lm-eval's command line and exit."""
    try:
        from lm_eval.__main__ import cli_evaluate

        cli_evaluate()
    except ModuleNotFoundError as error:
        sys.exit(MISSING.format(error.name))
    except UnmaskError as error:
        sys.stderr.write(f"unmask: {error}\n")
        sys.exit(error.status)


if __name__ == "__main__":
    main()
