"""The prompts of a command: its arguments, files and pipes."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from unmask.errors import UnmaskError

STDIN = Path("-")


class Given(NamedTuple):
    """A prompt, and the id that its line of a file gave it, which its result keeps."""

    text: str
    id: Any = None

    def result(self, output: dict[str, Any], *, full: bool) -> str:
        """A line of JSON: the id, and an output's fields; the canvas and step map only if wanted."""
        kept = {key: value for key, value in output.items() if full or key not in ("canvas_ids", "step_map")}
        return json.dumps(({} if self.id is None else {"id": self.id}) | kept, ensure_ascii=False)


def read_prompts(typed: Sequence[str], files: Sequence[Path]) -> list[Given]:
    """The prompts of a command: its arguments and files, or else the text that is piped in; `-` is that text, too."""
    prompts = [given for text in typed for given in (_prompts_in(STDIN) if text == "-" else [Given(text)])]
    prompts += [given for path in files for given in _prompts_in(path)]
    if not prompts and sys.stdin is not None and not sys.stdin.isatty():
        prompts = [given for given in _prompts_in(STDIN) if given.text]
    if not prompts:
        raise UnmaskError("no prompt: give one as an argument, with --file, or through a pipe")
    for number, given in enumerate(prompts, 1):
        if not given.text:
            which = "the prompt" if len(prompts) == 1 else f"prompt {number} of {len(prompts)}"
            raise UnmaskError(f"{which} is empty")
    return prompts


def _prompts_in(path: Path) -> list[Given]:
    try:
        text = sys.stdin.read() if path == STDIN else path.read_text(encoding="utf-8")
    except OSError as error:
        raise UnmaskError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UnmaskError(f"{'standard input' if path == STDIN else path} is not UTF-8 text") from error
    if path.suffix != ".jsonl":
        return [Given(text.removesuffix("\n"))]
    return [_prompt_in(line, f"{path}:{number}") for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _prompt_in(line: str, place: str) -> Given:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise UnmaskError(f"{place} is not JSON: {error}") from error
    fields = value if isinstance(value, dict) else {"prompt": value}
    if not isinstance(fields.get("prompt"), str):
        raise UnmaskError(f"{place} must be a string, or an object with a string under 'prompt'")
    return Given(fields["prompt"], fields.get("id"))
