"""`unmask play` and `unmask view`: masks fill in the browser, now or as a trace recorded it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING
from pathlib import Path

from unmask import flags, terminal
from unmask.options import option
from unmask.parsing import with_flags
from unmask.serve.config import ServerConfig, with_keys
from unmask.settings import Settings


@with_flags(Settings, "Settings", early_stop=True)
@with_flags(flags.Model, "Model and policy")
def play(chosen: flags.Model, settings: Settings, port: int = flags.PORT, no_browser: bool = flags.NO_BROWSER) -> None:
    """Watch masks fill in the browser.

    The playground of a model, which only this machine can reach.
    """
    serving = flags.from_extra("unmask.serve.run", "serve", "the playground")
    config = with_keys(ServerConfig(port=port), terminal.note)
    with serving.bind(config) as bound:
        llm, policy = chosen.open()
        served = serving.Served(llm, config, policy=policy, settings=settings)
        serving.Server(served, say=terminal.note, on_ready=_opener(no_browser)).run(bound)


def view(
    files: Sequence[Path] = option(MISSING, "Traces; two are shown side by side.", argument=True, metavar="FILE"),
    html: Path | None = option(None, "Write the viewer to one file that needs no server.", metavar="FILE"),
    port: int = flags.PORT,
    no_browser: bool = flags.NO_BROWSER,
) -> None:
    """Look at traces in the browser, pass by pass."""
    flags.check_writable(html)
    page = _viewer(files)
    if html is not None:
        html.write_text(page, encoding="utf-8")
        return
    from unmask.web.show import serve_page

    def on_ready(url: str) -> None:
        terminal.note(f"the viewer is at {url}; Ctrl-C ends it")
        _opener(no_browser)(url)

    serve_page(page, port=port, on_ready=on_ready)


def _viewer(files: Sequence[Path]) -> str:
    """The page that shows these traces."""
    from unmask.trace.record import Trace
    from unmask.web import document

    traces = [(path.name, Trace.load(path)) for path in files]
    return document([(name, [trace.header, *trace.steps, *trace.results]) for name, trace in traces])


def _opener(no_browser: bool) -> Callable[[str], None]:
    """What to do with the URL of a page that is ready."""
    from unmask.web.show import open_browser

    return (lambda url: None) if no_browser else open_browser
