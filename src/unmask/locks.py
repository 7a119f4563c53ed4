"""One process at a time: a lock on an open file. It ends with its process, so a kill leaves no lock behind."""

from __future__ import annotations

from typing import IO, Any

from unmask.errors import WorkFailed


def lock(file: IO[Any], busy: str) -> None:
    """Lock the file until it is closed; raises WorkFailed with the message `busy` if another process has locked it."""
    import fcntl  # here, because Windows has none

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise WorkFailed(busy) from error
