"""How results look in a terminal: streamed text, tables, a progress line; plain text when it is not a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.bench.rule import RuleTiming
    from unmask.conversation import Conversation
    from unmask.types import StepEvent, StreamEvent


def show_stream(events: Iterable[StreamEvent]) -> None:
    """Print text as it becomes certain, then what it cost on stderr."""
    began = time.perf_counter()
    for event in events:
        sys.stdout.write(event.text_delta)
        sys.stdout.flush()
        if event.output is not None:
            usage, seconds = event.output.usage, time.perf_counter() - began
            sys.stdout.write("\n")
            sys.stdout.flush()
            console = Console(stderr=True, highlight=False)
            console.print(
                f"{usage.completion_tokens} tokens, {usage.forward_passes} forward passes, {seconds:.1f} s", style="dim"
            )


@contextmanager
def progress(prompts: int) -> Generator[Callable[[StepEvent], None]]:
    """A line on stderr that counts forward passes and committed tokens; nothing when stderr is not a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("decoding", total=None)
        passes = tokens = finished = 0

        def on_step(event: StepEvent) -> None:
            nonlocal passes, tokens, finished
            passes += 1
            tokens += len(event.committed) - len(event.remasked)
            finished += event.finished
            done = f"{finished} of {prompts} prompts done"
            bar.update(task, description=f"decoding: {tokens} tokens in {passes} passes, {done}")

        yield on_step


def is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()


def note(message: str | None) -> None:
    """Something worth knowing, on stderr."""
    if message:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"unmask: {message}", style="dim", markup=False)


def status(message: str) -> AbstractContextManager[Any]:
    """A sign of life on stderr while something long runs."""
    return Console(stderr=True).status(message)


def converse(talk: Conversation) -> None:
    """Read lines from the user until the end of input; answers are streamed, commands and errors go to stderr."""
    interactive = is_terminal(sys.stdin)
    aside = Console(stderr=True, highlight=False, soft_wrap=True)
    if interactive:
        import readline  # noqa: F401  (line editing and history for input())

        aside.print("/help lists the commands; end of input or /quit leaves", style="dim")
    while True:
        try:
            line = input("> " if interactive else "").strip()
        except EOFError:
            return
        if line.split()[:1] == ["/quit"]:
            return
        try:
            if line.startswith("/"):
                aside.print(talk.command(line), markup=False)
            elif line:
                show_stream(talk.say(line))
        except KeyboardInterrupt:
            aside.print("\ninterrupted; the conversation goes on as before")
        except UnmaskError as error:
            if not interactive:
                raise
            aside.print(f"unmask: {error}", markup=False)


def show_policies(rows: list[dict[str, Any]]) -> None:
    """Each policy with its parameters, what it does, and what it needs beyond the logits of its block."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for row in rows:
        parameters = " ".join(f"{key}={value}" for key, value in row["parameters"].items())
        needs = f" Needs {', '.join(row['needs'])}." if row["needs"] else ""
        table.add_row(row["name"], f"{parameters}\n{row['about']}{needs}")
    Console(highlight=False).print(table)


def show_rule_timings(timings: list[RuleTiming]) -> None:
    """Ours above the formula as printed, two lines a size."""
    first = timings[0]
    title = f"mean-field rule: {first.device}, {first.threads} threads, {first.dtype}, batch {first.batch}"
    table = Table(title=title, pad_edge=False)
    for heading in ("m x V", "", "time", "memory", "error", "speed-up", "commits"):
        table.add_column(heading, justify="left" if heading == "" else "right", no_wrap=True)
    for timing in timings:
        commits = {True: "same", False: "differ", None: ""}[timing.same_commits]
        ours = _figures(timing.ours_ms, timing.ours_memory_mib, timing.ours_error)
        printed = _figures(timing.naive_ms, timing.naive_memory_mib, timing.naive_error)
        faster = "" if timing.speedup is None else f"{timing.speedup:.1f} x"
        table.add_row(f"{timing.positions} x {timing.vocabulary}", "ours", *ours, faster, commits)
        table.add_row("", "as printed", *printed, end_section=True)
    table.caption = f"median of {first.repeats} runs; error of the overlap against float64, before it is normalised"
    Console(highlight=False).print(table)


def _figures(milliseconds: float | None, mebibytes: float | None, error: float | None) -> list[str]:
    forms = ((milliseconds, "{:.2f} ms"), (mebibytes, "{:.0f} MiB"), (error, "{:.0e}"))
    return ["not measured" if value is None else form.format(value) for value, form in forms]
