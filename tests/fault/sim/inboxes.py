"""The messages that wait for the step of a session, as they were written."""

from __future__ import annotations

import json
from collections import defaultdict

from celery_agents.worker.store.database import Command


class Inboxes:
    """What waits in the inbox of each session, and what people were shown who answer its requests."""

    def __init__(self) -> None:
        self._entries: dict[str, list[bytes]] = {}
        # The messages that were shown before an answer, each time that its giver has looked, by operation.
        self._shown: defaultdict[str, list[set[str]]] = defaultdict(list)

    def written(self, session: str, name: str, command: Command) -> None:
        """The inbox was changed by a command."""
        entries = self._entries.setdefault(session, [])
        if name == "RPUSH":
            entries.extend(bytes(entry) for entry in command[2:])  # type: ignore[arg-type]
        elif name == "LTRIM":
            del entries[: int(command[2])]
        elif name in ("DEL", "UNLINK"):
            entries.clear()

    def messages(self, session: str) -> list[str]:
        """The operation ids of the messages that wait."""
        found = [json.loads(entry) for entry in self._entries.get(session, ())]
        return [entry["id"] for entry in found if entry["kind"] == "message"]

    def show(self, operation: str, messages: set[str]) -> None:
        """Whoever is to give an answer has looked, and was shown these messages."""
        self._shown[operation].append(messages)

    def unseen(self, session: str, operation: str) -> list[str]:
        """The messages that wait and were not shown before an answer; none where its giver did not look."""
        shown, waiting = self._shown.get(operation), self.messages(session)
        return waiting if shown and not any(set(waiting) <= each for each in shown) else []
