"""Requests that a message closes: they ask with `while_waiting="withdraw"`, and the message takes the answer's place.

    act, mode   WATCH session, ctl, inbox, journal → phase wait? → MULTI message, answers, events, index, wake · EXEC
    wait        WATCH session, ctl, inbox, journal → a message waits? → MULTI answers, events, index · EXEC

So no session waits for such a request while a message waits for its step, whichever of the two came first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...state.execution.answers import AnswerRecord, withdrawal
from ...state.execution.requests import Request, WhileWaiting
from ..context import SessionScope
from ..database import Command
from ..events import event_commands
from ..journal import Journal
from ..records import InboxKind, Operation
from .index import closed_event, remove_commands


def find_yielding(journal: Journal) -> tuple[Request, ...]:
    """The open requests that a message closes. A call that has begun has perhaps happened, so its request stays."""
    begun = {*journal.begun, *journal.started_calls}
    return tuple(
        each
        for each in journal.open_requests
        if each.while_waiting is WhileWaiting.WITHDRAW and not each.has_begun and each.index not in begun
    )


def find_message(inbox: Iterable[Operation]) -> Operation | None:
    """The first message among operations that wait for a step; None without one."""
    return next((each for each in inbox if each.kind is InboxKind.MESSAGE), None)


def withdrawals(requests: Sequence[Request], message: Operation, now_ms: int) -> dict[tuple[int, int], AnswerRecord]:
    """The records with which a message closes requests, by call index and round."""
    return {each.place: withdrawal(now_ms, note=f"message {message.id}") for each in requests}


def withdraw_commands(
    scope: SessionScope, journal: str, requests: Sequence[Request], records: Mapping[tuple[int, int], AnswerRecord]
) -> list[Command]:
    """Commands that close open requests.

    Args:
        journal: Its key, which the transaction watches.
        records: Of each request.
    """
    answers: list[Command] = [
        ("HSETNX", journal, f"t{each.index}:a{each.round}", records[each.place].to_json()) for each in requests
    ]
    events = [closed_event(each, records[each.place]) for each in requests]
    return [*answers, *event_commands(scope, events), *remove_commands(scope.keys.shard, requests)]
