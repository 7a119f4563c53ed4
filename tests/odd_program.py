"""A program for tests of worker processes: it answers, and does what no program should."""

from __future__ import annotations

import os
import sys
import time
from typing import Any


def answer(request: str) -> Any:
    sys.stdout.write("loud\n")
    match request:
        case "hang":
            time.sleep(600)
        case "end":
            os._exit(0)
        case "eat":
            return len(bytearray(2**40))
    return os.getpid()
