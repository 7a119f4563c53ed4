"""What a server's process holds: memory, open files and threads, read from /proc; and whether that stays flat.

Where there is no /proc, nothing is known and nothing is checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

# What a server may hold more of at the end than after the first third of the time: caches fill, and pools of threads.
GROWTH, SLACK_MIB, SLACK_FILES, SLACK_THREADS = 1.1, 32.0, 8, 8


class Held(NamedTuple):
    """What a process holds at one moment."""

    mib: float  # resident memory
    files: int  # open file descriptors
    threads: int

    def __str__(self) -> str:
        return f"{self.mib:.0f} MiB, {self.files} files, {self.threads} threads"


def held_by(pid: int | None) -> Held | None:
    """What the process holds now; None where that cannot be read."""
    if pid is None:
        return None
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        mib = int(status.partition("VmRSS:")[2].split()[0]) / 1024
        return Held(mib, files, int(status.partition("Threads:")[2].split()[0]))
    except (OSError, IndexError, ValueError):
        return None


def growth_of(before: Held, after: Held) -> str:
    """What has grown beyond the slack, in words; empty if nothing has."""
    grown = [
        ("memory", before.mib, after.mib, before.mib * GROWTH + SLACK_MIB, " MiB"),
        ("open files", before.files, after.files, before.files + SLACK_FILES, ""),
        ("threads", before.threads, after.threads, before.threads + SLACK_THREADS, ""),
    ]
    over = [each for each in grown if each[2] > each[3]]
    return "; ".join(f"{what} grew from {was:.0f} to {now:.0f}{unit}" for what, was, now, _, unit in over)
