"""Traces: every forward pass of a generation as JSON lines, versioned, to be kept, compared and shown.

The first line is the header, then one line per pass and row, then one line per row with its result. A server sends the
same lines. Knows step events and files; tokens become text through a function that the caller brings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError, one_line
from unmask.types import Commit, Open, Output, StepEvent
from unmask.web import frame

SCHEMA = "unmask.trace/2"
TokenText = Callable[[int], str | None]
READABLE = ("unmask.trace/1", SCHEMA)


@dataclass(slots=True, kw_only=True)
class Trace:
    """The lines of a trace, as plain data."""

    header: dict[str, Any]
    steps: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)

    def __repr__(self) -> str:
        rows, model = len(self.header.get("prompts", ())), f"{self.header.get('model')!r:.80}"
        return f"Trace(model={model}, rows={rows}, passes={len(self.steps)}, results={len(self.results)})"

    def lines(self) -> list[str]:
        return [
            json.dumps(line, ensure_ascii=False, allow_nan=False) for line in (self.header, *self.steps, *self.results)
        ]

    def _repr_html_(self) -> str:
        """The viewer, in a notebook."""
        return frame([("trace", [self.header, *self.steps, *self.results])])

    def save(self, path: str | Path) -> None:
        """Write the trace."""
        text = "\n".join(self.lines()) + "\n"
        try:
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise UnmaskError(f"cannot write the trace {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a trace that `save` wrote, in this version or an earlier one."""
        try:
            lines = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").removesuffix("\n").split("\n")]
        except OSError as error:
            raise UnmaskError(f"cannot read the trace {path}: {error.strerror}") from error
        except ValueError as error:
            raise UnmaskError(f"{path} is not a trace: {error}") from error
        if not all(isinstance(line, dict) for line in lines):
            raise UnmaskError(f"{path} is not a trace: a line is not an object")
        header, *rest = lines
        if (schema := header.get("schema")) not in READABLE:
            known = " or ".join(map(repr, READABLE))
            raise UnmaskError(f"{path} is not a trace of a version known here: its schema is {schema!r}, not {known}")
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


def pass_line(row: int, event: StepEvent, token_text: TokenText) -> dict[str, Any]:
    """What one pass did to one row."""
    line: dict[str, Any] = {
        "row": row,
        "step": event.step,
        "block": list(event.block),
        "committed": [_fields(commit) | {"text": token_text(commit.token_id)} for commit in event.committed],
        "remasked": list(event.remasked),
        "refreshed": event.refreshed,
        "open": [
            _fields(one)
            | {
                "candidates": [[token, _finite(probability)] for token, probability in one.candidates],
                "texts": [token_text(token) for token, _ in one.candidates],
            }
            for one in event.open or ()
        ],
    }
    if event.overlap is not None:
        line["overlap"] = [[_finite(value) for value in values] for values in event.overlap]
    return line


def result_line(row: int, result: Output | UnmaskError) -> dict[str, Any]:
    """What came of one row: its text and its cost, or why it could not be decoded to its end."""
    if isinstance(result, UnmaskError):
        return {"row": row, "error": one_line(result)}
    plain = result.to_dict()
    return {"row": row, **{key: plain[key] for key in ("text", "finish_reason", "usage")}}


def _fields(record: Commit | Open) -> dict[str, Any]:
    return {name: _finite(getattr(record, name)) for name in type(record).__slots__}


def _finite(value: Any) -> Any:
    """JSON has no infinity: a margin without a second candidate is null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
