"""Run code that a model wrote, against tests, where it can do no harm.

Covered, with bubblewrap:
- network: none, not even the machine's own; no other process is in sight, and no process outlives its job
- files: the interpreter and the system's libraries, read-only; one empty folder in memory for each answer (16 MiB, 256
  files), or none where bubblewrap may not mount one; no home, no /etc, no /proc, no environment
- system calls: those that Python needs to compute (`system_calls.py`); an answer can start no process, send no signal,
  and name no other process, so it reaches neither its judge nor another answer
- memory (512 MiB), threads (some 25), time (3 s a statement), file size, open files; output goes nowhere. Threads are
  counted by the user's limit or by a cgroup; where neither can, as for root in most containers, there are none. A
  cgroup, where one can be made, bounds the memory of a whole judge with what the kernel holds for it
- the verdict: code and tests run in two processes (`exam.py`). An answer sees the arguments of its calls, never the
  tests, and its results are compared as plain values. A pass is proved by a secret that is drawn after the last test
Not covered:
- an answer that recognises arguments and returns what it remembers, and tests that are too weak to tell it
- names that the tests take from the answer, other than what they test: a helper, a constant, an alias of a module.
  Builtins are the tests' own, unless the tests use no other names
- an object of the answer that is not a plain value is true in a condition, differs from all others, and gives whatever
  it likes when it is called, read or gone through; changes to arguments are not seen by the tests
- without a cgroup, kernel memory that no limit counts: page tables of scattered mappings, up to about the memory limit
- holes in the kernel or in the examiner's JSON reader, and how long other things wait while an answer computes

Without bubblewrap we refuse, unless `allow_unsandboxed()` is around the call. Then limits, time and the verdict are as
above, on Linux also system calls, without threads; files are open to the answer.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from unmask import exam, jail, system_calls
from unmask.errors import UnmaskError, WorkFailed

TIMEOUT_S = 3.0
SPARE_MIB = 128
START_S = 30.0  # a loaded machine may take its time to start an interpreter
JOBS_EACH = 16  # fewer jobs than this do not pay for another interpreter
REMOVAL_S = 2.0
# A shell that enters cgroups before it becomes the command after "--".
ENTER = ["/bin/sh", "-c", 'while [ "$1" != -- ]; do echo 0 >"$1/cgroup.procs" || exit 1; shift; done; shift; exec "$@"']

_CALLABLES = {name for name, value in vars(builtins).items() if callable(value)}
_unsandboxed_allowed: ContextVar[bool] = ContextVar("unsandboxed_allowed", default=False)


class NoSandbox(UnmaskError):
    """Code cannot be run, because no sandbox would contain it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxResult:
    """How a program fared; `reason` is 'passed', 'failed: ...', 'timeout' or 'crashed'."""

    passed: bool
    reason: str


