"""Breakages of the product. The simulation has to find each of them.

    python -m fault.sim.mutants            # all
    python -m fault.sim.mutants no_journal # one

A mutant takes the place of a part at one of the product's seams: a `Database` that leaves a guard out, a `StepStore`
that hides what is journaled, a tool that was declared otherwise. None touches the product's source, so that a change
of the source does not have to be followed here.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import get_ident
from typing import Any, Final

from celery_agents.worker.agent import Agent
from celery_agents.worker.errors import StoreUnavailable, VersionConflict
from celery_agents.worker.store import Claim, Claimed, ClaimResult, Committed, LoadedSession, StepRef, Transition
from celery_agents.worker.store.database import Command, Database, Guard, Reply, Word
from celery_agents.worker.tools import Effect, idempotency_key

from .database import QUEUE, StoreContext
from .process import SimSteps
from .run import a_redis
from .simulation import Simulation, Verdict
from .substitutes import NOT_SENT, EditedDatabase, EditedWatch, Substitutes, blanked, without_fields
from support.points import Points


@dataclass(frozen=True)
class Mutant:
    """A breakage.

    Attributes:
        breaks: What the product does not do any more.
        substitutes: The part that does it.
        seed: One that finds it, tried first; a change of the simulation may make it any other.
    """

    name: str
    breaks: str
    substitutes: Substitutes
    seed: int = 0


def _is_of(key: Word, part: str) -> bool:
    return f":{part}" in str(key)


def _is_lease(command: Command) -> bool:
    return command[0] == "SET" and _is_of(command[1], "lease:")


# --- what is compared and watched -------------------------------------------------------------------------------------


class _WithoutGuards(EditedDatabase):
    def guards(self, point: str, guards: Sequence[Guard]) -> Sequence[Guard]:
        return ()


class _WithoutInboxGuard(EditedDatabase):
    def guards(self, point: str, guards: Sequence[Guard]) -> Sequence[Guard]:
        return [guard for guard in guards if not (guard[0][0] == "EXISTS" and str(guard[0][1]).endswith(":inbox"))]


class _WithoutJournalGuard(EditedDatabase):
    def guards(self, point: str, guards: Sequence[Guard]) -> Sequence[Guard]:
        return [guard for guard in guards if not (guard[0][0] == "EXISTS" and _is_of(guard[0][1], "j:"))]


class _InboxNotWatched(_WithoutInboxGuard):
    def keys(self, point: str, keys: Sequence[str]) -> Sequence[str]:
        return [key for key in keys if point != Points.COMMIT_READ or not key.endswith(":inbox")]


class _Overwriting(SimSteps):
    def commit(
        self, claim: Claim, base: LoadedSession, transition: Transition, *,
        results: Mapping[int, bytes], keep_claim: bool,
    ) -> Committed:  # fmt: skip
        try:
            return super().commit(claim, base, transition, results=results, keep_claim=keep_claim)
        except VersionConflict:
            stored = self.reload(claim).session
            session = replace(base.session, version=stored.version, bookkeeping=stored.bookkeeping)
            base = replace(base, session=session)
            return super().commit(claim, base, transition, results=results, keep_claim=keep_claim)


# --- what is answered -------------------------------------------------------------------------------------------------


class _LastCommitHidden(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        return None if point == Points.COMMIT_ENTRY else blanked(command, reply, "last")


class _LeaseHidden(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        return 0 if point == Points.CLAIM_LEASE else reply


class _StopHiddenFromCalls(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        return blanked(command, reply, "cancel") if point == Points.JOURNAL_BEGIN else reply


class _JournalHiddenFromStops(EditedDatabase):
    def reply(self, point: str, command: Command, reply: Reply) -> Reply:
        return [] if point == Points.STOP_JOURNAL else reply


class _NothingLost(EditedDatabase):
    def script(self, point: str, name: str, keys: Sequence[str], args: Sequence[Word]) -> Reply:
        reply = super().script(point, name, keys, args)
        return [[], *reply[1:]] if name == "sweep" else reply


class _AnswerHidden(SimSteps):
    def claim(self, ref: StepRef, claim_id: str, worker: str, *, alone: bool) -> ClaimResult:
        answer = super().claim(ref, claim_id, worker, alone=alone)
        return with_journal(answer, answer=None) if isinstance(answer, Claimed) else answer


class _CallsBegunLongAgo(SimSteps):
    def claim(self, ref: StepRef, claim_id: str, worker: str, *, alone: bool) -> ClaimResult:
        answer = super().claim(ref, claim_id, worker, alone=alone)
        if not isinstance(answer, Claimed):
            return answer
        begun = answer.loaded.journal.begun
        return with_journal(answer, begun={i: replace(record, at_ms=0) for i, record in begun.items()})


def with_journal(claimed: Claimed, **changed: Any) -> Claimed:
    loaded = claimed.loaded
    return replace(claimed, loaded=replace(loaded, journal=replace(loaded.journal, **changed)))


class _OwnAnswerBelieved(SimSteps):
    def record_answer(self, claim: Claim, raw: bytes, *options: Any) -> bytes:
        super().record_answer(claim, raw, *options)
        return raw


class _ClaimTakesNoTime(SimSteps):
    """The worker's clock stands still while it claims: it takes its lease for as young as the reply."""

    def claim(self, ref: StepRef, claim_id: str, worker: str, *, alone: bool) -> ClaimResult:
        actor = self.world.current
        process = actor.process if actor is not None else None
        asked = process.monotonic() if process is not None else 0.0
        try:
            return super().claim(ref, claim_id, worker, alone=alone)
        finally:
            if process is not None:
                process.offset -= process.monotonic() - asked


