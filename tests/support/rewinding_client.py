"""A client in a process of its own that acts on one session by a script, and may be killed at any moment.

    python -m support.rewinding_client <redis url> <session> <script> <notes> <death> [<only this act> <seconds before>]

The script is a JSON list of acts, see `act`. What the client has seen goes to its notes, each line on the disk before it goes on;
started again, it does the first act again that is not noted as done, under the same key. `<death>` is `<point` or `>point`: it is
killed before or behind that round trip, the first time; "-": it is not.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from celery_agents import AgentClient, AgentState, ExecutionStatus
from celery_agents.config.settings import Settings
from celery_agents.worker.errors import (
    ActionRefused,
    IdempotencyMismatch,
    InvalidInput,
    SessionNotFound,
    StoreUnavailable,
)
from celery_agents.worker.store.database import Command, Reply
from celery_agents.worker.store.redis.database import RedisDatabase
from celery_agents.worker.store.redis.pools import make_pool
from celery_agents.worker.store.store import redis_store

from .agents import call, plan, plan_of

AGENT: Final = "asking"
TARGET_PREFIX: Final = "at "
_ENDED: Final = frozenset({"completed", "failed", "stopped", "idle"})
_PATIENCE_SECONDS: Final = 60.0
Notes = list[dict[str, Any]]


def text_of(key: str, tools: Sequence[str]) -> str:
    """The message of an act: a plan in which each tool is called in a step of its own, long enough to be packed."""
    works = [f"{key}.{number} " + f"{tool} of {key} " * 80 for number, tool in enumerate(tools)]
    return plan(*([call(tool, work=work)] for tool, work in zip(tools, works, strict=True)), answer=f"of {key}")


def facts(state: AgentState) -> dict[str, Any]:
    """What a rewind takes back: messages, metadata, prompt."""
    said = state.to_dict()["context"]
    messages = [message.to_json() for message in state.store.section().messages]
    return {
        "messages": [hashlib.sha256(each).hexdigest()[:20] for each in messages],
        "rest": [said.get("metadata"), state.system_prompt],
    }


def read_notes(path: Path) -> Notes:
    """The lines of a client; one that it has not finished is none."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


class _MortalDatabase(RedisDatabase):
    """Kills its process at a round trip."""

    def __init__(self, url: str, death: str) -> None:
        super().__init__(make_pool(url, timeout_seconds=5, max_connections=16))
        self._death = death

    def _round_trip(self, point: str, wire: Any, commands: Sequence[Command]) -> list[Reply]:
        self._pass(f"<{point}")
        replies = super()._round_trip(point, wire, commands)
        self._pass(f">{point}")
        return replies

    def _pass(self, place: str) -> None:
        if place == self._death:
            os.kill(os.getpid(), signal.SIGKILL)


class _MortalClient(AgentClient):
    def __init__(self, url: str, death: str) -> None:
        super().__init__(settings=Settings.from_environment(redis_url=url))
        database = _MortalDatabase(url, death)
        self._store = redis_store(self.settings, name="mortal", publisher=self._publisher, database=database)


