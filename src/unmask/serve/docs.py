"""The page at `/docs`: our own, drawn from /openapi.json. It loads nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Response

FOLDER = Path(__file__).parent.parent / "web"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FILES = {"/docs": "docs.html", "/assets/docs.css": "docs.css", "/assets/docs.js": "docs.js"}
router = APIRouter()


def _add(url: str, path: Path) -> None:
    headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
    content = path.read_bytes()

    @router.api_route(url, methods=["GET", "HEAD"], include_in_schema=False)
    async def file() -> Response:
        return Response(content, headers=headers, media_type=KINDS[path.suffix])


for url, name in FILES.items():
    _add(url, FOLDER / name)
