"""`TraceSink`: where traces go, and the sinks for files, HTTP and functions of your own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit
from uuid import uuid4

import tenacity
from tenacity.wait import wait_base

from ....config.urls import is_web_address
from ...errors import ConfigurationError
from .trace import Trace, TraceEvent

ATTEMPTS: Final = 4
SECONDS_PER_ATTEMPT: Final = 8.0
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 4.0
_AGAIN: Final = frozenset({404, 408, 425, 429, 500, 502, 503, 504})


class TraceSink(Protocol):
    """Takes traces. Its methods are called one after the other in a thread of its own, and raise what is wrong."""

    @property
    def name(self) -> str:
        """How messages and `failed_sinks` call it."""
        ...

    def begin(self, trace: Trace) -> None:
        """Take the beginning of a trace whose events will follow. The same may come again."""
        ...

    def append(self, trace: Trace, events: Sequence[TraceEvent]) -> None:
        """Take the events of a step. The same may come again; `TraceEvent.id` tells."""
        ...

    def write(self, trace: Trace) -> None:
        """Take the whole trace, in place of everything that it has of it. The same may come again."""
        ...


@dataclass(frozen=True)
class FileSink:
    """Writes each trace into a file of its own, `<execution id>.json`; what goes on into `<execution id>.jsonl`.

    Attributes:
        directory: Is made where it is missing.
    """

    directory: str | os.PathLike[str]

    @property
    def name(self) -> str:
        """See `TraceSink`."""
        return "file"

    def begin(self, trace: Trace) -> None:
        """Begin a file of lines: the trace, then an event each."""
        self._append(trace, [{"trace": trace.to_dict()}])

    def append(self, trace: Trace, events: Sequence[TraceEvent]) -> None:
        """Add a line for each event."""
        self._append(trace, [{"event": event.to_dict()} for event in events])

    def write(self, trace: Trace) -> None:
        """Write the whole trace into a file next to it and rename that, so that readers find all or nothing."""
        directory = self._make_directory()
        beside = directory / f".{trace.execution_id}-{uuid4().hex}"
        try:
            beside.write_bytes(json.dumps(trace.to_dict(), ensure_ascii=False, indent=1).encode())
            beside.replace(directory / f"{trace.execution_id}.json")
        except BaseException:
            beside.unlink(missing_ok=True)
            raise

    def _append(self, trace: Trace, lines: Sequence[Mapping[str, Any]]) -> None:
        text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
        with (self._make_directory() / f"{trace.execution_id}.jsonl").open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                # A worker that was killed, or a disk that was full, leaves a line without its end.
                text = text if file.read() == b"\n" else f"\n{text}"
            file.write(text.encode())

    def _make_directory(self) -> Path:
        directory = Path(self.directory)
        directory.mkdir(parents=True, exist_ok=True)
        return directory


@dataclass(frozen=True)
class HttpSink:
    """Posts traces as JSON: `{"type": "begin" | "events" | "trace", "trace": {…}, "events": […]}`.

    A post is tried up to four times, eight seconds each, with pauses of 0.25 to 4 seconds by chance, and as the
    receiver wishes by `Retry-After`. A receiver knows by `trace.execution_id` and `event.id` what comes again.

    Attributes:
        url: http or https. Redirects are not followed.
        headers: Such as `Authorization`.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    def __post_init__(self) -> None:
        if not is_web_address(self.url):
            raise ConfigurationError(f"HttpSink(url)={self.url!r:.100}: give an address that begins with http(s)://")

    @property
    def name(self) -> str:
        """See `TraceSink`."""
        return f"http {urlsplit(self.url).hostname}"

    def begin(self, trace: Trace) -> None:
        """Post the trace without events."""
        self._post("begin", trace)

    def append(self, trace: Trace, events: Sequence[TraceEvent]) -> None:
        """Post the events of a step."""
        self._post("events", trace, events)

    def write(self, trace: Trace) -> None:
        """Post the whole trace."""
        self._post("trace", trace)

    def _post(self, kind: str, trace: Trace, events: Sequence[TraceEvent] = ()) -> None:
        value = {"type": kind, "trace": trace.to_dict(), "events": [event.to_dict() for event in events]}
        body = json.dumps(value, ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json", **self.headers}
        asked = urllib.request.Request(self.url, body, headers, method="POST")
        _try_again(_send, asked)


@dataclass(frozen=True)
class CallbackSink:
    """Gives traces to functions of yours.

    Attributes:
        on_trace: Gets each whole trace, and traces that begin.
        on_events: Gets the events of a step, with the trace that they belong to. None: they come with the whole trace.
    """

    on_trace: Callable[[Trace], object]
    on_events: Callable[[Trace, Sequence[TraceEvent]], object] | None = None
    name: str = "callback"

    def begin(self, trace: Trace) -> None:
        """Call `on_trace`."""
        self.on_trace(trace)

    def append(self, trace: Trace, events: Sequence[TraceEvent]) -> None:
        """Call `on_events`."""
        if self.on_events is not None:
            self.on_events(trace, events)

    def write(self, trace: Trace) -> None:
        """Call `on_trace`."""
        self.on_trace(trace)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        """Follow none: the headers are for one host."""
        del req, fp, code, msg, headers, newurl


class _Connection(http.client.HTTPConnection):
    """A connection whose answer has to come within the time of an attempt; its timeout is for each read alone."""

    def getresponse(self) -> http.client.HTTPResponse:
        """Wait for status and headers; what of the headers is late is left out."""
        timer = threading.Timer(SECONDS_PER_ATTEMPT, self._end)
        timer.daemon = True
        timer.start()
        try:
            return super().getresponse()
        finally:
            timer.cancel()

    def _end(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # it has ended by itself
            self.sock.shutdown(socket.SHUT_RDWR)


class _TlsConnection(_Connection, http.client.HTTPSConnection):
    pass


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open a connection with a deadline."""
        return self.do_open(_Connection, req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open a connection over TLS with a deadline."""
        return self.do_open(_TlsConnection, req)


_opener: Final = urllib.request.build_opener(_NoRedirects, _Handler)


def _send(request: urllib.request.Request) -> None:
    try:
        _opener.open(request, timeout=SECONDS_PER_ATTEMPT).close()
    except urllib.error.HTTPError as error:
        with error:
            raise PostRefused(error.code, error.headers.get("Retry-After", "")) from None


class PostRefused(Exception):
    """A receiver has answered that it does not take a post.

    Attributes:
        status: Of HTTP.
        pause: Seconds that it wishes to be left alone; 0: it says none.
    """

    def __init__(self, status: int, retry_after: str) -> None:
        self.status = status
        self.pause = float(retry_after) if re.fullmatch(r"\d{1,6}", retry_after.strip()) else 0.0
        super().__init__(f"the receiver answered {status}")


class _Pause(wait_base):
    """Full jitter, and at least as long as the receiver wishes, up to the longest pause."""

    _chance = tenacity.wait_random_exponential(multiplier=_FIRST_PAUSE, max=_LONGEST_PAUSE)

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        error = retry_state.outcome.exception() if retry_state.outcome is not None else None
        wished = error.pause if isinstance(error, PostRefused) else 0.0
        return max(self._chance(retry_state), min(wished, _LONGEST_PAUSE))


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, PostRefused):
        return error.status in _AGAIN
    return isinstance(error, OSError | http.client.HTTPException)


def _try_again(send: Callable[[urllib.request.Request], None], request: urllib.request.Request) -> None:
    tries = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=_Pause(),
        retry=tenacity.retry_if_exception(_may_pass),
        reraise=True,
    )
    tries(send, request)
