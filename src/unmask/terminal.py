"""What a user reads and types: text as it is decoded, notes, a conversation. Only text goes to stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from unmask.errors import UnmaskError, counted
from unmask.live import CanvasView, decoded, visible

if TYPE_CHECKING:
    from unmask.conversation import Conversation
    from unmask.engine.generator import Generator as Model
    from unmask.engine.scheduler import Request
    from unmask.evals.run import Finished
    from unmask.types import Output


def stderr() -> Console:
    """Where everything goes that is not a result."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def watches(wanted: bool | None, *, prompts: int = 1, as_json: bool = False) -> bool:
    """Whether to draw the canvas as it fills, on stderr: if it is wanted, or by default for one text on a terminal."""
    console = stderr()
    able = console.is_terminal and not console.is_dumb_terminal
    if wanted is None:
        return able and prompts == 1 and not as_json and is_terminal(sys.stdout)
    if wanted and prompts > 1:
        raise UnmaskError(f"--live shows one prompt, got {prompts}")
    if wanted and not able:
        raise UnmaskError("--live needs a terminal that can be drawn on; leave it out")
    return wanted


def show_text(text: str, end: str = "\n") -> None:
    """Text of a model on stdout: as it is, but on a terminal without what would command the terminal."""
    sys.stdout.write((visible(text) if is_terminal(sys.stdout) else text) + end)
    sys.stdout.flush()


def show_answer(
    llm: Model, request: Request, *, live: bool, show: Callable[[Output], None] = lambda output: show_text(output.text)
) -> Output:
    """Decode a request and show its text, then what it cost on stderr.

    Live, the canvas is drawn until it is full, and then gives way to what `show` prints. Else text is printed as it
    becomes certain.
    """
    began, output, view = time.perf_counter(), None, CanvasView(request)
    with view.on(stderr()) if live else nullcontext():
        for event in decoded(llm, request):
            view.hear(event.step)
            output = event.output
            if not live:
                show_text(event.text_delta, end="" if output is None else "\n")
    assert output is not None
    if live:
        show(output)
    usage, seconds = output.usage, time.perf_counter() - began
    cost = f"{counted(usage.completion_tokens, 'token')}, {counted(usage.forward_passes, 'forward pass')}"
    stderr().print(f"{cost}, {seconds:.1f} s", style="dim")
    return output


def is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()


def note(message: str | None) -> None:
    """Something worth knowing, on stderr."""
    if message:
        stderr().print(f"unmask: {message}", style="dim", markup=False)


def status(message: str) -> AbstractContextManager[Any]:
    """A sign of life on stderr while something long runs."""
    return Console(stderr=True).status(message)


def converse(talk: Conversation, about: Callable[[list[str]], str | None], *, live: bool) -> None:
    """Read lines from the user until the end of input; answers are shown, commands and errors go to stderr.

    `about` gives a note on prompts that the model was not trained for; the note is shown once.
    """
    interactive, told, aside = is_terminal(sys.stdin), None, stderr()
    if interactive:
        with suppress(ImportError):  # Windows
            import readline  # noqa: F401  (line editing and history for input())

        commands = "/reset forgets the conversation, /help lists the commands; end of input or /quit leaves"
        aside.print(commands, style="dim")
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
                if told is None:
                    note(told := about([line]))
                output = show_answer(talk.llm, talk.request(line), live=live)
                talk.remember(line, output.text)
        except KeyboardInterrupt:
            if not interactive:
                raise
            aside.print("\ninterrupted; the conversation goes on as before")
        except UnmaskError as error:
            if not interactive:
                raise
            aside.print(f"unmask: {error}", markup=False)


def note_finished(run: Finished, folder: Path) -> None:
    """What came of a run beside its numbers: cells that were there before, and what changed since."""
    if run.reused:
        note(f"cells reused: {', '.join(f'{count} from {name}' for name, count in run.reused.items())}")
    elif not run.new_cells:
        note(f"nothing left to do: {folder} is complete")
    if run.changed:
        note(f"since it was measured, the {' and '.join(run.changed)} changed; --fresh measures it anew")
