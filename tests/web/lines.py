"""Traces small enough to check by eye."""

from __future__ import annotations

from typing import Any

HOSTILE = '</script><img src=x onerror="window.broken=1"><script>window.broken=1</script>'


def opened(position: int, *candidates: tuple[int, float, str], **more: Any) -> dict[str, Any]:
    pairs = [[token, probability] for token, probability, _ in candidates]
    numbers = {"score": candidates[0][1], "margin": 1.0, "intensity": candidates[0][1], **more}
    return {"position": position, **numbers, "candidates": pairs, "texts": [text for _, _, text in candidates]}


def commit(position: int, token: int, text: str) -> dict[str, Any]:
    return {
        "position": position,
        "token_id": token,
        "text": text,
        "probability": 0.9,
        "margin": 1.0,
        "intensity": 0.9,
    }


def three_passes(text: str = "cat", threshold: float = 0.85) -> list[dict[str, Any]]:
    """`the` and three holes. Position 2 is filled, opened again and filled anew; position 3 is never reached."""
    policy = {"name": "mean_field", "threshold": threshold}
    prompt = {"text": "the", "token_ids": [7], "tokens": ["the"], "holes": [1, 2, 3]}
    head = {"schema": "unmask.trace/2", "model": "toy", "policy": policy, "settings": {"max_tokens": 3}, "mask_id": 0}
    first = [
        opened(1, (5, 0.95, text), (6, 0.05, " dog")),
        opened(2, (8, 0.9, " sat"), (9, 0.1, " ran")),
        opened(3, (9, 0.4, " ran"), (8, 0.3, " sat"), intensity=0.4),
    ]
    overlap = [[0, 0.5, 0.25], [0.5, 0, 0], [0.25, 0, 0]]
    third = [opened(2, (9, 0.97, " ran")), opened(3, (1, 0.6, "."), intensity=0.6)]
    shared = {"row": 0, "block": [1, 4], "remasked": [], "refreshed": False}
    return [
        head | {"prompts": [prompt]},
        shared
        | {"step": 0, "committed": [commit(1, 5, text), commit(2, 8, " sat")], "open": first, "overlap": overlap},
        shared | {"step": 1, "committed": [], "remasked": [2], "open": [first[2]]},
        shared | {"step": 2, "committed": [commit(2, 9, " ran")], "open": third},
        {
            "row": 0,
            "text": f"{text} ran",
            "finish_reason": "stop",
            "usage": {"prompt_tokens": 1, "completion_tokens": 2, "forward_passes": 3},
        },
    ]


def two_rows() -> list[dict[str, Any]]:
    """The same twice in one trace."""
    head, *lines = three_passes()
    return [head | {"prompts": head["prompts"] * 2}, *lines, *(line | {"row": 1} for line in lines)]


def first_version() -> list[dict[str, Any]]:
    """The same as the first version of the format had it."""
    head, *lines = three_passes()
    prompt = {key: head["prompts"][0][key] for key in ("text", "token_ids")}
    old = {key: head[key] for key in ("model", "policy", "settings")}
    passes = []
    for line in lines[:-1]:
        seen = [{key: one[key] for key in ("position", "candidates")} for one in line["open"]]
        passes.append({key: line[key] for key in ("row", "step", "block", "committed", "remasked")} | {"open": seen})
    return [{"schema": "unmask.trace/1", **old, "prompts": [prompt]}, *passes, lines[-1]]
