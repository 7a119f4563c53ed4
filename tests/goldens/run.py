"""Decodes the cases of the goldens, and puts what came of them in a form that is small and can be read.

Of each case: the tokens of every row, the pass that committed each, the passes that refreshed a cache, and for every
call of the model its rows and how many positions it had to compute.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import unmask
from goldens.cases import PROMPTS
from unmask.engine.scheduler import Scheduler
from unmask.models.base import Capabilities

GOLDENS = Path(__file__).with_name("goldens.json")


class Recorder:
    """A model that notes what it is asked to compute."""

    def __init__(self, model: Any) -> None:
        self.model, self.spec, self.device, self.dtype = model, model.spec, model.device, model.dtype
        self.calls: list[tuple[int, int]] = []

    capabilities = Capabilities(attention=True, shadow=True, states=True)

    def predict(self, tokens: Any, *, plan: Any, **options: Any) -> Any:
        self.calls.append((len(tokens), sum(plan.sizes)))
        return self.model.predict(tokens, plan=plan, **options)


def run(llm: Any, case: dict[str, Any]) -> dict[str, Any]:
    """What comes of a case."""
    model = llm.model
    llm.model = recorder = Recorder(model)
    try:
        found = _joining(llm, case) if "rows" in case else _together(llm, case)
    finally:
        llm.model = model
    return found | {"calls": " ".join(f"{rows}x{positions}" for rows, positions in recorder.calls)}


def _together(llm: Any, case: dict[str, Any]) -> dict[str, Any]:
    policy = unmask.policies.get(case["policy"], **case["parameters"])
    settings, refreshes = dict(case["settings"]), []
    events: list[Any] = []
    options: dict[str, Any] = {"policy": policy, "on_step": events.append, "trace": case.get("traced", False)}
    if case.get("stops"):
        settings |= {"early_stop": True, "stop_token_ids": [*range(100, 180)]}
    if case.get("holes"):
        settings.pop("max_tokens")
        mask = llm.spec.mask_id
        texts = [[*prompt, mask, mask, 7, *[mask] * 6, 12, 13, mask] for prompt in PROMPTS]
        outputs = llm.infill(texts, settings=unmask.Settings(**settings), **options)
    else:
        outputs = llm.generate(PROMPTS, settings=unmask.Settings(**settings), **options)
    refreshes = [[event.step for event in events if event.row == row and event.refreshed] for row in range(3)]
    found = _rows(outputs) | {"refreshes": [_joined(steps) for steps in refreshes]}
    return found | ({"trace": [_traced(output.trace) for output in outputs]} if case.get("traced") else {})


def _joining(llm: Any, case: dict[str, Any]) -> dict[str, Any]:
    """More requests than rows, each of a length, seed and number of tokens of its own."""
    policy = unmask.policies.get(case["policy"], **case["parameters"])
    settings = unmask.Settings(**case["settings"])
    requests = [
        llm.request(PROMPTS[number % 3][number // 3 :], policy=policy, settings=settings.with_(**own))
        for number, own in enumerate({"seed": seed, "max_tokens": 6 + 4 * (seed % 3)} for seed in range(5))
    ]
    events = llm.decode(Scheduler(requests, rows=case["rows"]))
    outputs = {id(request): event.output for request, event in events}
    return _rows([outputs[id(request)] for request in requests])


def _rows(outputs: list[Any]) -> dict[str, Any]:
    return {
        "tokens": [_joined(output.canvas_ids) for output in outputs],
        "steps": [_joined(output.step_map) for output in outputs],
        "ends": [f"{output.finish_reason} {output.usage.completion_tokens}" for output in outputs],
    }


def _traced(trace: Any) -> str:
    """The numbers behind the commits, to three digits."""
    numbers = []
    for step in trace.steps:
        for commit in step["committed"]:
            known = [commit.get(name) for name in ("probability", "margin", "intensity")]
            numbers.append("/".join("" if value is None else f"{value:.3g}" for value in known))
        numbers.append(str(sum(token for place in step["open"] for token, _ in place["candidates"])))
    return " ".join(numbers)


def _joined(numbers: Any) -> str:
    return " ".join(map(str, numbers))


def goldens() -> dict[str, Any]:
    return json.loads(GOLDENS.read_text(encoding="utf-8"))


def save(found: dict[str, Any]) -> None:
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items()]
    GOLDENS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
