"""What the joint rule's risk says, beside what happens: python examples/joint_risk.py [--items N] [--risk R]

The rule bounds, by the model's own probabilities, the chance that a token which it commits as certain is wrong beside
the pivot. Here the pivot is committed alone, the model is asked again, and the certain tokens are looked up. One line
for each task of the tiny suite, over the passes that commit both: how many of a pass's certain tokens are wrong by the
bound, and by the model's new answer (both sums of chances), and how often one is no longer the likeliest.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

import unmask
from unmask import policies
from unmask.cache.base import PassPlan
from unmask.evals.tiny_suite import find
from unmask.types import StepView

TASKS = ("sudoku", "word_problems", "list_functions", "countdown-3", "countdown-4")


class Rows:
    """The canvases of some items, decoded block by block."""

    def __init__(self, llm: unmask.Generator, task: str, items: int) -> None:
        known = find(task)
        requests = [
            llm.request(item.prompt, max_tokens=known.max_tokens, block_size=known.block_size)
            for item in known.generate(21, items)
        ]
        self.llm, self.canvases = llm, [request.canvas for request in requests]

    @torch.inference_mode()
    def predict(self, changes: list[dict[int, int]]) -> list[Tensor]:
        """The probabilities in each row's block, once the changes are written."""
        spec, lengths = self.llm.spec, [canvas.length for canvas in self.canvases]
        tokens = torch.full((len(lengths), max(lengths)), spec.eos_id, device=self.llm.model.device)
        for row, (canvas, change) in enumerate(zip(self.canvases, changes, strict=True)):
            written = [change.get(at, token) for at, token in enumerate(canvas.tokens)]
            tokens[row, : canvas.length] = torch.tensor(written)
        logits = self.llm.model.predict(tokens, plan=PassPlan.whole(lengths, tokens.device)).logits.float()
        logits[..., spec.mask_id] = -torch.inf
        return [logits[row, slice(*canvas.block)].softmax(-1) for row, canvas in enumerate(self.canvases)]

    def drop_finished(self) -> bool:
        self.canvases = [canvas for canvas in self.canvases if not canvas.finished]
        return bool(self.canvases)


def measure(llm: unmask.Generator, task: str, items: int, risk: float) -> dict[str, float]:
    """Means over the passes that commit a pivot and certain tokens: what the rule says, and what is found."""
    rows, policy, mask = Rows(llm, task, items), policies.get("joint", risk=risk), llm.spec.mask_id
    said, lost, changed, passes = 0.0, 0.0, 0, 0
    while rows.drop_finished():
        before, decided = rows.predict([{}] * len(rows.canvases)), []
        for canvas, found in zip(rows.canvases, before, strict=True):
            tokens = torch.tensor([canvas.tokens[slice(*canvas.block)]], device=found.device)
            step = torch.tensor([canvas.block_step], device=found.device)
            view = StepView(logits=found.log()[None], masked=tokens == mask, tokens=tokens, step=step)
            decision, _ = policy.select(view)
            pivot = decision.commit[0] & (decision.score[0] < 0.0)  # certain positions have the score 0
            decided.append((pivot, decision.commit[0] & ~pivot, found.argmax(-1)))
        columns = [pivot.nonzero().flatten().tolist() for pivot, _, _ in decided]
        alone = [
            {canvas.block[0] + at: int(best[at]) for at in there}
            for canvas, there, (_, _, best) in zip(rows.canvases, columns, decided, strict=True)
        ]
        after = rows.predict(alone)
        for canvas, old, new, (pivot, certain, best) in zip(rows.canvases, before, after, decided, strict=True):
            if pivot.any() and certain.any():
                top, still = old.amax(-1), new.gather(-1, best[:, None]).squeeze(-1)
                said += float((1.0 - top)[certain].sum() / top[pivot].min())
                lost += float((1.0 - still)[certain].sum())
                changed += bool((new.argmax(-1) != best)[certain].any())
                passes += 1
            at = (pivot | certain).nonzero().flatten().tolist()
            canvas.write({canvas.block[0] + column: int(best[column]) for column in at})
    count = max(passes, 1)
    return {"passes": passes, "said": said / count, "found": lost / count, "changed": changed / count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=32)
    parser.add_argument("--risk", type=float, default=0.04)
    chosen, llm = parser.parse_args(), unmask.load("tiny")
    print(f"{'task':15s} {'passes':>7s} {'said':>8s} {'found':>8s} {'no longer the likeliest':>24s}")
    for task in TASKS:
        found = measure(llm, task, chosen.items, chosen.risk)
        line = f"{task:15s} {found['passes']:7.0f} {found['said']:8.4f} {found['found']:8.4f}"
        print(f"{line} {found['changed']:24.4f}", flush=True)


if __name__ == "__main__":
    main()