class ScriptedClient:
    """Does the acts of its script, as far as its notes do not tell that they are done."""

    def __init__(self, client: AgentClient, session: str, notes: Path) -> None:
        self._client, self._session, self._path = client, session, notes
        self._notes = read_notes(notes)
        self._file = notes.open("a")
        whole = sum(len(json.dumps(line)) + 1 for line in self._notes)
        self._file.truncate(whole)  # a line that was not finished

    def run(self, script: Sequence[dict[str, Any]]) -> None:
        """Do all acts, in their order."""
        for each in script:
            if not any(note["key"] == each["key"] and "done" in note for note in self._notes):
                self.do(each)

    def do(self, each: dict[str, Any]) -> None:
        """Do one act, as often as it is refused or the reply is lost."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        acts: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
            "submit": self._submit, "message": self._message, "remark": self._message, "rewind": self._rewind,
            "fork": self._fork,
            "settle": self._settle, "release": self._release, "again": self._again,
        }  # fmt: skip
        while True:
            assert time.monotonic() < deadline, f"{each} not within {_PATIENCE_SECONDS:g} s"
            try:
                done = acts[each["kind"]](each)
            except (StoreUnavailable, SessionNotFound):  # the other client has not submitted it yet
                done = None
            except ActionRefused as refusal:  # something runs
                self._note(each["key"], refused=str(refusal))
                done = None
            if done is not None:
                self._note(each["key"], done=done)
                return
            time.sleep(0.05)

    def _note(self, key: str, **facts: Any) -> None:
        line = {"key": key, **facts}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._notes.append(line)

    # --- acts -------------------------------------------------------------------------------------------------

    def _submit(self, each: dict[str, Any]) -> dict[str, Any]:
        text = text_of(each["key"], each["tools"])
        job = self._client.submit(AGENT, text, session_id=self._session, idempotency_key=each["key"])
        return {"operation": job.operation_id}

    def _message(self, each: dict[str, Any]) -> dict[str, Any]:
        text, when = text_of(each["key"], each["tools"]), "steer" if each["kind"] == "remark" else "refuse"
        job = self._client.send_message(self._session, text, when=when, idempotency_key=each["key"])
        return {"operation": job.operation_id, "placed": job.placed}

    def _rewind(self, each: dict[str, Any]) -> dict[str, Any]:
        target = self._target(each)
        version = self._client.rewind(self._session, to=target, idempotency_key=each["key"], by=each["key"])
        shown = self._client.show(self._session)
        return {"version": version, "shown": shown.version, "state": facts(shown.state)}

    def _fork(self, each: dict[str, Any]) -> dict[str, Any] | None:
        """Fork it at a step, and wait until the fork has ended where its execution goes on there."""
        target = self._target(each)
        goes_on = next(note["goes_on"] for note in self._notes if note["key"] == TARGET_PREFIX + target)
        fork = self._client.fork(self._session, at=target, go_on=goes_on, idempotency_key=each["key"])
        if self._client.header(fork).status not in _ENDED:
            return None
        return {"fork": str(fork), "target": target, "goes_on": goes_on}

    def _target(self, each: dict[str, Any]) -> str:
        """The step, chosen once: the same request comes again."""
        for note in self._notes:
            if note["key"] == each["key"] and "target" in note:
                return note["target"]
        known = [note["key"] for note in self._notes if note["key"].startswith(TARGET_PREFIX)]
        target = random.Random(each["key"]).choice(known).removeprefix(TARGET_PREFIX)
        self._note(each["key"], target=target)
        return target

    def _settle(self, each: dict[str, Any]) -> dict[str, Any] | None:
        """Wait until nothing works, and keep what the session is at each step of its last execution."""
        header = self._client.header(self._session)
        if header.status != "waiting" and header.status not in _ENDED:
            return None
        state = self._client.show(self._session).state
        execution = state.execution
        assert execution is not None
        for number in range(1, len(execution.step_executions) + 1):
            place = f"{execution.execution_id}:{number}"
            if not any(note["key"] == TARGET_PREFIX + place for note in self._notes):
                then = self._client.state(self._session, at=place)
                asks = any("approved_" in call["tool"] for step in plan_of(then)["steps"] for call in step)
                goes_on = then.status is ExecutionStatus.IN_PROGRESS and not asks
                self._note(TARGET_PREFIX + place, state=facts(then), goes_on=goes_on)
        return {"status": header.status}

    def _release(self, each: dict[str, Any]) -> dict[str, Any] | None:
        """Let queued messages follow, until none is left and nothing works."""
        self._client.release_queue(self._session, idempotency_key=each["key"])
        header = self._client.header(self._session)
        is_busy = header.status not in _ENDED or self._client.queued(self._session).messages
        return None if is_busy else {"status": header.status}

    def _again(self, each: dict[str, Any]) -> dict[str, Any]:
        """Do everything once more: nothing of it happens."""
        before = self._client.header(self._session).version
        for earlier in each["script"]:
            kind = earlier["kind"]
            if kind in ("submit", "message", "remark"):
                {"submit": self._submit}.get(kind, self._message)(earlier)
            elif kind in ("rewind", "fork"):
                {"rewind": self._rewind, "fork": self._fork}[kind](earlier)
        return {"before": before, "after": self._client.header(self._session).version}


def main() -> None:
    url, session, script, notes, death, *only = sys.argv[1:]
    scripted = ScriptedClient(_MortalClient(url, death), session, Path(notes))
    acts = json.loads(Path(script).read_text())
    if only:
        time.sleep(float(only[1]))
        scripted.do(next(each for each in acts if each["key"] == only[0]))
    else:
        scripted.run(acts)


if __name__ == "__main__":
    try:
        main()
    except (IdempotencyMismatch, InvalidInput) as error:
        sys.exit(f"refused: {error}")
