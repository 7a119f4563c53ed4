"""What the clients of a server saw, in figures."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from unmask.bench.serve_watch import Held
from unmask.bench.serve_workload import ServeWorkload

COUNTERS = ("unmask_forward_passes_total", "unmask_batch_passes_total", "unmask_committed_tokens_total")
ENDS = ("answered", "refused", "cancelled", "bad", "wrong", "lost", "doubled")
FAULTS = ("wrong", "lost", "doubled")


class ServeTiming:
    """What the clients of a server saw."""

    def __init__(self, workload: ServeWorkload, name: str) -> None:
        self.model, self.clients, self.seconds = name, workload.clients, 0.0
        self.ends: Counter[str] = Counter()
        self.bad_by_kind: Counter[str] = Counter()
        self.faults: list[str] = []  # the first few, in words
        self.different = 0  # answers that differ from the lone one where rounding may be the reason
        self.compared = 0
        self.kept_tokens = 0
        self.latencies: list[float] = []
        self.firsts: list[float] = []
        self.counters: dict[str, float] = {}
        self.held: list[Held] = []
        self.grown = ""

    @property
    def failed(self) -> str:
        """What went wrong, in words; empty if nothing did."""
        counts = [f"{self.ends[end]} {end}" for end in FAULTS if self.ends[end]]
        return "; ".join(
            [*([f"answers: {', '.join(counts)}"] if counts else []), *([self.grown] if self.grown else [])]
        )

    def in_words(self) -> str:
        return f"{self.model}: {self.clients} clients for {self.seconds:.1f} s"

    def to_dict(self) -> dict[str, Any]:
        passes, rows = self.counters.get("unmask_forward_passes_total"), self.counters.get("unmask_batch_passes_total")
        committed = self.counters.get("unmask_committed_tokens_total")
        seconds = max(self.seconds, 1e-9)
        return {
            "model": self.model,
            "clients": self.clients,
            "seconds": self.seconds,
            **{end: self.ends[end] for end in ENDS},
            "compared": self.compared,
            "different": self.different,
            "bad_by_kind": dict(sorted(self.bad_by_kind.items())),
            "requests_per_s": len(self.latencies) / seconds,
            "tokens_per_s": None if committed is None else committed / seconds,  # every decoded position
            "kept_tokens_per_s": self.kept_tokens / seconds,
            **_percentiles("latency", self.latencies),
            **_percentiles("first_text", self.firsts),
            "passes": rows,
            "rows_per_pass": passes / rows if passes and rows else None,
            "held": [each._asdict() for each in self.held],
            "faults": self.faults,
            "grown": self.grown,
        }

    def rows(self) -> list[dict[str, Any]]:
        """The figures as a table of two columns."""
        shown = {key: value for key, value in self.to_dict().items() if not isinstance(value, list | dict)}
        left_out = ("model", "clients", "seconds", "grown")
        found = [(key, value) for key, value in shown.items() if key not in left_out and value is not None]
        kinds = [(f"bad: {kind}", count) for kind, count in sorted(self.bad_by_kind.items())]
        ends = [("server at first", self.held[0]), ("server at last", self.held[-1])] if self.held else []
        held = [(name, str(each)) for name, each in ends]
        return [{"figure": name.replace("_", " "), "value": value} for name, value in [*found, *kinds, *held]]


def _percentiles(name: str, seconds: list[float]) -> dict[str, float | None]:
    """By nearest rank, in milliseconds."""
    ranked = sorted(seconds)
    return {
        f"{name}_p{percent}_ms": 1000.0 * ranked[math.ceil(percent / 100 * len(ranked)) - 1] if ranked else None
        for percent in (50, 95, 99)
    }
