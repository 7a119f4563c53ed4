"""Makes the pictures of this folder, or for the folder given: the page on `tiny`, in a headless Chromium."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
WAIT_MS = 60_000


@contextmanager
def playground() -> Iterator[str]:
    """The URL of a playground that runs meanwhile."""
    command = [sys.executable, "-m", "unmask", "play", "--no-browser"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        yield "http://" + process.stderr.readline().strip().split("http://")[1]
        process.send_signal(signal.SIGINT)


def decoded(
    browser: Browser, url: str, example: str, *, scheme: str, second: str | None = None, width: int = 1400
) -> Page:
    """The page after it has decoded an example, with one policy or two."""
    size = {"width": width, "height": 880}
    page = browser.new_page(viewport=size, color_scheme=scheme, reduced_motion="reduce", device_scale_factor=1.5)
    page.goto(url)
    page.get_by_role("button", name=example).click()
    if second is not None:
        page.get_by_label("Compare with a second policy").check()
        page.get_by_label("Second policy", exact=True).select_option(second)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("#status")).to_contain_text("Done", timeout=WAIT_MS)
    return page


def show(page: Page, number: int) -> None:
    page.get_by_label("Pass", exact=True).fill(str(number))
    page.wait_for_timeout(400)


def around(page: Page, *parts: str) -> bytes:
    """A picture of these parts of the page, and a little more on every side."""
    boxes = [page.locator(part).bounding_box() for part in parts]
    left, top = (min(box[side] for box in boxes if box) - 16 for side in ("x", "y"))
    right = max(box["x"] + box["width"] for box in boxes if box) + 16
    bottom = max(box["y"] + box["height"] for box in boxes if box) + 16
    clip = {"x": left, "y": top, "width": right - left, "height": bottom - top}
    return page.screenshot(clip=clip, full_page=True)


def save(shot: bytes, name: str) -> None:
    """With 256 colours: a third of the size, and the same to the eye."""
    image = Image.open(io.BytesIO(shot)).convert("RGB").quantize(256, method=Image.Quantize.FASTOCTREE)
    image.save(FOLDER / name, optimize=True)


def main() -> None:
    path = shutil.which("chromium-headless-shell")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playground() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        page = decoded(browser, url, "Sudoku", scheme="light")
        show(page, 6)
        page.locator("#cell-0-105").click()
        show(page, 6)
        save(page.screenshot(), "playground.png")
        page = decoded(browser, url, "Sudoku", scheme="dark", width=1120)
        show(page, 6)
        page.locator("#cell-0-105").click()
        page.locator(".heat canvas").hover(position={"x": 150, "y": 105})
        show(page, 6)
        save(around(page, ".details"), "inspector.png")
        page = decoded(browser, url, "Function", scheme="light", second="fixed")
        show(page, 8)
        save(around(page, ".transport", "section[aria-label=Progress]"), "compare.png")
        browser.close()


if __name__ == "__main__":
    main()
