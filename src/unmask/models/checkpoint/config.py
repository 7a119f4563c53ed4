"""The keys of a checkpoint's JSON files, checked as they are read.

Every complaint names the file, the key and the value. Knows no family: the caller says what a key means.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmask.errors import CheckpointError

MOST_TEXT = 64 * 2**20  # bytes of a file other than weights; the largest public tokenizer has half of it
_MOST = 2**31 - 1  # of a whole number

_short = reprlib.Repr()  # nested values would exhaust the stack, and long ones fill the screen
_short.maxstring = _short.maxother = 80


class Config:
    """One JSON object. A key that is null counts as absent, as it does in the code that wrote it.

    A value is read with a default; a key without a default must be there.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = {key: value for key, value in values.items() if value is not None}
        self.source = source

    @classmethod
    def read(cls, path: Path, *, optional: bool = False) -> Config:
        return cls(read_json(path, optional=optional), str(path))

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    def whole(self, key: str, default: Any = None, *, low: int = 1) -> int:
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= _MOST:
            most = f" and at most {_MOST}" if isinstance(value, int) and value > _MOST else ""
            raise self.error(f"{key} must be a whole number of at least {low}{most}, got {shown(value)}")
        return value

    def number(self, key: str, default: Any = None) -> float:
        value = self._value(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
            raise self.error(f"{key} must be a number above 0 and below 1e30, got {shown(value)}")
        return float(value)

    def flag(self, key: str, default: Any = None) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, got {shown(value)}")
        return value

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

    def _value(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        if value is None:
            raise self.error(f"the key {key!r} is missing")
        return value


def read_text(path: Path) -> str:
    """The text in a file."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: is not UTF-8 text: {error}") from error


def shown(value: Any) -> str:
    """A value of a file as an error shows it, cut short."""
    return _short.repr(value)


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """The object in a JSON file. A file that is optional may be missing: it counts as empty."""
    if optional and not path.exists():
        return {}
    text = read_text(path)
    try:
        values = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{path}: is not valid JSON: {error}") from error
    except RecursionError as error:
        raise CheckpointError(f"{path}: is not valid JSON: it is nested too deeply") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: must hold a JSON object, not a {type(values).__name__}")
    return values
