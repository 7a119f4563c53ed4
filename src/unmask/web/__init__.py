"""The page: playground, viewer, and the files that they are made of. Knows no model and no server.

The viewer is also made as one file, which has styles, scripts and traces inside it, so that it opens from a disk and
asks for nothing. Scripts are modules. In one file they become functions that hand out what they export, in the order
of their imports.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PUBLIC = r"[a-z]+\.(html|css|js|svg)"  # names of the files that a server may send
# What a served page may do: load its own files and ask its own server, nothing else.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";\n', re.M)
_EXPORT = re.compile(r"^export ((?:async )?function|class|const) (\w+)", re.M)
HEIGHT = 760  # of the viewer in a notebook, in pixels


def _text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def document(traces: Sequence[tuple[str, Sequence[dict[str, Any]]]]) -> str:
    """A page that shows these traces, each a name and its lines."""
    page, script = _text_of("index.html"), _script("main")
    style = "".join(map(_text_of, re.findall(r'<link rel="stylesheet" href="assets/(\w+\.css)">', page)))
    icon = base64.b64encode(_text_of("icon.svg").encode()).decode()
    shown = [{"name": name, "lines": list(lines)} for name, lines in traces]
    # Without `<`, no text can end the element.
    data = json.dumps(shown, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    allowed = f"script-src {_digest(script)}; style-src {_digest(style)}"
    policy = f"default-src 'none'; {allowed}; img-src data:; base-uri 'none'; form-action 'none'"
    head = f'<link rel="icon" href="data:image/svg+xml;base64,{icon}">\n<style>{style}</style>\n'
    body = f'<script type="application/json" id="traces">{data}</script>\n<script type="module">{script}</script>\n'
    page = re.sub(r'<(link|script)[^>]* (href|src)="assets/[^>]*>(</script>)?\n', "", page)
    page = page.replace("<head>", f'<head>\n<meta http-equiv="Content-Security-Policy" content="{policy}">')
    return page.replace("</head>", f"{head}</head>").replace("</body>", f"{body}</body>")


def frame(traces: Sequence[tuple[str, Sequence[dict[str, Any]]]]) -> str:
    """The page in a frame of its own, for a notebook: it can neither see the notebook nor ask for anything."""
    inside = html.escape(document(traces), quote=True)
    how = f'sandbox="allow-scripts allow-downloads" style="width:100%;height:{HEIGHT}px;border:0"'
    return f'<iframe title="unmask viewer" {how} srcdoc="{inside}"></iframe>'


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"


def _script(name: str) -> str:
    """The module and all that it imports, as one script."""
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name in done:
            return
        text = _text_of(f"{name}.js")
        for _, other in _IMPORT.findall(text):
            add(other)
        text = _IMPORT.sub(lambda match: f"const {{{match[1]}}} = ${match[2]};\n", text)
        names = ", ".join(match[2] for match in _EXPORT.finditer(text))
        inside = _EXPORT.sub(r"\1 \2", text)
        done[name] = f"const ${name} = (() => {{\n{inside}\nreturn {{ {names} }};\n}})();\n"

    add(name)
    return "\n" + "".join(done.values())