def run_tests(code: str, tests: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> SandboxResult:
    """Run the code, then every test, with that time for each; it passes if all ran and none raised."""
    return run_many([(code, tests)], timeout_s=timeout_s)[0]


def run_many(jobs: Sequence[tuple[str, Sequence[str]]], *, timeout_s: float = TIMEOUT_S) -> list[SandboxResult]:
    """`run_tests` for many programs, each on its own, on all cores."""
    if not jobs:
        return []
    contained = require()
    shares = min(len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1, -(-len(jobs) // JOBS_EACH))

    def judged(share: int) -> list[SandboxResult]:
        return _judged(jobs[share::shares], timeout_s, contained)

    with ThreadPoolExecutor(shares) as pool:
        dealt = list(pool.map(judged, range(shares)))
    return [dealt[number % shares][number // shares] for number in range(len(jobs))]


@contextlib.contextmanager
def allow_unsandboxed() -> Generator[None, None, None]:
    """Within this block and this thread, code runs even where nothing can contain it: with limits only."""
    token = _unsandboxed_allowed.set(True)
    try:
        yield
    finally:
        _unsandboxed_allowed.reset(token)


def require() -> bool:
    """Whether code will run in bubblewrap; raises `NoSandbox` where it would have to run without, and may not."""
    if not (obstacle := _obstacle(shutil.which("bwrap"))):
        return True
    if not _unsandboxed_allowed.get():
        raise NoSandbox(
            f"no sandbox for code that a model wrote: {obstacle}; install bubblewrap (apt-get install bubblewrap), "
            "or let the code run without one (--allow-unsandboxed, unmask.sandbox.allow_unsandboxed())"
        )
    return False


@cache
def _obstacle(bubblewrap: str | None) -> str:
    """Why the bubblewrap at that path does not work here; empty if it works."""
    if bubblewrap is None:
        return "bubblewrap is not installed"
    try:
        with _judge(TIMEOUT_S, contained=True):
            return ""
    except WorkFailed as error:
        return f"bubblewrap is there but {error}"


def _judged(jobs: Sequence[tuple[str, Sequence[str]]], timeout_s: float, contained: bool) -> list[SandboxResult]:
    """The verdicts of one judge, or of several: after a program that takes its judge down, the next one has another."""
    results: list[SandboxResult] = []
    while len(results) < len(jobs):
        with _judge(timeout_s, contained=contained) as judge:
            for code, tests in jobs[len(results) :]:
                try:
                    judge.send({"code": code, "tests": tests, "own": _own(tests)})
                    reason = judge.receive(timeout_s * (len(tests) + 2) + START_S)
                except (EOFError, OSError):
                    results.append(SandboxResult(passed=False, reason="crashed"))
                    break
                results.append(SandboxResult(passed=reason == "passed", reason=reason))
    return results


@contextlib.contextmanager
def _judge(timeout_s: float, *, contained: bool) -> Generator[exam.Channel]:
    """A channel to an interpreter that runs `jail.py`, contained or not."""
    python, here = os.path.realpath(sys.executable), os.path.dirname(os.path.dirname(_judge_files()[0]))
    start = f"import sys; sys.path.append({'/judge' if contained else here!r}); from unmask.jail import serve"
    start += f"; sys.path.pop(); serve({timeout_s!r}, {contained!r})"
    command = [*(_bubblewrap(python) if contained else ()), python, "-I", "-S", "-c", start]
    with contextlib.ExitStack() as ending:
        folder = ending.enter_context(tempfile.TemporaryDirectory(prefix="unmask-sandbox-"))
        # Code, tests and judge each need some; the folder in memory counts as well.
        if groups := make_groups(jail.TASKS, 2 * jail.MEMORY_MIB + SPARE_MIB):
            command = [*ENTER, "sh", *map(str, groups), "--", *command]
            ending.callback(remove_groups, groups)
        ours, theirs = exam.pair()
        ending.enter_context(ours.end)
        ending.enter_context(theirs.end)
        streams: dict[str, Any] = {"stdin": theirs.end, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        process: Any = subprocess.Popen(command, cwd=folder, env={}, start_new_session=True, **streams)
        ending.enter_context(process)
        ending.callback(process.kill)
        theirs.end.close()
        try:
            ours.receive(START_S)
        except (EOFError, OSError):
            process.kill()
            told = process.communicate()[1].decode(errors="replace").strip().splitlines()
            raise WorkFailed(f"the sandbox did not start: {told[-1] if told else 'no word from it'}") from None
        yield ours


def _bubblewrap(python: str) -> list[str]:
    """The command that gives a program the interpreter, the system's libraries, /tmp, and nothing else."""
    command = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent", "--new-session"]
    command += ["--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"]
    command += ["--cap-add", "CAP_SYS_ADMIN"]  # to give each answer a folder; an answer has no capability
    for folder in ("/lib", "/lib64"):
        if os.path.islink(folder):
            command += ["--symlink", os.readlink(folder), folder]
        else:
            command += ["--ro-bind-try", folder, folder]
    seen = ["/usr/lib", "/usr/lib64", "/etc/ld.so.cache", f"{sys.base_prefix}/lib", f"{sys.base_prefix}/lib64", python]
    for path in dict.fromkeys(seen):
        command += ["--ro-bind-try", path, path]
    for path in _judge_files():
        command += ["--ro-bind", path, f"/judge/unmask/{os.path.basename(path)}"]
    command += ["--dev-bind", "/dev/null", "/dev/null", "--dir", "/tmp"]
    return [*command, "--remount-ro", "/", "--chdir", "/tmp", "--"]


def _judge_files() -> list[str]:
    return [os.path.realpath(str(module.__file__)) for module in (jail, exam, system_calls)]


def _own(tests: Sequence[str]) -> list[str]:
    """The names of builtins that mean the answer's: those in tests that use no other names."""
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):
        trees = [ast.parse(test) for test in tests]
        names = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
        return sorted(names) if names <= _CALLABLES else []
    return []


def make_groups(tasks: int, memory_mib: int) -> list[Path]:
    """New cgroups with these bounds, one in every hierarchy where this process may make one.

    Most systems let root make cgroups, and the user of a session under systemd. Elsewhere there are none, and the
    limits of single processes have to do.
    """
    memory = str(memory_mib * 2**20)
    bounds = {"pids.max": str(tasks), "memory.max": memory, "memory.limit_in_bytes": memory}
    made = []
    for parent in _parents():
        with contextlib.suppress(OSError):
            group = Path(tempfile.mkdtemp(prefix="unmask-sandbox-", dir=parent))
            made.append(group)
            kept = [(group / name).write_text(value) for name, value in bounds.items() if (group / name).exists()]
            if not kept or not os.access(group / "cgroup.procs", os.W_OK):
                remove_groups([made.pop()])
    return made


def remove_groups(groups: list[Path]) -> None:
    """Remove the cgroups as soon as the last of their processes has ended."""
    deadline = time.monotonic() + REMOVAL_S
    while (groups := [group for group in groups if not _removed(group)]) and time.monotonic() < deadline:
        time.sleep(0.005)


def _removed(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def _parents() -> Iterator[Path]:
    """Where new cgroups belong: within our own; in version 2 beside it, for there only a leaf has processes."""
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
