"""Breakages of answers beside the steps. Seeds whose agents have every capability of `state.smart` have to find each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest.mock import patch

from celery_agents.worker.capabilities.guardrails import capability as guardrails
from celery_agents.worker.engine import guarding
from celery_agents.worker.state import ExecutionState
from celery_agents.worker.state.execution.usage import InferenceUsage
from celery_agents.worker.store import Claim
from celery_agents.worker.store.database import Command, Reply

from .mutants import Mutant
from .process import SimSteps
from .substitutes import EditedDatabase, Substitutes


class _NotRead(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        if command[0] != "HGETALL" or ":j:" not in str(command[1]) or not isinstance(reply, list):
            return reply
        pairs = [(reply[i], reply[i + 1]) for i in range(0, len(reply), 2)]
        return [word for pair in pairs if not bytes(pair[0]).startswith(b"x:") for word in pair]  # type: ignore[arg-type]


class _NotJournaled(SimSteps):
    def record_auxiliary(self, claim: Claim, key: str, raw: bytes) -> bytes:
        return raw


def _not_charged(
    self: ExecutionState, step: int, key: str, usage: InferenceUsage, cost: float | None
) -> ExecutionState:
    return self


def _charged_again(
    self: ExecutionState, step: int, key: str, usage: InferenceUsage, cost: float | None
) -> ExecutionState:
    return self.with_charge(usage, cost)


def patched(owner: Any, name: str, other: Any) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    @contextlib.contextmanager
    def during() -> Iterator[None]:
        with patch.object(owner, name, other):
            yield

    return during


def _while(owner: Any, name: str, other: Any) -> Substitutes:
    return Substitutes(during=patched(owner, name, other))


_WITH_INCIDENTS: Final = guardrails._with_incidents

SMART_MUTANTS: Final = (
    Mutant("auxiliary_not_read", "what is journaled beside a step is not read again", Substitutes(_NotRead)),
    Mutant("auxiliary_not_journaled", "an answer beside a step is not journaled", Substitutes(steps=_NotJournaled)),
    Mutant(
        "auxiliary_not_charged", "an answer beside a step costs nothing",
        _while(ExecutionState, "with_auxiliary_charge", _not_charged),
    ),
    Mutant(
        "auxiliary_charged_again", "an answer beside a step is charged as often as the state is made",
        _while(ExecutionState, "with_auxiliary_charge", _charged_again),
    ),
    Mutant(
        "hooks_not_repeated", "a stopped step loses what hooks have changed before its answer",
        _while(guarding, "_repeat_before_hooks", lambda run: run), seed=296,
    ),
    Mutant(
        "incident_twice", "a warning is recorded twice",
        _while(guardrails, "_with_incidents", lambda state, found: _WITH_INCIDENTS(_WITH_INCIDENTS(state, found), found)),
    ),
)  # fmt: skip
