"""An HTTP server in a thread of this process, for tests that answer a request themselves."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class QuietHandler(BaseHTTPRequestHandler):
    """Serves one request, and writes no line about it."""

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


class LocalServer:
    """Serves requests on a free port from its creation until `close`.

    Attributes:
        url: Its address, without a path.
    """

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._server.shutdown()
        self._server.server_close()
