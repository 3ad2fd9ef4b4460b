"""The files of the page: read once, and sent with their policy, an ETag, and compressed where that is accepted.

They hold no data, so they need no token. What the page shows comes from `/v1`, with the rights of its token.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .problems import HttpProblem

FOLDER: Final = Path(__file__).parent / "page"
_PLACES: Final = ("/sessions", "/sessions/{id}", "/requests", "/tree/{id}", "/fleet")
_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css"}
_HEADERS: Final = {
    # A frame around the page could have an approval clicked through another page.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFile:
    """A file as it is sent.

    Attributes:
        tag: Its ETag; that of the compressed form has another ending.
    """

    content: bytes
    compressed: bytes
    media_type: str
    tag: str

    @classmethod
    def of(cls, content: bytes, suffix: str) -> PageFile:
        """Make it of the content of a file with this suffix."""
        tag = hashlib.sha256(content).hexdigest()[:20]
        media_type = _TYPES.get(suffix, "text/plain")
        return cls(content=content, compressed=gzip.compress(content, mtime=0), media_type=media_type, tag=tag)

    def respond(self, request: Request) -> Response:
        """Send it: compressed where that is accepted, and without content where the browser has it."""
        is_compressed = "gzip" in request.headers.get("accept-encoding", "")
        tag = f'"{self.tag}{"-gz" if is_compressed else ""}"'
        headers = {**_HEADERS, "ETag": tag}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if is_compressed:
            headers["Content-Encoding"] = "gzip"
        content = self.compressed if is_compressed else self.content
        return Response(content, media_type=self.media_type, headers=headers)


class PageFiles:
    """The page below the path of the mount.

    Its addresses are `/` for browsers, those of its places, which all give `index.html`, and `/page/…` for its files.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        """
        Args:
            folder: Has `index.html`, in which `{up}` stands for the way from an address to the mount: every address of
                the page is relative, so that it works below any path.
        """
        index = (folder / "index.html").read_text(encoding="utf-8")
        self._indexes = [PageFile.of(index.replace("{up}", up).encode(), ".html") for up in ("./", "../")]
        self._files = {
            path.relative_to(folder).as_posix(): PageFile.of(path.read_bytes(), path.suffix)
            for path in folder.rglob("*")
            if path.is_file() and path.name != "index.html"
        }

    def routes(self) -> list[Route]:
        """The routes of the page."""
        return [
            Route("/", self._show_root),
            *(Route(path, self._show_place) for path in _PLACES),
            Route("/page/{path:path}", self._show_file),
        ]

    async def _show_root(self, request: Request) -> Response:
        """Show the page to browsers, and tell programs where the interface is described."""
        if "text/html" in request.headers.get("accept", ""):
            return self._indexes[0].respond(request)
        described_at = f"{request.scope.get('root_path', '')}/openapi.json"
        return JSONResponse({"name": "celery-agents", "described_at": described_at})

    async def _show_place(self, request: Request) -> Response:
        return self._indexes["id" in request.path_params].respond(request)

    async def _show_file(self, request: Request) -> Response:
        found = self._files.get(request.path_params["path"])
        if found is None:
            raise HttpProblem(404, "not-found", "The page has no such file. Load the page again.")
        return found.respond(request)
