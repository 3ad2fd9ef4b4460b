"""Breakages of changed budgets. Seeds that change budgets have to find each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from celery_agents.worker.store.database import Command, Guard, Reply

from .mutants import Mutant
from .substitutes import NOT_SENT, EditedDatabase, Substitutes, blanked
from support.points import Points

_CLAIMS: Final = (Points.CLAIM_ATTEMPT, Points.CLAIM_BEHIND, Points.CLAIM_NEW, Points.CLAIM_FIRST)


class _MarkIgnored(EditedDatabase):
    """Compares everything but the mark of a changed budget, so a stop and a hold are still noticed."""

    points: tuple[str, ...] = ()

    def guards(self, point: str, guards: Sequence[Guard]) -> Sequence[Guard]:
        if point not in self.points:
            return guards
        found: list[Guard] = []
        for read, expected in guards:
            if "cancel" in read[2:]:
                ((stored,),) = self.inner.pipeline("cheat", [("HMGET", read[1], "cancel")])
                mark = "!budget" if stored == b"!budget" else ""
                expected = tuple(
                    mark if name == "cancel" else value for name, value in zip(read[2:], expected, strict=True)
                )
            found.append((read, expected))
        return found


class _MarkIgnoredByCommits(_MarkIgnored):
    points = (Points.COMMIT_ATTEMPT,)


class _MarkIgnoredByClaims(_MarkIgnored):
    points = _CLAIMS


class _HiddenFromCommits(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        return blanked(command, reply, "budget") if point == Points.COMMIT_READ else reply


class _HiddenFromClaims(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        return blanked(command, reply, "budget") if point == Points.CLAIM_READ else reply


class _ChangeUnwatched(EditedDatabase):
    def keys(self, point: str, keys: Sequence[str]) -> Sequence[str]:
        return [f"{key}:other" for key in keys] if point == Points.BUDGET_READ else keys


class _CommitUnwatched(EditedDatabase):
    def keys(self, point: str, keys: Sequence[str]) -> Sequence[str]:
        return [key for key in keys if point != Points.COMMIT_READ or not key.endswith(":ctl")]


class _FieldStays(EditedDatabase):
    def command(self, point: str, command: Command) -> Command | None:
        is_removal = command[0] == "HDEL" and "budget" in command[2:]
        return NOT_SENT if is_removal else command


class _MarkClearedByResume(EditedDatabase):
    def command(self, point: str, command: Command) -> Command | None:
        if point != Points.RESUME_EXEC or "!budget" not in command:
            return command
        return tuple("" if word == "!budget" else word for word in command)


LIMITING_MUTANTS: Final = (
    Mutant(
        "commits_ignore_the_mark", "a commit in one round trip does not look for a changed budget",
        Substitutes(_MarkIgnoredByCommits),
    ),
    Mutant(
        "claims_ignore_the_mark", "a claim in one round trip does not look for a changed budget",
        Substitutes(_MarkIgnoredByClaims),
    ),
    Mutant("hidden_from_commits", "a commit does not read a changed budget", Substitutes(_HiddenFromCommits)),
    Mutant("hidden_from_claims", "a claim does not read a changed budget", Substitutes(_HiddenFromClaims)),
    Mutant("change_unwatched", "a change does not watch what it has read", Substitutes(_ChangeUnwatched)),
    Mutant("commit_unwatched", "a commit does not watch the control fields", Substitutes(_CommitUnwatched)),
    Mutant("field_stays", "nothing removes a changed budget that was taken in", Substitutes(_FieldStays)),
    Mutant(
        "mark_cleared_by_resume", "the end of a hold removes the mark of a changed budget",
        Substitutes(_MarkClearedByResume),
    ),
)  # fmt: skip