# --- what is sent -----------------------------------------------------------------------------------------------------


class _SentAgain(EditedDatabase):
    def transaction(self, point: str, commands: Sequence[Command], *options: Any) -> list[Reply]:
        for _ in range(3):
            with contextlib.suppress(StoreUnavailable):
                return super().transaction(point, commands, *options)
        return super().transaction(point, commands, *options)

    @contextlib.contextmanager
    def watch(self, point: str, keys: Sequence[str], reads: Sequence[Command]) -> Iterator[EditedWatch]:
        with super().watch(point, keys, reads) as watched:
            commit = watched.commit

            def persistent(point: str, commands: Sequence[Command]) -> list[Reply]:
                try:
                    return commit(point, commands)
                except (StoreUnavailable, OSError):  # nothing is watched any more
                    return self.transaction(point, commands)

            watched.commit = persistent  # type: ignore[method-assign]
            yield watched


class _PublishedBefore(EditedDatabase):
    def commands(self, point: str, commands: Sequence[Command]) -> Sequence[Command | None]:
        messages = [command for command in commands if command[:2] == ("RPUSH", QUEUE)]
        if messages and point in (Points.COMMIT_ATTEMPT, Points.COMMIT_EXEC):
            self.inner.pipeline("early", messages)
        return commands


class _NotDueWhileClaimed(EditedDatabase):
    def commands(self, point: str, commands: Sequence[Command]) -> Sequence[Command | None]:
        if not any(map(_is_lease, commands)):
            return commands
        return [("ZREM", c[1], c[-1]) if c[0] == "ZADD" and str(c[1]).endswith(":due") else c for c in commands]


class _DueAsBefore(EditedDatabase):
    def script(self, point: str, name: str, keys: Sequence[str], args: Sequence[Word]) -> Reply:
        if name != "sweep":
            return super().script(point, name, keys, args)
        (flat,) = self.inner.pipeline("due.before", [("ZRANGE", keys[0], 0, -1, "WITHSCORES")])
        before = dict(zip(flat[::2], flat[1::2], strict=True))
        reply = super().script(point, name, keys, args)
        for session, *_ in reply[0]:
            self.inner.pipeline("due.after", [("ZADD", keys[0], "XX", before[session], session)])
        return reply


class _OperationsForgotten(EditedDatabase):
    def command(self, point: str, command: Command) -> Command | None:
        return without_fields(command, "ops") if command[0] == "HSET" and "version" in command else command


