"""What a finished canvas says: its text, where that ends, and what it cost."""

from __future__ import annotations

from unmask.engine.canvas import Canvas
from unmask.engine.text import Ending
from unmask.models.tokenizer import TextCodec
from unmask.types import Output, Usage


def is_complete(canvas: Canvas, ending: Ending) -> bool:
    """Whether the finished blocks of a continuation have its whole text."""
    # What lies behind a hole in the middle of a text is still wanted, whatever the hole was filled with.
    return canvas.continues and ending.cut(canvas.prefix(whole_blocks=True))[2]


def continued(canvas: Canvas, ending: Ending) -> Output:
    """The result of a continuation, cut where the text ends."""
    ids, text, ended = ending.cut(canvas.filled)
    return _output(canvas, ids=ids, text=text, completion=len(ids), reason="stop" if ended else "length")


def filled(canvas: Canvas, codec: TextCodec) -> Output:
    """The result of an infilling: the whole text."""
    text = codec.decode(canvas.tokens)
    return _output(canvas, ids=list(canvas.tokens), text=text, completion=len(canvas.holes), reason="stop")


def _output(canvas: Canvas, *, ids: list[int], text: str, completion: int, reason: str) -> Output:
    prompt = len(canvas.tokens) - len(canvas.holes)
    return Output(
        text=text,
        token_ids=ids,
        finish_reason=reason,
        usage=Usage(prompt_tokens=prompt, completion_tokens=completion, forward_passes=canvas.passes),
        canvas_ids=canvas.filled,
        step_map=[canvas.step_map[position] for position in canvas.holes],
    )
