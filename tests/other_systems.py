"""A program for tests: this system without what only Unix has. Prints which modules could not be imported.

The modules are missing, and so are the names; the platform is said to be Windows once the libraries are imported.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pkgutil
import signal
import sys
import types

import click
import rich.progress
import torch

with contextlib.suppress(ImportError):
    import datasets  # noqa: F401
    import fastapi  # noqa: F401
    import lm_eval.tasks  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import uvicorn  # noqa: F401

import unmask

UNIX = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "readline", "syslog")
SKIPPED = ("kernels", "cuda", "integrations", "remote", "replica", "router", "__main__")  # other machines and hosts


def missing(module: types.ModuleType, *names: str) -> None:
    for name in names:
        if hasattr(module, name):
            delattr(module, name)


def become_windows() -> None:
    for name in UNIX:
        sys.modules[name] = None
    missing(signal, "SIGALRM", "SIGHUP", "setitimer", "ITIMER_REAL")
    missing(os, "fork", "killpg", "setsid", "sched_getaffinity", "getuid", "geteuid", "uname", "sysconf")
    sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, locking=lambda *_: None)
    sys.platform = "win32"


def imported() -> list[str]:
    """Every module of ours that cannot be imported."""
    failed = []
    for module in pkgutil.walk_packages(unmask.__path__, "unmask."):
        if not set(module.name.split(".")) & set(SKIPPED):
            try:
                importlib.import_module(module.name)
            except Exception as error:
                failed.append(f"{module.name}: {error!r}")
    return failed


if __name__ == "__main__":
    assert None not in (click, rich, torch)  # imported before the system changes
    become_windows()
    sys.stdout.write(f"{imported()}\n")
    from unmask.cli import run

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run(["generate", "Countdown: 3,4,5,12", "--device", "cpu"]) == 0
        assert run(["generate", "--model", "toy", "hello", "--chat", "--max-tokens", "8"]) == 0
        assert (
            run(["eval", "--task", "countdown-3", "--policy", "threshold", "--limit", "1", "--out", sys.argv[1]]) == 0
        )
    assert "=12" in out.getvalue()
    sys.stdout.write("ran\n")