def _begins(command: Command) -> bool:
    """Whether a command tells that an execution begins."""
    if command[0] == "HSET":
        return command[2:3] == ("started",) or command[2:] == ("status", "in_progress")
    return command[0] == "XADD" and "execution_started" in command


class _BeginningNotTold(EditedDatabase):
    def command(self, point: str, command: Command) -> Command | None:
        return NOT_SENT if point == Points.CLAIM_NEW and _begins(command) else command


class _BeginningToldLater(EditedDatabase):
    def __init__(self, inner: Database) -> None:
        super().__init__(inner)
        self._later: dict[int, list[Command]] = {}

    def commands(self, point: str, commands: Sequence[Command]) -> Sequence[Command | None]:
        if point != Points.CLAIM_NEW:
            return commands
        self._later[get_ident()] = [command for command in commands if _begins(command)]
        return [NOT_SENT if _begins(command) else command for command in commands]

    def transaction(self, point: str, commands: Sequence[Command], *options: Any) -> list[Reply]:
        later = self._later.pop(get_ident(), []) if point == Points.CLAIM_LOAD else []
        return super().transaction(point, [*later, *commands], *options)[len(later) :]


class _LastAnswerWins(EditedDatabase):
    def command(self, point: str, command: Command) -> Command | None:
        return ("HSET", *command[1:]) if command[0] == "HSETNX" and command[2] == "llm" else command


class _JournalNotBuried(EditedDatabase):
    def command(self, point: str, command: Command) -> Command | None:
        return NOT_SENT if point == Points.JOURNAL_BURY else command


class _AttemptsNotCounted(EditedDatabase):
    def command(self, point: str, command: Command) -> Command | None:
        if point != Points.CLAIM_EXEC or command[0] != "HSET" or "attempts" not in command:
            return command
        place = command.index("attempts") + 1
        return (*command[:place], max(0, int(command[place]) - 1), *command[place + 1 :])


class _NotPersisted(EditedDatabase):
    def command(self, point: str, command: Command) -> Command | None:
        return NOT_SENT if command[0] == "PERSIST" and not _is_of(command[1], "j:") else command


class _NoExpiry(EditedDatabase):
    def command(self, point: str, command: Command) -> Command | None:
        return NOT_SENT if command[0] == "PEXPIRE" and not _is_of(command[1], "j:") else command


class _RestoredUnchecked(SimSteps):
    def restore(self, claim: Claim) -> bool:
        context = self.context
        keys = context.keys(claim.ref.session_id)
        lease = context.clock.start_lease(keys.shard.lease(claim.id), claim.worker, context.lease_ms)
        context.database.transaction(Points.RESTORE_EXEC, [lease, ("HSET", keys.ctl, "claim", claim.id)])
        return True


# --- what tools are told ----------------------------------------------------------------------------------------------


def _unsafe_as_keyed(agents: Sequence[Agent]) -> Sequence[Agent]:
    return [
        replace(agent, tools=[replace(t, effect=Effect.KEYED) if t.effect is Effect.UNSAFE else t for t in agent.tools])
        for agent in agents
    ]


_attempts: Final[dict[tuple[str, int], int]] = {}


class _AttemptsNoted(SimSteps):
    def claim(self, ref: StepRef, claim_id: str, worker: str, *, alone: bool) -> ClaimResult:
        answer = super().claim(ref, claim_id, worker, alone=alone)
        if isinstance(answer, Claimed):
            _attempts[ref.execution_id, ref.step] = answer.claim.attempt
        return answer


@contextlib.contextmanager
def _keys_of_attempts() -> Iterator[None]:
    """The public `idempotency_key`, wherever the engine has imported it, knows the attempt."""

    def with_attempt(execution_id: str, step: int, *rest: Any) -> str:
        return idempotency_key(f"{execution_id}{_attempts.get((execution_id, step))}", step, *rest)

    name = idempotency_key.__name__
    users = [m for m in list(sys.modules.values()) if getattr(m, name, None) is idempotency_key]
    users = [module for module in users if module.__name__.startswith("celery_agents.worker.engine")]
    assert users, "nobody in the engine makes idempotency keys"
    try:
        for module in users:
            setattr(module, name, with_attempt)
        yield
    finally:
        for module in users:
            setattr(module, name, idempotency_key)


