"""The files of the page, as they lie in the package: HTML, styles, scripts, an icon."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path

FOLDER = Path(__file__).parent
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# What a served page may do: load its own files and ask its own server, nothing else.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """A file with what a server must say about it."""

    content: bytes
    kind: str
    tag: str  # changes with the content


@cache
def asset(name: str) -> Asset | None:
    """The file of that name; None if the page has no such file."""
    path = FOLDER / name
    if not re.fullmatch(r"[a-z]+\.(html|css|js|svg)", name) or not path.is_file():
        return None
    content = path.read_bytes()
    return Asset(content=content, kind=KINDS[path.suffix], tag=f'"{blake2b(content, digest_size=12).hexdigest()}"')


def text_of(name: str) -> str:
    """The text of a file that is there."""
    return (FOLDER / name).read_text(encoding="utf-8")
