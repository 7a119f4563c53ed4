"""One process at a time: a lock on an open file. It ends with its process, so a kill leaves no lock behind."""

from __future__ import annotations

import os
import sys
from typing import IO, Any

from unmask.errors import WorkFailed

_FAR = 2**30  # Windows locks bytes, which no process may then read; no file of ours reaches this one


def lock(file: IO[Any], busy: str) -> None:
    """Lock the file until it is closed; raises WorkFailed with the message `busy` if another process has locked it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            at = file.seek(0, os.SEEK_CUR)
            file.seek(_FAR)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            file.seek(at)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        raise WorkFailed(busy) from error
