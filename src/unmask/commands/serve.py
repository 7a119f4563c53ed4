"""`unmask serve`, `batch`, `play` and `view`: what is asked over HTTP, in a file or in the browser, and what was."""

from __future__ import annotations

import contextlib
import os
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from dataclasses import MISSING
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from unmask import flags, progress, terminal
from unmask.commands.generate import open_model
from unmask.errors import Interrupted, UnmaskError
from unmask.options import option
from unmask.serve.config import ServerConfig, with_keys
from unmask.serve.ending import holding_sigterm, stoppable
from unmask.settings import Settings
from unmask.web import document

HOST = "127.0.0.1"  # of the viewer: only this machine can reach it
PORT = option(0, "Port of this machine; 0: a free one.", least=0, most=65535)
NO_BROWSER = option(False, "Do not open a browser; the URL is printed.", "--no-browser")


def serve(
    model: flags.Model,
    cluster: flags.Backend,
    server: ServerConfig,  # before the settings: its seed knows whether it was given
    settings: Settings = flags.EARLY_STOP,
) -> None:
    """Serve a model over HTTP, for OpenAI's clients.

    Policy and settings are for requests that do not say.
    """
    on_ray, config = cluster.on_ray("serve"), with_keys(server, terminal.note)
    with stoppable(terminal.note):
        with holding_sigterm():  # libraries start threads when they are imported
            serving = flags.from_extra("unmask.serve.fleet" if on_ray else "unmask.serve.run", "serve", "serving")
        if on_ray:
            make = partial(serving.Served.load, model.open, config, settings)
            serving.Fleet(make, config, cluster=cluster, say=terminal.note).run()
        else:
            _serve(serving, model, config, settings)


def _serve(serving: Any, model: flags.Model, config: ServerConfig, settings: Settings, **listeners: Any) -> None:
    with serving.bind(config) as bound:
        served = serving.Served.load(partial(open_model, model), config, settings)
        serving.Server(served, say=terminal.note, **listeners).run(bound)


def batch(
    model: flags.Model,
    cluster: flags.Backend,
    settings: Settings = flags.EARLY_STOP,
    source: Path = option(MISSING, "Requests in OpenAI's batch form, one a line.", "IN"),
    target: Path = option(MISSING, "Answers are appended; one that is there is kept.", "OUT"),
    batch_size: int = flags.BATCH_SIZE,
    served_model_name: str | None = option(None, "Name of the model in requests."),
) -> None:
    """Answer a file of requests as a server would.

    Every answer is on disk at once; the same command goes on.
    """
    flags.check_writable(target)
    files, on_ray = flags.from_extra("unmask.batch", "serve", "a batch"), cluster.on_ray("batch")

    def answer(lines: Iterator[Any], count: int) -> Iterator[Any]:
        options: dict[str, Any] = {"settings": settings, "rows": batch_size, "name": served_model_name}
        if on_ray:
            return files.complete_on(files.Pool(model.open, cluster), lines, count, **options)
        llm, policy = model.open()
        return files.complete(llm, lines, policy=policy, **options)

    try:
        with progress.batch() as on_progress, cluster.quiet():
            done = files.run(source, target, answer, on_progress=on_progress)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; every finished answer is in {target}, the same command goes on") from None
    terminal.note(progress.summary_of(done))


def play(
    model: flags.Model, settings: Settings = flags.EARLY_STOP, port: int = PORT, no_browser: bool = NO_BROWSER
) -> None:
    """Watch masks fill in the browser.

    The playground of a model, which only this machine can reach.
    """
    serving = flags.from_extra("unmask.serve.run", "serve", "the playground")
    config = with_keys(ServerConfig(port=port), terminal.note)
    _serve(serving, model, config, settings, on_ready=(lambda url: None) if no_browser else _open_browser)


def view(
    files: Sequence[Path] = option(MISSING, "Traces; two are shown side by side.", "FILE"),
    html: Path | None = option(None, "Write the viewer to one file that needs no server."),
    port: int = PORT,
    no_browser: bool = NO_BROWSER,
) -> None:
    """Look at traces in the browser, pass by pass."""
    from unmask.trace.record import Trace

    flags.check_writable(html)
    traces = [(path.name, Trace.load(path)) for path in files]
    page = document([(name, [trace.header, *trace.steps, *trace.results]) for name, trace in traces])
    if html is not None:
        html.write_text(page, encoding="utf-8")
        return
    with _page_server(page.encode(), port) as server, contextlib.suppress(KeyboardInterrupt):
        url = f"http://{HOST}:{server.server_port}/"
        terminal.note(f"the viewer is at {url}; Ctrl-C ends it")
        if not no_browser:
            _open_browser(url)
        server.serve_forever()


def _open_browser(url: str) -> None:
    """Open the URL in a window, if this machine has one; a browser that would take the terminal is left alone."""
    try:
        found = webbrowser.get()
    except webbrowser.Error:
        return
    if type(found) is not webbrowser.GenericBrowser or "BROWSER" in os.environ:
        threading.Thread(target=found.open, args=(url,), daemon=True).start()


def _page_server(content: bytes, port: int) -> ThreadingHTTPServer:
    """A server of this one page at the loopback address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # Another name for this machine would be that of a site which points it here, to read the page.
            known = self.headers.get("Host") in (f"{HOST}:{server.server_port}", f"localhost:{server.server_port}")
            found = known and self.path == "/"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
            self.send_header("Content-Length", str(len(content) if found else 0))
            self.end_headers()
            if found and self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    try:
        server = ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        raise UnmaskError(f"cannot listen at {HOST}, port {port}: {error.strerror}") from error
    return server
