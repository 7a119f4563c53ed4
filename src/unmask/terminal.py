"""What a user reads: text as it is decoded, and notes. Only text goes to stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from rich.console import Console

from unmask.errors import UnmaskError, counted
from unmask.live import CanvasView, decoded, visible

if TYPE_CHECKING:
    from unmask.engine.generator import Generator as Model
    from unmask.engine.scheduler import Request
    from unmask.types import Output


def stderr() -> Console:
    """Where everything goes that is not a result."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def watches(wanted: bool | None, *, prompts: int = 1, as_json: bool = False) -> bool:
    """Whether to draw the canvas as it fills, on stderr: if it is wanted, or by default for one text on a terminal."""
    able = stderr().is_interactive
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
