"""The keys of a checkpoint's JSON files, checked as they are read.

Every complaint names the file, the key and the value. Knows no family: the caller says what a key means.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from unmask.errors import CheckpointError

MOST_TEXT = 64 * 2**20  # bytes of a file other than weights; the largest public tokenizer has half of it
_MOST = 2**31 - 1  # of a whole number

_short = reprlib.Repr()  # nested values would exhaust the stack, and long ones fill the screen
_short.maxstring = _short.maxother = 80
shown = _short.repr  # how an error shows a value of a file


class Config:
    """One JSON object. A key that is null counts as absent, as it does in the code that wrote it.

    A value is read with a default; a key without a default must be there.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = {key: value for key, value in values.items() if value is not None}
        self.source = source

    @classmethod
    def read(cls, path: Path, *, optional: bool = False) -> Config:
        """The object in a JSON file. A file that is optional may be missing: it counts as empty."""
        text = "{}" if optional and not path.exists() else read_text(path)
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            problem = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise CheckpointError(f"{path}: is not valid JSON: {problem}") from error
        if not isinstance(values, dict):
            raise CheckpointError(f"{path}: must hold a JSON object, not a {type(values).__name__}")
        return cls(values, str(path))

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    def whole(self, key: str, default: Any = None, *, low: int = 1) -> int:
        wanted = f"a whole number from {low} to {_MOST}"
        return self._value(key, default, int, wanted, lambda value: low <= value <= _MOST)

    def number(self, key: str, default: Any = None) -> float:
        wanted = "a number above 0 and below 1e30"
        return float(self._value(key, default, int | float, wanted, lambda value: 0 < value < 1e30))

    def flag(self, key: str, default: Any = None) -> bool:
        return self._value(key, default, bool, "true or false")

    def ids(self, key: str) -> list[int]:
        """Token ids, which checkpoints write as one number or as a list."""
        value = self.get(key, [])
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in ids):
            raise self.error(f"{key} must be a token id or a list of them, got {shown(value)}")
        return ids

    def part(self, key: str) -> Config:
        """The object under a key; an empty one if there is none."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.error(f"{key} must be an object, got {shown(value)}")
        return Config(value, f"{self.source}: {key}")

    def only(self, key: str, *accepted: Any) -> None:
        """Refuse a value that would change the computation in a way that we do not implement."""
        value = self.get(key, accepted[0])
        if value not in accepted:
            supported = " or ".join(json.dumps(item) for item in accepted)
            found = shown(value) if isinstance(value, list | dict) else f"{json.dumps(value):.80}"
            raise self.error(f"{key} is {found}, but only {supported} is supported")

    def error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.source}: {problem}")

    def _value(
        self, key: str, default: Any, kind: Any, wanted: str, accepts: Callable[[Any], bool] = lambda value: True
    ) -> Any:
        value = self.get(key, default)
        if value is None:
            raise self.error(f"the key {key!r} is missing")
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool) or not accepts(value):
            raise self.error(f"{key} must be {wanted}, got {shown(value)}")
        return value


def read_text(path: Path) -> str:
    """The text in a file."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: is not UTF-8 text: {error}") from error
