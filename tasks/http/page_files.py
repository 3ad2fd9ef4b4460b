"""The files of the page: read once, and sent with their policy, an ETag, and compressed where that is accepted.

They hold no data, so they need no token. What the page shows comes from `/v1`, with the rights of its token.

Comments stay here, and so do the spaces of the stylesheet. A browser gets blank lines for comments of modules: its
numbers of lines are those of the files.
`index.html` names the files with a tag of all their contents, `page/<tag>/main.js`, so that a browser keeps them and
asks for none of them again until one has changed.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
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
# Comments; in a module a whole line, or the end of one. No template has a line that looks like one: tests/check looks.
_COMMENT: Final[Mapping[str, re.Pattern[bytes]]] = {
    ".css": re.compile(rb"\s*/\*.*?\*/|(?<=[;{},:])\s+|\s+(?=[{}])", re.DOTALL),
    ".js": re.compile(rb"^ *(?://|/\*\*|\*[ /]|\*$).*$|(?<=[;{,(]) // [^`\"'\n]*$", re.MULTILINE),
}
# Another version of this server may have sent the tag: its browser gets the file all the same, and does not keep it.
_TAG: Final = re.compile(r"([0-9a-f]{12})/")
_ASK_AGAIN: Final = "no-cache"
_KEEP: Final = "public, max-age=31536000, immutable"
_HEADERS: Final = {
    # A frame around the page could have an approval clicked through another page.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
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
        if suffix in _COMMENT:
            content = _COMMENT[suffix].sub(b"", content)
        tag = hashlib.sha256(content).hexdigest()[:20]
        media_type = _TYPES.get(suffix, "text/plain")
        return cls(content=content, compressed=gzip.compress(content, mtime=0), media_type=media_type, tag=tag)

    def respond(self, request: Request, caching: str = _ASK_AGAIN) -> Response:
        """Send it: compressed where that is accepted, and without content where the browser has it.

        Args:
            caching: The header Cache-Control.
        """
        is_compressed = "gzip" in request.headers.get("accept-encoding", "")
        tag = f'"{self.tag}{"-gz" if is_compressed else ""}"'
        headers = {**_HEADERS, "ETag": tag, "Cache-Control": caching}
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

    def __init__(self) -> None:
        self._files = {
            path.relative_to(FOLDER).as_posix(): PageFile.of(path.read_bytes(), path.suffix)
            for path in sorted(FOLDER.rglob("*"))
            if path.is_file() and path.name != "index.html"
        }
        contents = "".join(f"{name} {each.tag}\n" for name, each in self._files.items())
        self._tag = hashlib.sha256(contents.encode()).hexdigest()[:12]
        # {up} is the way from an address to the mount: every address of the page is relative, and works below any path.
        index = (FOLDER / "index.html").read_text(encoding="utf-8").replace("{up}page/", f"{{up}}page/{self._tag}/")
        self._indexes = [PageFile.of(index.replace("{up}", up).encode(), ".html") for up in ("./", "../")]

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
        path = request.path_params["path"]
        tagged = _TAG.match(path)
        found = self._files.get(path[tagged.end() :] if tagged else path)
        if found is None:
            raise HttpProblem(404, "not-found", "The page has no such file. Load the page again.")
        return found.respond(request, _KEEP if tagged and tagged[1] == self._tag else _ASK_AGAIN)
