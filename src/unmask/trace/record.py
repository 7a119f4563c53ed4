"""Traces: every forward pass of a generation as JSON lines, versioned, to be kept, compared and shown.

The first line is the header, then one line per pass and row, then one line per row with its result. Knows step events
and files; tokens become text through a function that the caller brings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.types import Commit, StepEvent

SCHEMA = "unmask.trace/1"


@dataclass(slots=True, kw_only=True)
class Trace:
    """The lines of a trace, as plain data."""

    header: dict[str, Any]
    steps: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)

    def add(self, event: StepEvent, token_text: Callable[[int], str]) -> None:
        """Record one pass over one row."""
        line: dict[str, Any] = {
            "row": event.row,
            "step": event.step,
            "block": list(event.block),
            "committed": [_commit(commit, token_text) for commit in event.committed],
            "remasked": list(event.remasked),
            "open": [
                {"position": position, "candidates": [[token, _finite(p)] for token, p in candidates]}
                for position, candidates in (event.candidates or {}).items()
            ],
        }
        if event.overlap is not None:
            line["overlap"] = event.overlap
        self.steps.append(line)

    def lines(self) -> list[str]:
        return [
            json.dumps(line, ensure_ascii=False, allow_nan=False) for line in (self.header, *self.steps, *self.results)
        ]

    def save(self, path: str | Path) -> None:
        """Write the trace."""
        text = "\n".join(self.lines()) + "\n"
        try:
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise UnmaskError(f"cannot write the trace {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a trace that `save` wrote."""
        try:
            lines = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").removesuffix("\n").split("\n")]
        except OSError as error:
            raise UnmaskError(f"cannot read the trace {path}: {error.strerror}") from error
        except ValueError as error:
            raise UnmaskError(f"{path} is not a trace: {error}") from error
        schema = lines[0].get("schema") if lines and isinstance(lines[0], dict) else None
        if schema != SCHEMA:
            raise UnmaskError(f"{path} is not a trace of this version: its schema is {schema!r}, not {SCHEMA!r}")
        header, *rest = lines
        return cls(
            header=header,
            steps=[line for line in rest if "step" in line],
            results=[line for line in rest if "step" not in line],
        )

    @classmethod
    def join(cls, traces: list[Trace]) -> Trace:
        """Several traces of one run in one, their rows numbered anew in the order given."""
        joined = cls(header=traces[0].header | {"prompts": []})
        for trace in traces:
            first = len(joined.header["prompts"])
            joined.header["prompts"] += trace.header["prompts"]
            joined.steps += [line | {"row": line["row"] + first} for line in trace.steps]
            joined.results += [line | {"row": line["row"] + first} for line in trace.results]
        return joined


def _commit(commit: Commit, token_text: Callable[[int], str]) -> dict[str, Any]:
    return {
        "position": commit.position,
        "token_id": commit.token_id,
        "text": token_text(commit.token_id),
        "probability": _finite(commit.probability),
        "margin": _finite(commit.margin),
        "intensity": _finite(commit.intensity),
    }


def _finite(value: float | None) -> float | None:
    """JSON has no infinity: a margin without a second candidate is null."""
    return value if value is not None and math.isfinite(value) else None
