"""A real browser, pages that must stay quiet, and servers for them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from serve.servers import Running, running

import unmask
from unmask.engine.generator import Generator

BROWSER = "chromium-headless-shell"
OpenPage = Callable[..., Page]


# For a module, not for the session: meanwhile an event loop runs in this thread, and other tests have their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which(BROWSER)
    if path is None:
        missing = f"{BROWSER} is missing: apt-get install {BROWSER}"
        pytest.fail(missing) if os.environ.get("CI") == "true" else pytest.skip(missing)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens pages. At the end, none may have asked another host, or told of an error or a breach of its policy."""
    contexts, faults = [], []

    def open_(url: str, *, width: int = 1200, expected: tuple[str, ...] = (), **options: Any) -> Page:
        """`expected`: words of messages that the test means to cause."""

        def hear(message: str) -> None:
            if not any(word in message for word in expected):
                faults.append(message)

        context = browser.new_context(
            viewport={"width": width, "height": 900}, **{"reduced_motion": "reduce", **options}
        )
        contexts.append(context)
        page = context.new_page()
        own = url.split("/")[2]
        page.on("console", lambda message: hear(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: hear(str(error)))
        page.on("request", lambda asked: None if elsewhere(asked.url, own) is None else hear(f"asked {asked.url}"))
        page.goto(url)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert faults == []


def elsewhere(url: str, own: str) -> str | None:
    """The URL if it leads away from the page's own host."""
    return None if url.startswith(("data:", "blob:", "file:")) or url.split("/")[2] == own else url


@pytest.fixture(scope="session")
def toy() -> Generator:
    return unmask.load("toy", device="cpu")


@pytest.fixture(scope="session")
def tiny() -> Generator:
    return unmask.load("tiny", device="cpu")


@pytest.fixture(scope="session")
def toy_served(toy: Generator) -> Iterator[Running]:
    with running(toy, settings=unmask.Settings(max_tokens=24, block_size=12, early_stop=True)) as found:
        yield found


@pytest.fixture
def exported(tmp_path: Path) -> Callable[..., str]:
    """Writes the viewer of traces, given as their lines, to a file; gives its URL."""

    def export(*traces: list[dict[str, Any]]) -> str:
        from unmask.web import document

        path = tmp_path / "viewer.html"
        path.write_text(document([(f"trace-{at}", lines) for at, lines in enumerate(traces)]), encoding="utf-8")
        return path.as_uri()

    return export
