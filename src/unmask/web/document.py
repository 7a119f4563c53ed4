"""The files of the page as they lie in the package, and the viewer as one file, which asks for nothing.

That file has styles, scripts and traces inside it, so that it opens from a disk. Scripts are modules. In one file they
become functions that hand out what they export, in the order of their imports.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, NamedTuple

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
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";\n', re.M)
_EXPORT = re.compile(r"^export ((?:async )?function|class|const) (\w+)", re.M)
HEIGHT = 760  # of the viewer in a notebook, in pixels


class Asset(NamedTuple):
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


def document(traces: Sequence[tuple[str, Sequence[dict[str, Any]]]]) -> str:
    """A page that shows these traces, each a name and its lines."""
    page, styles, script = text_of("index.html"), list[str](), _script("main")

    def inlined(match: re.Match[str]) -> str:
        styles.append(f"\n{text_of(match[1])}")
        return f"<style>{styles[-1]}</style>"

    icon = base64.b64encode(text_of("icon.svg").encode()).decode()
    page = page.replace('href="assets/icon.svg"', f'href="data:image/svg+xml;base64,{icon}"')
    page = re.sub(r'<link rel="stylesheet" href="assets/(\w+\.css)">', inlined, page)
    page = page.replace('<script type="module" src="assets/main.js"></script>', "")
    data = _plain([{"name": name, "lines": list(lines)} for name, lines in traces])
    scripts = f'<script type="application/json" id="traces">{data}</script>\n<script type="module">{script}</script>\n'
    page = page.replace("</body>", f"{scripts}</body>")
    sources = {"script-src": [script], "style-src": styles}
    allowed = "; ".join(f"{key} {' '.join(map(_digest, texts))}" for key, texts in sources.items())
    policy = f"default-src 'none'; {allowed}; img-src data:; base-uri 'none'; form-action 'none'"
    return page.replace("<head>", f'<head>\n<meta http-equiv="Content-Security-Policy" content="{policy}">', 1)


def frame(traces: Sequence[tuple[str, Sequence[dict[str, Any]]]]) -> str:
    """The page in a frame of its own, for a notebook: it can neither see the notebook nor ask for anything."""
    inside = html.escape(document(traces), quote=True)
    how = f'sandbox="allow-scripts allow-downloads" style="width:100%;height:{HEIGHT}px;border:0"'
    return f'<iframe title="unmask viewer" {how} srcdoc="{inside}"></iframe>'


def _plain(value: Any) -> str:
    """JSON inside a script element: without `<`, no text can end the element."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"


def _script(name: str) -> str:
    """The module and all that it imports, as one script."""
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name in done:
            return
        text = text_of(f"{name}.js")
        for _, other in _IMPORT.findall(text):
            add(other)
        text = _IMPORT.sub(lambda match: f"const {{{match[1]}}} = ${match[2]};\n", text)
        names = ", ".join(match[2] for match in _EXPORT.finditer(text))
        inside = _EXPORT.sub(r"\1 \2", text)
        done[name] = f"const ${name} = (() => {{\n{inside}\nreturn {{ {names} }};\n}})();\n"

    add(name)
    return "\n" + "".join(done.values())
