"""A mapping out of a YAML file; what is wrong with the file is one line that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError


def read_mapping(path: Path, what: str, keys: str) -> dict[Any, Any]:
    """The mapping in the file. Errors call it `what`, and give examples of its `keys`."""
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnmaskError(f"cannot read the {what} {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UnmaskError(f"the {what} {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UnmaskError(f"the {what} {path} must be a mapping of {keys}")
    return values
