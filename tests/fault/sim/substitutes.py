"""Parts that a simulated process is built of in place of the product's own.

A mutant of the product is one of these: a `Database` that sends or answers something else than it was asked, a
`StepStore` that breaks a promise, or agents that were defined otherwise. The engine and the store above them are the
product's, as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from celery_agents.worker.agent import Agent
from celery_agents.worker.store.database import Command, Database, Guard, Reply, Word

from .process import SimSteps

# A command that is not sent; what it would have answered is None.
NOT_SENT = None


@dataclass(frozen=True)
class Substitutes:
    """The parts of all processes of a simulation, clients included.

    Attributes:
        database: Stands between the store and the simulated Redis.
        steps: The step store.
        agents: What the workers offer, made from what they usually offer.
        during: Entered while a seed runs.
    """

    database: Callable[[Database], Database] = lambda database: database
    steps: type[SimSteps] = SimSteps
    agents: Callable[[Sequence[Agent]], Sequence[Agent]] = lambda agents: agents
    during: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


class EditedDatabase:
    """A `Database` that passes everything on; a subclass says what it changes on the way.

    The edits keep the number of commands, since callers find their replies by position.
    """

    def __init__(self, inner: Database) -> None:
        self.inner = inner

    # --- what a subclass changes ------------------------------------------------------------------------------

    def guards(self, point: str, guards: Sequence[Guard]) -> Sequence[Guard]:
        """Change what is compared before a script writes."""
        return guards

    def keys(self, point: str, keys: Sequence[str]) -> Sequence[str]:
        """Change what is watched."""
        return keys

    def commands(self, point: str, commands: Sequence[Command]) -> Sequence[Command | None]:
        """Change what is sent, command by command; `NOT_SENT` stands in place of one that is left out."""
        return [self.command(point, command) for command in commands]

    def command(self, point: str, command: Command) -> Command | None:
        """Change one command."""
        return command

    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        """Change one reply."""
        return reply

    # --- the database -----------------------------------------------------------------------------------------

    def pipeline(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        return self.sending(point, commands, lambda sent: self.inner.pipeline(point, sent))

    def transaction(self, point: str, commands: Sequence[Command], *options: Any) -> list[Reply]:
        return self.sending(point, commands, lambda sent: self.inner.transaction(point, sent, *options))

    def compare_and_apply(self, point: str, guards: Sequence[Guard], commands: Sequence[Command]) -> list[Reply] | None:
        declined = False

        def send(sent: Sequence[Command]) -> list[Reply]:
            nonlocal declined
            replies = self.inner.compare_and_apply(point, self.guards(point, guards), sent)
            declined = replies is None
            return replies if replies is not None else [None] * len(sent)

        replies = self.sending(point, commands, send)
        return None if declined else replies

    @contextlib.contextmanager
    def watch(self, point: str, keys: Sequence[str], reads: Sequence[Command]) -> Iterator[EditedWatch]:
        with self.inner.watch(point, self.keys(point, keys), reads) as watched:
            yield EditedWatch(self, watched, self.answered(point, reads, watched.replies))

    def script(self, point: str, name: str, keys: Sequence[str], args: Sequence[Word]) -> Reply:
        return self.inner.script(point, name, keys, args)

    def place(self, key: str) -> str:
        return self.inner.place(key)

    def script_command(self, name: str, keys: Sequence[str], args: Sequence[Word]) -> Command | None:
        return self.inner.script_command(name, keys, args)

    def sending(
        self, point: str, commands: Sequence[Command], send: Callable[[Sequence[Command]], list[Reply]]
    ) -> list[Reply]:
        """Send what is left of the commands, and give a reply for each that there was."""
        edited = self.commands(point, commands)
        assert len(edited) == len(commands)
        sent = [command for command in edited if command is not NOT_SENT]
        heard = iter(send(sent) if sent else ())
        replies = [None if command is NOT_SENT else next(heard) for command in edited]
        return self.answered(point, commands, replies)

    def answered(self, point: str, commands: Sequence[Command], replies: Sequence[Reply]) -> list[Reply]:
        return [self.reply(point, command, reply) for command, reply in zip(commands, replies, strict=True)]


class EditedWatch:
    """An open WATCH of an `EditedDatabase`."""

    def __init__(self, database: EditedDatabase, inner: Any, replies: list[Reply]) -> None:
        self.replies = replies
        self._database = database
        self._inner = inner

    def pipeline(self, point: str, commands: Sequence[Command], **options: Any) -> list[Reply]:
        if "also" in options:
            options["also"] = self._database.keys(point, options["also"])
        return self._database.sending(point, commands, lambda sent: self._inner.pipeline(point, sent, **options))

    def commit(self, point: str, commands: Sequence[Command]) -> list[Reply]:
        return self._database.sending(point, commands, lambda sent: self._inner.commit(point, sent))


def without_fields(command: Command, *names: str) -> Command:
    """An HSET that leaves some fields as they are."""
    words = list(command[2:])
    kept = [word for i in range(0, len(words), 2) if words[i] not in names for word in words[i : i + 2]]
    return (*command[:2], *kept)


def blanked(command: Command, reply: Reply, name: str) -> Reply:
    """The reply to an HMGET as if one field were not there; any other reply as it is."""
    if command[0] != "HMGET" or name not in command[2:] or not isinstance(reply, list):
        return reply
    fields = command[2:]
    return [None if field == name else value for field, value in zip(fields, reply, strict=True)]
