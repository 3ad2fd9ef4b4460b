"""What each reader of the build that runs this says of all sessions: `python read.py REDIS_URL FOLDER`, as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx

from celery_agents import AgentClient
from celery_agents.tasks.client.json_values import event_value

from support.processes import Process, free_port
from support.wait import wait_until

PATHS: Final = ("", "/state", "/messages?limit=1000", "/requests", "/trace", "/tree")


def read_session(client: AgentClient, http: httpx.Client, session: str) -> dict[str, Any]:
    """What each reader says; the name and the text of the error where it refuses."""
    store = client.store.sessions
    readers: dict[str, Callable[[], object]] = {
        "state": lambda: client.show(session).state.to_dict(),
        "snapshot": lambda: client.snapshot(session).to_dict(),
        "trace": lambda: client.trace(session).to_dict(),
        "events": lambda: [event_value(event) for event in store.events(session)],
        "results": lambda: [result.to_dict() for result in store.records(session)],
    }
    found: dict[str, Any] = {}
    for name, read in readers.items():
        try:
            found[name] = read()
        except Exception as error:  # it is what this reader says
            found[name] = f"{type(error).__name__}: {error}"
    for path in PATHS:
        reply = http.get(f"/v1/sessions/{session}{path}")
        is_json = "json" in reply.headers.get("content-type", "")
        found[f"GET {path}"] = [reply.status_code, reply.json() if is_json else reply.text]
    return found


def read_all(url: str, folder: Path) -> dict[str, Any]:
    client, address = AgentClient(redis_url=url), f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "celery_agents"]
    env = {"CELERY_AGENTS_REDIS_URL": url}
    server = Process("serve", [*command, "serve", "--address", address], folder, env)
    server.start()
    try:
        with httpx.Client(base_url=f"http://{address}", trust_env=False, timeout=60) as http:
            wait_until(
                lambda: http.get("/v1/health").status_code == 200,
                "the interface answers",
                60,
                ignoring=(httpx.HTTPError,),
            )
            names = sorted(header.session_id for header in client.list(limit=10_000).items)
            sessions = {name: read_session(client, http, name) for name in names}
        listed = [*command, "list", "--json", "-n", "10000"]
        lines = subprocess.run(listed, env={**os.environ, **env}, capture_output=True, text=True, check=True).stdout
    finally:
        server.end(patience=0.0)
    headers = [json.loads(line) for line in lines.splitlines()]
    return {"sessions": sessions, "list": {each["session_id"]: each for each in headers if "session_id" in each}}


def main() -> None:
    url, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    json.dump(read_all(url, folder), sys.stdout, default=str)


if __name__ == "__main__":
    main()
