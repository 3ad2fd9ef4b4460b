"""A web server in this process for what is posted to it."""

from __future__ import annotations

from collections.abc import Callable

from .local_server import LocalServer, QuietHandler


class PostReceiver(LocalServer):
    """Answers each POST, of whatever path, with the status that `answer` gives for its headers and body.

    Attributes:
        url: Without a path.
    """

    def __init__(self, answer: Callable[[dict[str, str], bytes], int]) -> None:
        class Handler(QuietHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(answer(dict(self.headers), body))
                self.end_headers()

        super().__init__(Handler)
