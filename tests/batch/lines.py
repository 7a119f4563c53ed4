"""Lines of a batch, and what came of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import unmask
from unmask import policies
from unmask.batch import complete
from unmask.engine.generator import Generator

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def line_of(custom_id: str, body: Any, url: str = COMPLETIONS) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def completed(llm: Generator, lines: Iterable[dict[str, Any]], **options: Any) -> Iterator[dict[str, Any]]:
    """The results, with the defaults of the servers in the tests."""
    given = {"policy": policies.preset("mean_field", "llada"), "settings": unmask.Settings(early_stop=True), "rows": 3}
    return complete(llm, lines, **given | options)


def plain(body: dict[str, Any]) -> dict[str, Any]:
    """A body without what differs each time."""
    return {key: value for key, value in body.items() if key not in ("id", "created")}


def write(path: Path, lines: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def answers_in(path: Path) -> dict[str, dict[str, Any]]:
    """The plain bodies by id, each of which is there once."""
    results = [json.loads(line) for line in path.read_bytes().splitlines()]
    found = {result["custom_id"]: plain(result["response"]["body"]) for result in results}
    assert len(found) == len(results)
    return found
