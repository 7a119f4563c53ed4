"""The pages: the playground at `/`, the routes at `/docs`, and what the playground's form is built from."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response

from unmask import policies, tasks, web
from unmask.engine.plan import preset_name
from unmask.options import described
from unmask.policies import presets
from unmask.serve.served import Served
from unmask.serve.strict_json import dumps

HEADERS = {
    "Content-Security-Policy": web.POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
# Titles of the tasks that the embedded model was trained for, in the order of the page.
TASKS = {"sudoku": "Sudoku", "word_problems": "Word problem", "countdown": "Countdown", "list_functions": "Function"}
SEED = 3  # of the examples
PROMPTS = {
    "Arithmetic": "A farmer has 17 sheep and buys 5 more. 3 run away. How many sheep are left? Think step by step.",
    "Primes": "How many prime numbers are below 30? List them.",
    "Program": "Write a Python function that returns the longest word of a text.",
    "List": "Name five rivers of Europe and the seas into which they flow.",
}
FILES = {"/": "index.html", "/docs": "docs.html", "/favicon.ico": "icon.svg"}
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
router = APIRouter()


@cache
def _content(name: str) -> tuple[bytes, dict[str, str]]:
    """The file of that name, and what is said about it; the tag changes with the content."""
    path = web.FOLDER / name
    if not re.fullmatch(web.PUBLIC, name) or not path.is_file():
        raise HTTPException(404)
    content = path.read_bytes()
    tag = f'"{blake2b(content, digest_size=12).hexdigest()}"'
    return content, HEADERS | {"Content-Type": KINDS[path.suffix], "ETag": tag}


async def _file(request: Request) -> Response:
    content, headers = _content(FILES.get(request.scope["route"].path) or request.path_params["name"])
    if headers["ETag"] in request.headers.get("if-none-match", ""):  # which may list several, or call it weak
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers)


for path in (*FILES, "/assets/{name}"):
    router.add_api_route(path, _file, methods=["GET", "HEAD"], include_in_schema=False)


def form_of(served: Served) -> dict[str, Any]:
    """Everything that a form for requests must know: policies and settings with their defaults, and examples."""
    llm, own = served.llm, policies.describe(served.policy)
    known = list(presets.forms(preset_name(llm.spec)))
    if own["name"] not in (row["name"] for row in known):
        about = (type(served.policy).__doc__ or "").strip().partition("\n")[0]
        known.append({"name": own["name"], "parameters": described(served.policy), "preset": own, "about": about})
    return {
        "model": {"name": served.name, "chat": llm.codec.chat_template is not None, "positions": llm.spec.max_length},
        "policies": known,
        "settings": described(served.settings),
        "defaults": {"policy": own, "settings": served.settings.to_dict()},
        "examples": list(_examples(llm.spec.name)),
    }


def _examples(model: str) -> Iterator[dict[str, Any]]:
    if model != "tiny":
        yield from ({"title": title, "prompt": prompt, "settings": {}} for title, prompt in PROMPTS.items())
        return
    for name, title in TASKS.items():
        task = tasks.get(name)
        [item] = task.generate(seed=SEED, n=1)
        settings = {"max_tokens": task.max_tokens, "block_size": task.block_size}
        yield {"title": title, "prompt": item.prompt, "settings": settings}


@router.get("/v1/decoding", responses={401: {}})
async def decoding(request: Request) -> Response:
    """The policies and settings that a request may name, with types, defaults and bounds; and examples."""
    form = await asyncio.to_thread(form_of, request.app.state.served)  # takes a while: other clients must not wait
    return Response(dumps(form), media_type="application/json")
