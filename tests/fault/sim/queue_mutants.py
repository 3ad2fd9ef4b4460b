"""Breakages of messages that are queued, taken back and moved. Every simulation has to find each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from celery_agents.worker.store.database import Command, Guard, Reply

from .mutants import Mutant
from .substitutes import EditedDatabase, Substitutes, blanked
from support.points import Points

_ENDS: Final = (Points.COMMIT_EXEC, Points.STOP_EXEC)


def _is_queue(key: object) -> bool:
    return str(key).endswith(":next")


class _WithoutQueueGuard(EditedDatabase):
    def guards(self, point: str, guards: Sequence[Guard]) -> Sequence[Guard]:
        return [
            (tuple(word for word in read if not _is_queue(word)), answers) if read[0] == "EXISTS" else (read, answers)
            for read, answers in guards
        ]


class _QueueNotWatched(_WithoutQueueGuard):
    def keys(self, point: str, keys: Sequence[str]) -> Sequence[str]:
        return [key for key in keys if point not in (Points.COMMIT_READ, Points.STOP_READ) or not _is_queue(key)]


class _NotMovedAtTheEnd(EditedDatabase):
    def command(self, point: str, command: Command) -> Command | None:
        is_moved = command[0] == "RPUSH" and _is_queue(command[1]) and point in _ENDS
        return ("EXISTS", command[1]) if is_moved else command


class _NeverHeld(EditedDatabase):
    def command(self, point: str, command: Command) -> Command | None:
        is_hold = command[0] == "HSET" and "next_held" in command
        return ("EXISTS", command[1]) if is_hold else command


class _HoldHidden(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        return blanked(command, reply, "next_held") if point == Points.COMMIT_READ else reply


class _TakenBackForgotten(EditedDatabase):
    def command(self, point: str, command: Command) -> Command | None:
        is_mark = command[0] == "HSET" and "!withdrawn" in command
        return ("EXISTS", command[1]) if is_mark else command


class _TakenOutOfNothing(EditedDatabase):
    def command(self, point: str, command: Command) -> Command | None:
        is_taken = command[0] == "DEL" and point in (Points.WITHDRAW_EXEC, Points.MODE_EXEC)
        return ("EXISTS", command[1]) if is_taken else command


QUEUE_MUTANTS: Final = (
    Mutant("queue_guard_missing", "the script of a commit does not look into the queue", Substitutes(_WithoutQueueGuard)),
    Mutant("queue_not_watched", "what ends an execution reads the queue, and does not watch it", Substitutes(_QueueNotWatched)),
    Mutant("not_moved_at_the_end", "an end loses the messages of the inbox", Substitutes(_NotMovedAtTheEnd)),
    Mutant("never_held", "no end holds the queue", Substitutes(_NeverHeld)),
    Mutant("hold_hidden", "a held queue goes on with the next answer", Substitutes(_HoldHidden)),
    Mutant("taken_back_forgotten", "a message that is taken back leaves no mark", Substitutes(_TakenBackForgotten)),
    Mutant("taken_out_of_nothing", "a message that is taken out stays as well", Substitutes(_TakenOutOfNothing), 271),
)  # fmt: skip
