"""Breakages of deletions. Seeds that delete sessions have to find each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from celery_agents.worker.store.database import Command, Guard, Reply

from .mutants import Mutant
from .substitutes import NOT_SENT, EditedDatabase, Substitutes, blanked
from support.points import Points


class _Unwatched(EditedDatabase):
    def keys(self, point: str, keys: Sequence[str]) -> Sequence[str]:
        return [f"{key}:other" for key in keys] if point == Points.DELETE_READ else keys


class _PhaseHidden(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        return blanked(command, reply, "phase") if point == Points.DELETE_READ else reply


class _MarkIgnored(EditedDatabase):
    def guards(self, point: str, guards: Sequence[Guard]) -> Sequence[Guard]:
        if point != Points.SUBMIT_ATTEMPT:
            return guards
        return [((*read[:2], "version"), answers[:1]) for read, answers in guards]

    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        return blanked(command, reply, "created") if point == Points.SUBMIT_READ else reply


class _NoMark(EditedDatabase):
    def command(self, point: str, command: Command) -> Command | None:
        is_life = command[0] == "PEXPIRE" and point in (Points.DELETE_EXEC, Points.DELETE_FULL)
        return ("DEL", command[1]) if is_life else command


class _RevivedJournalStays(EditedDatabase):
    def command(self, point: str, command: Command) -> Command | None:
        return NOT_SENT if point == Points.JOURNAL_BURY and command[0] == "DEL" else command


class _StillListed(EditedDatabase):
    def command(self, point: str, command: Command) -> Command | None:
        is_listing = command[0] == "ZREM" and str(command[1]).endswith(":sessions")
        return NOT_SENT if is_listing and point == Points.DELETE_EXEC else command


DELETING_MUTANTS: Final = (
    Mutant("deletion_unwatched", "a deletion watches nothing between look and write", Substitutes(_Unwatched)),
    Mutant("deleted_while_running", "a deletion does not look whether something runs", Substitutes(_PhaseHidden)),
    Mutant("mark_ignored", "a deleted session can be submitted again", Substitutes(_MarkIgnored)),
    Mutant("no_mark", "a deletion leaves no mark", Substitutes(_NoMark)),
    Mutant("revived_journal_stays", "a worker that slept revives a journal", Substitutes(_RevivedJournalStays)),
    Mutant("still_listed", "a deletion leaves the session in the listing", Substitutes(_StillListed)),
)