class _OldValuesLost(EditedDatabase):
    def command(self, point: str, command: Command) -> Command | None:
        is_old = command[0] == "HSETNX" and str(command[1]).endswith(":h")
        return ("HGET", command[1], "none") if is_old else command


class _OldValuesLate(EditedDatabase):
    def command(self, point: str, command: Command) -> Command | None:
        if command[0] != "HSETNX" or not str(command[1]).endswith(":h"):
            return command
        place, _, step = str(command[2]).rpartition(".")
        return (*command[:2], f"{place}.{int(step) - 1}", *command[3:])


MUTANTS: Final = (
    Mutant("old_values_lost", "a save does not keep the values that it replaces", Substitutes(_OldValuesLost)),
    Mutant("old_values_late", "an old value is kept for the step before its last one", Substitutes(_OldValuesLate)),
    Mutant("no_version_check", "a commit overwrites what was saved meanwhile", Substitutes(steps=_Overwriting), 16),
    Mutant(
        "no_commit_id", "a commit whose reply was lost is not recognised", Substitutes(_LastCommitHidden), 125
    ),
    Mutant("no_journal", "an answer that is journaled is not used", Substitutes(steps=_AnswerHidden), 1),
    Mutant("lease_ignored", "a step is taken over although its claim is alive", Substitutes(_LeaseHidden)),
    Mutant("no_sweeper", "nobody finds a lost step", Substitutes(_NothingLost)),
    Mutant(
        "rerun_unsafe", "an interrupted call of an unsafe tool is made again", Substitutes(agents=_unsafe_as_keyed), 55
    ),
    Mutant(
        "attempt_in_key", "an idempotency key changes with the attempt",
        Substitutes(steps=_AttemptsNoted, during=_keys_of_attempts), 49,
    ),
    Mutant(
        "commands_retried", "a transaction whose reply was lost is sent again, as a client that retries by itself does",
        Substitutes(_SentAgain), 47,
    ),
    Mutant(
        "cancel_not_checked", "a call begins although the execution was stopped", Substitutes(_StopHiddenFromCalls), 33
    ),
    Mutant(
        "publish_before_commit", "the next message goes out before the step is committed",
        Substitutes(_PublishedBefore), 28,
    ),
    Mutant(
        "journal_after_parse", "the step goes on with its own answer, whatever was journaled first",
        Substitutes(steps=_OwnAnswerBelieved), 1126,
    ),
    Mutant(
        "due_removed_at_claim", "a step leaves the due index when it is claimed", Substitutes(_NotDueWhileClaimed)
    ),
    Mutant("inbox_not_watched", "the inbox is read, but not watched", Substitutes(_InboxNotWatched)),
    Mutant(
        "attempt_inbox_ignored", "a commit in one round trip does not look into the inbox",
        Substitutes(_WithoutInboxGuard),
    ),
    Mutant(
        "attempt_without_guards", "what is compared before a claim or commit in one round trip is left out",
        Substitutes(_WithoutGuards),
    ),
    Mutant(
        "attempt_journal_ignored", "a claim in one round trip does not look whether there is a journal",
        Substitutes(_WithoutJournalGuard), 2613,
    ),
    Mutant("sweep_does_not_move", "the sweep leaves what it published where it was", Substitutes(_DueAsBefore)),
    Mutant(
        "operations_forgotten", "an operation whose reply was lost is applied again",
        Substitutes(_OperationsForgotten), 10,
    ),
    Mutant(
        "beginning_not_told", "a worker that does not hold a session tells nobody of the execution that it begins",
        Substitutes(_BeginningNotTold), 1,
    ),
    Mutant(
        "begins_behind_the_claim",
        "what begins an execution is written by the look behind its claim, which may come late or never",
        Substitutes(_BeginningToldLater), 218,
    ),
    Mutant(
        "stop_drops_journal", "a stop ends the execution over the head of what its step has obtained",
        Substitutes(_JournalHiddenFromStops), 409,
    ),
    Mutant(
        "lookup_believed_at_once", "'it did not happen' is believed while the call may still run",
        Substitutes(steps=_CallsBegunLongAgo), 60,
    ),
    Mutant("last_writer_wins", "a later answer replaces the journaled one", Substitutes(_LastAnswerWins), 169),
    Mutant(
        "restore_unchecked", "a worker takes its lease back although the claim is another's",
        Substitutes(steps=_RestoredUnchecked), 38,
    ),
    Mutant("journal_not_buried", "a worker that slept revives a journal for ever", Substitutes(_JournalNotBuried), 99),
    Mutant(
        "attempts_not_counted", "a step that kills its worker is tried for ever", Substitutes(_AttemptsNotCounted), 38
    ),
    Mutant("no_persist", "the next execution runs on keys that are about to expire", Substitutes(_NotPersisted), 66),
    Mutant(
        "freshness_from_the_reply", "a worker that slept during its claim trusts its lease",
        Substitutes(steps=_ClaimTakesNoTime), 23,
    ),
    Mutant("no_expiry_at_the_end", "a session stays for ever", Substitutes(_NoExpiry)),
)  # fmt: skip


