"""A page on this machine: served at a free port of the loopback address, and opened in the browser."""

from __future__ import annotations

import os
import threading
import webbrowser
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from unmask.errors import UnmaskError

HOST = "127.0.0.1"


def open_browser(url: str) -> None:
    """Open the URL in a window, if this machine has one; a browser that would take the terminal is left alone."""
    try:
        found = webbrowser.get()
    except webbrowser.Error:
        return
    if type(found) is not webbrowser.GenericBrowser or "BROWSER" in os.environ:
        threading.Thread(target=found.open, args=(url,), daemon=True).start()


def serve_page(page: str, *, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve this one page until the user interrupts."""
    content = page.encode()

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
            if found:
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    try:
        server = ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        raise UnmaskError(f"cannot listen at {HOST}, port {port}: {error.strerror}") from error
    with server:
        on_ready(f"http://{HOST}:{server.server_port}/")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
