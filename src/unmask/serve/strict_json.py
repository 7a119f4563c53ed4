"""JSON as clients send and get it: in UTF-8, without NaN, and with no name twice in one object."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn

from unmask.errors import UnmaskError


def dumps(data: Any) -> bytes:
    """The data in UTF-8; half a surrogate pair, which a client may have sent, stays the escape that it was."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace")


def loads(raw: bytes, what: str) -> Any:
    """The data of a text that errors call `what`."""
    try:
        return json.loads(raw.decode("utf-8"), parse_constant=_refuse, object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise UnmaskError(f"{what} is not UTF-8: {error.reason} at byte {error.start}") from error
    except RecursionError as error:
        raise UnmaskError(f"{what} is nested too deeply") from error
    except ValueError as error:
        raise UnmaskError(f"{what} is not JSON: {str(error).partition(';')[0]}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"it has {name!r} twice in one object")
    return found


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")