def hunt(
    mutant: Mutant, url: str, *, seeds: int = 6000, first: int = 0, seconds: float = 100.0, **kind: bool
) -> Verdict | None:
    """Run the simulation on the mutant until it is found; None when it survives."""
    context = StoreContext(url)
    ends = time.perf_counter() + seconds
    for seed in (mutant.seed, *range(first, first + seeds)):
        verdict = Simulation(context, seed, mutant.substitutes, **kind).run()
        if verdict.violations:
            return verdict
        if time.perf_counter() > ends:
            break
    return None


def mutants_by_kind() -> Mapping[str, Sequence[Mutant]]:
    """The mutants by the kind of seeds that has to find them; "" is that of most."""
    from .deleting_mutants import DELETING_MUTANTS
    from .holding_mutants import HOLDING_MUTANTS
    from .interrupting_mutants import INTERRUPTING_MUTANTS
    from .limiting_mutants import LIMITING_MUTANTS
    from .queue_mutants import QUEUE_MUTANTS
    from .rewinding_mutants import REWINDING_MUTANTS
    from .smart_mutants import SMART_MUTANTS
    from .waiting_mutants import WAITING_MUTANTS

    return {
        "": (*MUTANTS, *QUEUE_MUTANTS),
        "waiting": WAITING_MUTANTS,
        "deleting": DELETING_MUTANTS,
        "smart": SMART_MUTANTS,
        "limiting": LIMITING_MUTANTS,
        "rewinding": REWINDING_MUTANTS,
        "interrupting": INTERRUPTING_MUTANTS,
        "holding": HOLDING_MUTANTS,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fault.sim.mutants", description="Hunt mutants.")
    parser.add_argument("names", nargs="*", help="all when none is given")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--waiting", action="store_true", help="breakages of waiting")
    parser.add_argument("--deleting", action="store_true", help="breakages of deletions")
    parser.add_argument("--smart", action="store_true", help="breakages of answers beside the steps")
    parser.add_argument("--limiting", action="store_true", help="breakages of changed budgets")
    parser.add_argument("--rewinding", action="store_true", help="breakages of rewinds")
    parser.add_argument("--interrupting", action="store_true", help="breakages of messages that interrupt")
    parser.add_argument("--holding", action="store_true", help="breakages of concurrency limits")
    options = parser.parse_args(arguments)
    logging.getLogger("celery_agents").setLevel(logging.CRITICAL)
    survivors = 0
    kind = next((name for name in mutants_by_kind() if name and getattr(options, name)), "")
    with a_redis() as url:
        for mutant in mutants_by_kind()[kind]:
            if options.names and mutant.name not in options.names:
                continue
            began = time.perf_counter()
            found = hunt(mutant, url, first=options.first, **({kind: True} if kind else {}))
            survivors += found is None
            say = "SURVIVED" if found is None else f"seed {found.seed} ({found.kind}): {found.violations[0]}"
            print(f"{mutant.name:26} {time.perf_counter() - began:5.1f} s  {say[:170]}", flush=True)
    return int(survivors > 0)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # simulated threads that wait for ever are no reason to wait
