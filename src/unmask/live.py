"""The canvas of a text as it fills, drawn in a terminal: for the commands and the examples.

What a model writes is data: characters that would command a terminal are shown as symbols.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING
from unicodedata import category

from rich.cells import chop_cells
from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

if TYPE_CHECKING:
    from unmask.engine.scheduler import Request
    from unmask.types import StepEvent

OPEN, END, BREAK, PART = "░", "·", "↵", "\N{REPLACEMENT CHARACTER}"
FRESH, REOPENED, FAINT = "bold green", "yellow", "dim"
_HARMLESS = "\n\t\u200c\u200d"  # breaks and tabs, and the joiners of some scripts
_PER_SECOND = 12  # pictures; a fast model makes more passes than that


def visible(text: str) -> str:
    """The text with a symbol for every control character; only line breaks and tabs keep their effect."""
    return "".join(map(_symbol, text)) if not text.isprintable() else text


def _symbol(letter: str) -> str:
    if letter in _HARMLESS or category(letter) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return letter
    code = ord(letter)
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else PART


class CanvasView:
    """What stands on a request's canvas: new tokens in green, a block for each open position.

    A continuation is shown from its first hole, an infilled text as a whole. `after` gives white space to put behind a
    position, whose number counts from the first one shown.
    """

    def __init__(self, request: Request, *, after: Callable[[int], str] = lambda place: "") -> None:
        assert request.ending is not None
        canvas = request.canvas
        self.request, self.ending, self.after = request, request.ending, after
        self.first = canvas.holes[0] if canvas.continues and not request.infills else 0
        self.step: StepEvent | None = None  # the last pass
        self._began = time.monotonic()
        self._known: dict[int, tuple[str, bool]] = {}  # token -> its text, and whether it is a special token

    def hear(self, step: StepEvent | None) -> None:
        self.step = step or self.step

    @contextmanager
    def on(self, console: Console, *, keep: bool = False) -> Generator[None]:
        """Draw the canvas there again and again; the last picture stays only if it is to be kept, or after an error."""
        live = Live(self, console=console, refresh_per_second=_PER_SECOND, transient=not keep)
        try:  # not `with`: an interrupt may come while it starts
            live.start(refresh=True)
            yield
        except BaseException:
            live.transient = False
            raise
        finally:
            live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment | Text]:
        # A style is sent to the terminal once for all tokens that have it in a row.
        yield from Segment.simplify(console.render(self.frame(options.max_width, console.height - 2), options))
        yield self.status()

    def status(self) -> Text:
        """How far decoding has come, on one line."""
        canvas, seconds = self.request.canvas, time.monotonic() - self._began
        block = f"block {min(canvas.block_index + 1, len(canvas.blocks))} of {len(canvas.blocks)}"
        tokens = f"{len(canvas.step_map)} of {len(canvas.holes)} tokens"
        line = f"pass {canvas.passes} · {tokens} · {block} · {seconds:.1f} s"
        return Text(line, style=FAINT, no_wrap=True, overflow="ellipsis")

    def frame(self, width: int, height: int | None = None) -> Text:
        """The canvas in lines; if they are more than the height, those around the current block."""
        canvas, pieces = self.request.canvas, list(self._pieces())
        lines = _folded(pieces, width)
        if height is not None and len(lines) > max(3, height):
            block, _ = canvas.blocks[min(canvas.block_index, len(canvas.blocks) - 1)]
            before = _folded([piece for piece in pieces if piece[0] <= block], width)
            room = max(1, height - 2)
            top = max(0, min(len(before) - 1 - room // 3, len(lines) - room))
            lines = [_more(top, "above"), *lines[top : top + room], _more(len(lines) - top - room, "below")]
        return Text("\n").join(lines)

    def _pieces(self) -> Iterator[tuple[int, str, str]]:
        """Position, text and style of what is shown, from left to right."""
        canvas, step = self.request.canvas, self.step
        fresh = {commit.position for commit in step.committed} if step else set()
        reopened = set(step.remasked) if step else set()
        holes, tokens = set(canvas.holes), [*canvas.tokens, canvas.mask_id]
        parts: list[int] = []  # tokens that hold a part of a character each
        for position in range(self.first, canvas.length):
            text, special = self._text(tokens[position])
            style = FRESH if position in fresh else FAINT if special or position not in holes else ""
            if tokens[position] == canvas.mask_id:
                style = REOPENED if position in reopened else FAINT
            if PART in text:
                parts.append(tokens[position])
                if PART in self._text(tokens[position + 1])[0]:
                    continue
                text, parts = visible(self.ending.codec.decode(parts)), []
            yield position, text.replace("\n", f"{BREAK}\n") + self.after(position - self.first), style

    def _text(self, token: int) -> tuple[str, bool]:
        """How a token is shown, and whether it is a special one."""
        if token not in self._known:
            codec, ends = self.ending.codec, token in self.ending.token_ids
            text = OPEN if token == self.request.canvas.mask_id else END if ends else visible(codec.token_text(token))
            self._known[token] = text, ends or not codec.decode([token])
        return self._known[token]


def _folded(pieces: list[tuple[int, str, str]], width: int) -> list[Text]:
    """Pieces of the canvas in lines of that width."""
    whole, lines = Text(), list[Text]()
    for _, text, style in pieces:
        whole.append(text.expandtabs(4), style)
    for line in whole.split("\n", allow_blank=True):
        parts = chop_cells(line.plain, max(2, width))
        lines += line.divide(accumulate(map(len, parts[:-1])))
    return lines


def _more(lines: int, where: str) -> Text:
    return Text(f"⋮ {lines} more {where}" if lines else "", style=FAINT, no_wrap=True, overflow="crop")
