"""Control groups of Linux that bound the processes, threads and memory of a sandbox, kernel memory included.

Most systems let root make groups, and the user of a session under systemd. Elsewhere there are none, and the limits of
single processes have to do.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

# A shell that enters the groups before it becomes the command after "--".
ENTER = ["/bin/sh", "-c", 'while [ "$1" != -- ]; do echo 0 >"$1/cgroup.procs" || exit 1; shift; done; shift; exec "$@"']
REMOVAL_S = 2.0


def make(tasks: int, memory_mib: int) -> list[Path]:
    """New groups with these bounds, one in every hierarchy where this process may make one."""
    memory = str(memory_mib * 2**20)
    bounds = {"pids.max": str(tasks), "memory.max": memory, "memory.limit_in_bytes": memory}
    made = []
    for parent in _parents():
        with contextlib.suppress(OSError):
            group = Path(tempfile.mkdtemp(prefix="unmask-sandbox-", dir=parent))
            made.append(group)
            kept = [(group / name).write_text(value) for name, value in bounds.items() if (group / name).exists()]
            if not kept or not os.access(group / "cgroup.procs", os.W_OK):
                remove([made.pop()])
    return made


def remove(groups: list[Path]) -> None:
    """Remove the groups as soon as the last of their processes has ended."""
    deadline = time.monotonic() + REMOVAL_S
    while (groups := [group for group in groups if not _removed(group)]) and time.monotonic() < deadline:
        time.sleep(0.005)


def _removed(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def _parents() -> Iterator[Path]:
    """Where new groups belong: within our own group; in version 2 beside it, for there only a leaf has processes."""
    with contextlib.suppress(OSError):
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            names = {*controllers.split(",")}
            for _, where, kind, options, *_ in mounts:
                if kind == "cgroup" and names & {"pids", "memory"} and names <= {*options.split(",")}:
                    yield Path(where + path)
                elif kind == "cgroup2" and not controllers:
                    yield Path(where + os.path.dirname(path))
