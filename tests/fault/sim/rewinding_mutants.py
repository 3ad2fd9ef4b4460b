"""Breakages of rewinds. Seeds that rewind sessions have to find each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from celery_agents.worker.state import ExecutionState
from celery_agents.worker.store.database import Command, Reply

from .mutants import Mutant
from .smart_mutants import patched
from .substitutes import NOT_SENT, EditedDatabase, Substitutes, blanked, without_fields
from support.points import Points


class _Unwatched(EditedDatabase):
    def keys(self, point: str, keys: Sequence[str]) -> Sequence[str]:
        return [f"{key}:other" for key in keys] if point == Points.REWIND_READ else keys


class _PhaseHidden(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        return blanked(command, reply, "phase") if point == Points.REWIND_READ else reply


class _Edited(EditedDatabase):
    """Edits what a rewind writes."""

    def command(self, point: str, command: Command) -> Command | None:
        return self.written(command) if point == Points.REWIND_EXEC else command

    def written(self, command: Command) -> Command | None:
        raise NotImplementedError


class _NotRemembered(_Edited):
    def written(self, command: Command) -> Command | None:
        if command[0] != "HSET" or "version" not in command:
            return command
        names = [str(word) for word in command[2::2] if str(word) == "ops" or str(word).startswith(("f:", "o:"))]
        return without_fields(command, *names)


class _Forgotten(_Edited):
    """The ids of operations are those of the beginning."""

    def written(self, command: Command) -> Command | None:
        if command[0] != "HSET" or "ops" not in command:
            return command
        place = command.index("ops") + 1
        return (*command[:place], b"[]", *command[place + 1 :])


class _StepsStayPacked(_Edited):
    def written(self, command: Command) -> Command | None:
        return NOT_SENT if command[0] in ("DEL", "RPUSH") and ":x:" in str(command[1]) else command


class _MessagesDropped(_Edited):
    def written(self, command: Command) -> Command | None:
        return NOT_SENT if command[0] == "HSETNX" and str(command[1]).endswith(":h") else command


class _NotTold(_Edited):
    def written(self, command: Command) -> Command | None:
        return NOT_SENT if command[0] == "XADD" else command


REWINDING_MUTANTS: Final = (
    Mutant("rewind_unwatched", "a rewind watches nothing between look and write", Substitutes(_Unwatched)),
    Mutant("rewound_while_running", "a rewind does not look whether something runs", Substitutes(_PhaseHidden)),
    Mutant("rewind_not_remembered", "a rewind leaves no operation id", Substitutes(_NotRemembered)),
    Mutant("operations_forgotten", "a rewind forgets the messages that came before it", Substitutes(_Forgotten)),
    Mutant("steps_stay_packed", "a rewind leaves steps packed over messages that go", Substitutes(_StepsStayPacked)),
    Mutant("messages_dropped", "a rewind does not keep the messages that go", Substitutes(_MessagesDropped)),
    Mutant("readers_not_told", "a rewind tells no reader", Substitutes(_NotTold)),
    Mutant(
        "may_be_retried",
        "the last execution can be retried behind a rewind",
        Substitutes(during=patched(ExecutionState, "with_rewind", lambda state, to: state)),
    ),
)
