"""A real `celery-agents serve` in a process of its own."""

from __future__ import annotations

import copy
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from .processes import Process, free_port


class ServeProcess(Process):
    """The HTTP interface on a free port of the loopback interface.

    Args:
        env: Settings; `CELERY_AGENTS_HTTP_TOKEN_SECRETS` among them where tokens are wanted.
    """

    def __init__(self, directory: Path, redis_url: str, env: Mapping[str, str] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-P", "-m", "celery_agents", "serve", "--address", f"127.0.0.1:{self.port}"]
        super().__init__("serve", command, directory, {"CELERY_AGENTS_REDIS_URL": redis_url, **(env or {})})

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        since = len(self.text())
        super().start()
        self.wait_for_text("celery-agents serves", 30, since=since)

    def http(self, token: str | None = None) -> httpx.Client:
        """A client of it that sends this token."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(
            base_url=self.url, headers=headers, timeout=70, trust_env=False, verify=False
        )  # no TLS here, whose setup takes 50 ms


class StreamReader(threading.Thread):
    """Reads a stream of events as a browser does: comes back with the id of the last event when it is cut off.

    Attributes:
        events: (id, type, data) of each event, in the order of arrival.
        connections: How often it connected.
    """

    def __init__(self, url: Callable[[], str], path: str, token: str | None = None, *, until: str = "end") -> None:
        super().__init__(daemon=True)
        self._url, self._path, self._until = url, path, until
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.events: list[tuple[str, str, Any]] = []
        self.connections = 0
        self.deadline = time.monotonic() + 60

    @property
    def types(self) -> list[str]:
        """The types of the events."""
        return [kind for _, kind, _ in self.events]

    def run(self) -> None:
        """Read until the stream says that the execution has ended."""
        while time.monotonic() < self.deadline:
            last = next((each for each, _, _ in reversed(self.events) if each), None)
            headers = {**self._headers, **({"Last-Event-ID": last} if last else {})}
            try:
                with httpx.stream(
                    "GET",
                    self._url() + self._path,
                    params={"until": self._until},
                    headers=headers,
                    timeout=20,
                    trust_env=False,
                ) as response:
                    self.connections += 1
                    parse_events(response.iter_lines(), self.events)
                return
            except httpx.HTTPError:
                time.sleep(0.1)


def exact(components: dict[str, Any]) -> dict[str, Any]:
    """The schemas of a document that take no field which they do not name. A later version may add some."""
    exactly = copy.deepcopy(components)
    for schema in exactly["schemas"].values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    return exactly


def parse_events(lines: Iterator[str], into: list[tuple[str, str, Any]] | None = None) -> list[tuple[str, str, Any]]:
    """Parse lines of a stream of events; comments are left out."""
    found: list[tuple[str, str, Any]] = [] if into is None else into
    fields: dict[str, str] = {}
    for line in lines:
        if not line:
            if "data" in fields:
                found.append((fields.get("id", ""), fields.get("event", "message"), json.loads(fields["data"])))
            fields = {}
            continue
        name, _, value = line.partition(":")
        if name:
            fields[name] = value.removeprefix(" ")
    return found
