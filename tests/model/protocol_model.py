"""The step protocol as a small set of rules over one immutable state, for exhaustive search.

Two workers, one session. Its first execution has two steps, the second of them final, each with one tool call; a
message that comes too late for it starts a second execution of one step. Beside the workers there are the sweep, a
client that sends one message and one that stops the first execution, time (a dead worker's lease ends) and faults:
crashes, pauses longer than the lease, lost replies, lost, repeated and reordered messages.

One rule is one round trip to Redis, or one thing that happens outside. WATCH is modelled as what it does: whoever
writes a watched key throws the watcher back to its reading (`_touch`). There are no clocks: whatever time may bring
can happen at any moment.

A rule yields `(event, who, next state)`; `EVENTS` says each event in words. `violations` are the invariants of
docs/protocol.md. `Mutant` breaks one rule at a time, and each has to be found. `explore.py` searches.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

EVENTS: Final[dict[str, str]] = {
    "message.taken": "takes a step message from the queue",
    "claim.stale": "finds the session further on, and drops the message",
    "claim.ahead": "is ahead of the session",
    "claim.busy": "finds a live lease, and drops the message",
    "claim.held": "claims again after a lost reply: the claim is already its own",
    "claim.read": "watches session, ctl and journal, and reads them",
    "claim.made": "claims the step",
    "claim.made, reply lost": "claims the step; the reply is lost",
    "guard.cancelled": "sees the stop before it asks the model",
    "guard.budget": "sees the budget used up before it asks the model",
    "infer.called": "asks the model",
    "infer.called in vain": "asks the model, not knowing that a paused worker has journaled its answer since the claim",
    "infer.cancelled": "is told of the stop and gives the model call up",
    "infer.given up": "sees that its claim is lost, and gives the model call up",
    "journal.replayed": "finds the answer in the journal and does not ask",
    "journal.written": "journals the answer",
    "journal.adopted": "finds another answer journaled meanwhile, and takes that one",
    "journal.unusable": "cannot parse the journaled answer; the step will say so",
    "tool.pure": "runs the pure tool, without a record",
    "tool.begun": "records the call as begun, in the transaction that also reads claim and cancel",
    "tool.begun, reply lost": "records the call as begun; the reply is lost",
    "tool.begun too late": "records the call as begun, and reads that it must not run",
    "tool.undone": "takes its own begin record back",
    "tool.not undone": "leaves the begin record, for another claim has written it since",
    "tool.forbidden": "reads the stop: what somebody began becomes 'unknown'",
    "tool.claim lost": "reads that its claim is gone, and leaves",
    "tool.replayed": "finds the call's result in the journal",
    "tool.unknown": "finds the unsafe call begun by another claim: the outcome is unknown",
    "tool.rerun": "finds the call begun by another claim, and will run it again",
    "tool.taken over": "watching ctl, puts its own begin record in place of the old one",
    "tool.run": "runs the tool: the effect happens",
    "tool.cancelled": "is told of the stop and cancels the tool before its effect",
    "tool.in time": "sees by its own clock that its lease still stands",
    "tool.ended": "journals the result",
    "lookup.happened": "looks the call up: it happened",
    "lookup.did not happen": "looks the call up: it did not happen, and by now it cannot any more",
    "lookup.too early": "looks the call up: not yet, but it may still be running; releases the step",
    "lookup.failed": "cannot look the call up: the outcome is unknown",
    "commit.read": "watches session, ctl and inbox, and reads them",
    "commit.re-applied": "finds that somebody saved meanwhile, and applies the journaled result to the fresh state",
    "commit.claim lost": "finds its claim gone, and leaves",
    "commit.committed already": "finds its own claim at this step: the commit whose reply was lost did happen",
    "commit.made": "commits the step",
    "commit.made, reply lost": "commits the step; the reply is lost",
    "publish.sent": "publishes the next step",
    "heartbeat.renewed": "finds its lease gone and its claim standing, and sets the lease again",
    "lease.ended": "the lease of a dead claim ends",
    "sweep.published": "the sweep finds the session due and nothing queued, and publishes its step",
    "sweep.live": "the sweep finds a live lease, and moves the entry",
    "sweep.queued": "the sweep finds the message still queued, and moves the entry",
    "sweep.neighbour": "the sweep looks at the entry in front, a long live step, and moves it",
    "user.queued": "a user message goes to the inbox",
    "user.applied": "a user message joins the execution at once",
    "user.started": "a user message starts the second execution",
    "user.reply lost": "the reply to a user message is lost",
    "user.known already": "the user message is sent again and recognised by its operation id",
    "stop.read": "the stop reads what is running",
    "stop.cancelled": "the stop leaves a cancel for whoever holds the step, or will",
    "stop.ended": "nobody holds the step and nothing is journaled: the stop ends the execution itself",
    "stop.nothing": "the stop finds the execution over",
    "fault.c0": "dies with the message in hand",
    "fault.c1": "dies, the step claimed",
    "fault.c2": "dies, the answer only in memory",
    "fault.c3": "dies, the answer journaled",
    "fault.c4": "dies, the call recorded as begun",
    "fault.c5": "dies, the effect done and not recorded",
    "fault.c6": "dies before its commit",
    "fault.c7": "commits, and dies before it sees the reply",
    "fault.c8": "dies, committed, the next step not published",
    "fault.c9": "publishes the next step, and dies",
    "fault.pause": "is paused for longer than its lease",
    "fault.message lost": "a queued message is lost",
    "fault.message repeated": "an old message is delivered once more",
}
# Reached by mutants only.
IMPOSSIBLE: Final = frozenset({"claim.ahead"})


class Effect(StrEnum):
    """What may be done with a call that was begun by a claim that is gone."""

    PURE = "pure"
    KEYED = "keyed"
    LOOKUP = "lookup"
    UNSAFE = "unsafe"


class Mutant(StrEnum):
    """One breakage of the protocol each."""

    NO_VERSION_CHECK = "the commit does not compare the version it loaded"
    NO_COMMIT_ID = "a commit does not say whose it is"
    NO_JOURNAL = "the answer is not journaled"
    LEASE_IGNORED = "a claim does not look at the lease"
    NO_SWEEPER = "nobody sweeps"
    RERUN_UNSAFE = "an unsafe call that was begun is run again"
    ATTEMPT_IN_KEY = "the idempotency key contains the attempt"
    PLAIN_TRANSACTION = "an EXEC whose reply was lost counts as not applied and runs again"
    CANCEL_NOT_CHECKED = "a call begins without looking for a stop"
    PUBLISH_BEFORE_COMMIT = "the next step is published before the commit"
    JOURNAL_AFTER_PARSE = "the answer is journaled after it was parsed"
    DUE_REMOVED_EARLY = "the claim takes the session out of the due index"
    INBOX_UNWATCHED = "the commit reads the inbox without watching it"
    SWEEP_DOES_NOT_MOVE = "the sweep leaves the entries it looked at where they are"
    # Beyond the list of the fault suite: each stands for a rule that is easy to overlook.
    NO_OPERATION_ID = "a message sent again is not recognised"
    OWN_ANSWER_KEPT = "who loses the race for the journal goes on with its own answer"
    STOP_DROPS_JOURNAL = "a stop without a live lease ends the execution although something is journaled"
    STOP_UNWATCHED_JOURNAL = "a stop looks whether something is journaled, without watching it"
    BEGUN_IS_NOT_RUN = "under a stop a call that was begun and has no result is reported as not run"
    STALE_JOURNAL = "the claim reads the journal without watching it"
    BLIND_UNDO = "a begin record is taken back without looking whose it is"
    RECORD_NOT_RENEWED = "a call that is run again leaves the begin record of the first run"
    TAKEN_OVER_BLINDLY = "a call is taken over without watching whether the claim still stands"
    LOADED_IS_SEEN = "an answer from the journal counts as having seen all that is loaded now"
    LATE_TRY = "the journal begins with the model call and not with the claim"
    STOP_LEAVES_JOURNAL = "a stop that ends the execution gives its step's journal no time to live"
    BUDGET_NOT_CHECKED = "a used-up budget ends nothing"


class Config(NamedTuple):
    """What is explored.

    Attributes:
        effect: Class of both tools.
        message: Whether a user message may come, at any moment.
        stop: Whether somebody may stop the first execution, at any moment.
        fused: The commit publishes the next step itself.
        unusable: The answer of the first step cannot be parsed.
        neighbour: A long live step is in front in the due index, and the sweep looks at one entry a pass.
        budget: Steps that the execution may take.
        clock: Workers look at their own clocks before a call. Without, a call may begin however long ago the lease was
            renewed, and nothing rests on a clock that a suspended machine stops.
        faults: Most faults of all kinds together.
        crashes, pauses, replies, messages: Most faults of each kind.
        mutant: What is broken.
    """

    effect: Effect = Effect.KEYED
    message: bool = False
    stop: bool = False
    fused: bool = True
    unusable: bool = False
    neighbour: bool = False
    budget: int = 2
    clock: bool = False
    faults: int = 1
    crashes: int = 2
    pauses: int = 2
    replies: int = 1
    messages: int = 1
    mutant: Mutant | None = None


# Where a worker is.
(
    IDLE,
    GOT,
    CLAIMING,
    CLAIMED,
    ASKING,
    ASKING_LATE,
    JOURNALED,
    TAKING,
    UNDOING,
    LOOKING_AT_CLOCK,
    RUNNING,
    RAN,
    CLOSING,
    COMMITTING,
    PUBLISHING,
) = range(15)
_CRASH: Final = {
    GOT: "fault.c0",
    CLAIMING: "fault.c0",
    CLAIMED: "fault.c1",
    ASKING: "fault.c2",
    ASKING_LATE: "fault.c2",
    JOURNALED: "fault.c3",
    TAKING: "fault.c3",
    UNDOING: "fault.c4",
    LOOKING_AT_CLOCK: "fault.c4",
    RUNNING: "fault.c4",
    RAN: "fault.c5",
    CLOSING: "fault.c6",
    COMMITTING: "fault.c6",
    PUBLISHING: "fault.c8",
}

# Positions: step 1 and step 2 of the first execution, the one step of the second.
FIRST, LAST, NEXT = range(3)
NOBODY, DEAD = 0, 3  # beside the claims 1 and 2 of the two workers
# What came of the tool call.
NO_CALL, OK, UNKNOWN, NOT_RUN = range(4)
# What the journal said of the call when the step was claimed.
FRESH, BEGUN, ENDED = range(3)
# An answer that was made before, or after, the user's message was applied.
NO_ANSWER, BLIND, SEEING, FOREIGN = 0, 1, 2, 3
# The message client, and the stop client.
UNSENT, IN_DOUBT, ACKNOWLEDGED = range(3)
NOT_ASKED, READING, WILL_CANCEL, WILL_END, STOP_DONE = range(5)


class Session(NamedTuple):
    """What is in Redis."""

    position: int = FIRST
    over: bool = False
    claim: int = NOBODY
    lease: bool = False
    cancel: bool = False
    due: bool = True
    journal: bool = False  # the journal's key exists
    answer: int = NO_ANSWER
    begun: int = NOBODY
    ended: bool = False
    inbox: int = 0
    applied: int = 0  # user messages in the state


class Worker(NamedTuple):
    """What one worker knows."""

    at: int = IDLE
    position: int = 0
    answer: int = NO_ANSWER
    outcome: int = NO_CALL
    loaded: int = 0  # user messages in the state it loaded
    committed: bool = False  # the steps' list has its claim at this position
    noted: int = 0  # what the journal said of the call; in a mutant's commit, what it saw of the inbox


class Ghost(NamedTuple):
    """What only the observer sees."""

    history: tuple[tuple[int, int], ...] = ()
    effects: tuple[int, int] = (0, 0)
    paid: int = 0  # model calls for this step, less those that a crash or a lost lease inside c2 excuses
    answered: bool = False  # an answer that saw the user's message is committed
    stopped: bool = False
    without_journal: int | None = None  # the step at which a stop ended the execution while there was no journal's key
    late_begin: bool = False
    over_budget: bool = False
    denied: bool = False
    leaked: bool = False


class Faults(NamedTuple):
    """How many faults are left."""

    any: int
    crashes: int
    pauses: int
    replies: int
    messages: int


class State(NamedTuple):
    """Everything."""

    session: Session
    workers: tuple[Worker, Worker]
    queue: tuple[int, int, int]  # messages per position; no order, so reordering needs no rule
    ghost: Ghost
    message: int
    stop: int
    neighbour: bool
    faults: Faults


Move = tuple[str, int, State]
Moves = Iterator[Move]
_IDLE: Final = Worker()


def initial(config: Config) -> State:
    """Submitted: the session is due and its first message queued."""
    kinds = (config.crashes, config.pauses, config.replies, config.messages)
    faults = Faults(config.faults, *kinds) if config.faults else Faults(0, 0, 0, 0, 0)
    return State(Session(), (_IDLE, _IDLE), (1, 0, 0), Ghost(), UNSENT, NOT_ASKED, config.neighbour, faults)


def finished(state: State) -> bool:
    """All executions are terminal and both workers are idle."""
    return state.session.over and state.workers[0].at == IDLE == state.workers[1].at


def canonical(state: State) -> State:
    """One of the two states that differ only in which worker is which."""
    one, two = state.workers
    session = state.session
    claim, begun = _SWAP[session.claim], _SWAP[session.begun]
    if (two, one, claim, begun) < (one, two, session.claim, session.begun):
        return state._replace(workers=(two, one), session=session._replace(claim=claim, begun=begun))
    return state


_SWAP: Final = (0, 2, 1, 3)


def successors(state: State, config: Config) -> Moves:
    """Every next state, with the event that leads there and who did it (0: not a worker)."""
    for index in (0, 1):
        yield from _worker(state, config, index)
    yield from _time(state)
    yield from _sweep(state, config)
    yield from _queue_faults(state)
    if config.message:
        yield from _user(state, config)
    if config.stop:
        yield from _stop(state, config)


# --- changing a state --------------------------------------------------------------------------------------------


def _with_worker(state: State, index: int, worker: Worker) -> State:
    one, two = state.workers
    return state._replace(workers=(worker, two) if index == 0 else (one, worker))


def _leave(state: State, index: int) -> State:
    """The worker is idle; what it wrote stays, under a claim nobody holds."""
    me, session = index + 1, state.session
    if session.claim == me:
        session = session._replace(claim=DEAD)
    if session.begun == me:
        session = session._replace(begun=DEAD)
    return _with_worker(state._replace(session=session), index, _IDLE)


def _touch(state: State, *, inbox: bool = False, journal: bool = False, config: Config) -> State:
    """A watched key was written: whoever watches it will fail its EXEC and read again.

    Without a flag it is the session's or ctl's key, which everybody watches. A claim and a stop watch the journal,
    a commit and a stop the inbox.
    """
    if state.stop in (WILL_CANCEL, WILL_END) and not (journal and config.mutant is Mutant.STOP_UNWATCHED_JOURNAL):
        state = state._replace(stop=READING)
    one, two = state.workers
    if one.at in (CLAIMING, COMMITTING) or two.at in (CLAIMING, COMMITTING):
        claims = not inbox and not (journal and config.mutant is Mutant.STALE_JOURNAL)
        commits = not journal and not (inbox and config.mutant is Mutant.INBOX_UNWATCHED)
        state = state._replace(workers=(_thrown_back(one, claims, commits), _thrown_back(two, claims, commits)))
    return state


def _thrown_back(worker: Worker, claims: bool, commits: bool) -> Worker:
    if worker.at == COMMITTING and commits:
        return worker._replace(at=CLOSING)
    if worker.at == CLAIMING and claims:
        return Worker(GOT, worker.position)
    return worker


def _spend(faults: Faults, kind: str) -> Faults:
    if faults.any == 1:
        return Faults(0, 0, 0, 0, 0)
    return faults._replace(**{"any": faults.any - 1, kind: getattr(faults, kind) - 1})


def _push(queue: tuple[int, int, int], position: int, count: int = 1) -> tuple[int, int, int]:
    changed = list(queue)
    changed[position] += count
    return (changed[0], changed[1], changed[2])


def _is_mine(session: Session, worker: Worker, me: int) -> bool:
    return session.claim == me and session.position == worker.position and not session.over


def _is_cancelled(session: Session, config: Config) -> bool:
    return session.cancel and config.mutant is not Mutant.CANCEL_NOT_CHECKED


# --- a worker ----------------------------------------------------------------------------------------------------


def _worker(state: State, config: Config, index: int) -> Moves:
    worker = state.workers[index]
    me = index + 1
    if worker.at == IDLE:
        for position, count in enumerate(state.queue):
            if count:
                taken = state._replace(queue=_push(state.queue, position, -1))
                yield "message.taken", me, _with_worker(taken, index, Worker(GOT, position))
        return
    yield from _RULES[worker.at](state, config, index, worker)
    if state.faults.crashes:
        yield _CRASH[worker.at], me, _crashed(state, index)
    if state.session.claim == me:
        yield from _lease(state, config, index, worker)


def _crashed(state: State, index: int) -> State:
    worker, ghost = state.workers[index], state.ghost
    if worker.at == ASKING:
        ghost = ghost._replace(paid=ghost.paid - 1)
    return _leave(state._replace(ghost=ghost, faults=_spend(state.faults, "crashes")), index)


def _lease(state: State, config: Config, index: int, worker: Worker) -> Moves:
    session, me = state.session, index + 1
    if session.lease and state.faults.pauses:
        paused = state._replace(session=session._replace(lease=False), faults=_spend(state.faults, "pauses"))
        if worker.at == ASKING:
            paused = paused._replace(ghost=paused.ghost._replace(paid=paused.ghost.paid - 1))
            paused = _with_worker(paused, index, worker._replace(at=ASKING_LATE))
        yield "fault.pause", me, paused
    if not session.lease:
        # It rewrites ctl.claim, so that a rival which has read the old lease as dead fails.
        renewed = _touch(state._replace(session=session._replace(lease=True)), config=config)
        yield "heartbeat.renewed", me, renewed


def _claim_read(state: State, config: Config, index: int, worker: Worker) -> Moves:
    session, me = state.session, index + 1
    if session.over or worker.position < session.position:
        yield "claim.stale", me, _leave(state, index)
    elif worker.position > session.position:
        yield "claim.ahead", me, _leave(state, index)
    elif session.claim == me:
        yield "claim.held", me, _with_worker(state, index, _loaded(session, worker, CLAIMED))
    elif session.claim and session.lease and config.mutant is not Mutant.LEASE_IGNORED:
        yield "claim.busy", me, _leave(state, index)
    else:
        yield "claim.read", me, _with_worker(state, index, _loaded(session, worker, CLAIMING))


def _loaded(session: Session, worker: Worker, at: int) -> Worker:
    call = ENDED if session.ended else BEGUN if session.begun else FRESH
    return Worker(at, worker.position, session.answer, NO_CALL, session.applied, noted=call)


def _claim(state: State, config: Config, index: int, worker: Worker) -> Moves:
    me = index + 1
    session = state.session._replace(
        claim=me,
        lease=True,
        due=config.mutant is not Mutant.DUE_REMOVED_EARLY,
        journal=state.session.journal or config.mutant is not Mutant.LATE_TRY,
    )
    # Its own watch ends with its EXEC; a rival's fails.
    claimed = _with_worker(state._replace(session=session), index, worker._replace(at=CLAIMED))
    claimed = _touch(claimed, config=config)
    yield "claim.made", me, claimed
    if state.faults.replies:
        lost = _with_worker(claimed, index, Worker(GOT, worker.position))
        yield "claim.made, reply lost", me, lost._replace(faults=_spend(state.faults, "replies"))


def _infer(state: State, config: Config, index: int, worker: Worker) -> Moves:
    session, ghost, me = state.session, state.ghost, index + 1
    if not _is_mine(session, worker, me):
        if config.mutant is Mutant.LATE_TRY:
            state = _late_write(state, worker)
        yield "tool.claim lost", me, _leave(state, index)
    elif _is_cancelled(session, config):
        yield "guard.cancelled", me, _with_worker(state, index, worker._replace(at=CLOSING))
    elif worker.answer:
        answer = 1 + worker.loaded if config.mutant is Mutant.LOADED_IS_SEEN else worker.answer
        yield "journal.replayed", me, _with_worker(state, index, worker._replace(at=JOURNALED, answer=answer))
    elif _is_exhausted(ghost.history, worker, config) and config.mutant is not Mutant.BUDGET_NOT_CHECKED:
        yield "guard.budget", me, _with_worker(state, index, worker._replace(at=CLOSING))
    elif session.lease:
        # A worker whose own clock says that the lease may be over asks nothing before it has renewed it.
        over_budget = ghost.over_budget or _is_exhausted(ghost.history, worker, config)
        called = state._replace(
            session=session._replace(journal=True),
            ghost=ghost._replace(paid=ghost.paid + 1, over_budget=over_budget),
        )
        asking = worker._replace(at=ASKING, answer=SEEING if worker.loaded else BLIND)
        event = "infer.called in vain" if session.answer else "infer.called"
        yield event, me, _with_worker(called, index, asking)


def _is_exhausted(history: tuple[tuple[int, int], ...], worker: Worker, config: Config) -> bool:
    return worker.position < NEXT and len(history) >= config.budget


def _late_write(state: State, worker: Worker) -> State:
    """A write to the journal of a step that is over: a key without TTL, if the end found no key to give one to."""
    if state.ghost.without_journal != worker.position:
        return state
    return state._replace(ghost=state.ghost._replace(leaked=True))


def _journal(state: State, config: Config, index: int, worker: Worker) -> Moves:
    session, me, mutant = state.session, index + 1, config.mutant
    current = session.position == worker.position and not session.over
    if mutant is Mutant.JOURNAL_AFTER_PARSE and config.unusable and worker.position == FIRST:
        yield "journal.unusable", me, _released(state, config, index)
        return
    if mutant is Mutant.NO_JOURNAL:
        yield "journal.written", me, _with_worker(state, index, worker._replace(at=JOURNALED))
    elif not current:
        yield "journal.written", me, _with_worker(_late_write(state, worker), index, worker._replace(at=JOURNALED))
    elif session.answer:
        adopted = FOREIGN if mutant is Mutant.OWN_ANSWER_KEPT else session.answer
        yield "journal.adopted", me, _with_worker(state, index, worker._replace(at=JOURNALED, answer=adopted))
    else:
        written = state._replace(session=session._replace(answer=worker.answer))
        written = _touch(written, journal=True, config=config)
        yield "journal.written", me, _with_worker(written, index, worker._replace(at=JOURNALED))
    if current and session.claim == me and session.cancel:
        yield "infer.cancelled", me, _with_worker(state, index, worker._replace(at=CLOSING, answer=NO_ANSWER))
    if not _is_mine(session, worker, me):
        yield "infer.given up", me, _leave(state, index)


def _released(state: State, config: Config, index: int) -> State:
    """The step given back in one transaction; the session stays due."""
    me = index + 1
    if state.session.claim == me:
        state = state._replace(session=state.session._replace(claim=NOBODY, lease=False))
        state = _touch(state, config=config)
    return _leave(state, index)


def _begin(state: State, config: Config, index: int, worker: Worker) -> Moves:
    session, me = state.session, index + 1
    if config.unusable and worker.position == FIRST:
        yield "journal.unusable", me, _with_worker(state, index, worker._replace(at=CLOSING))
    elif worker.position == NEXT:
        # The second execution calls no tool.
        yield from _close(state, config, index, worker)
    elif config.effect is Effect.PURE:
        if not session.cancel:
            yield "tool.pure", me, _with_worker(state, index, worker._replace(at=CLOSING, outcome=OK))
        else:
            yield from _close(state, config, index, worker)
    elif session.position != worker.position or session.over:
        yield "tool.claim lost", me, _leave(_late_write(state, worker), index)
    elif session.ended:
        yield "tool.replayed", me, _with_worker(state, index, worker._replace(at=CLOSING, outcome=OK))
    elif session.begun in (NOBODY, me):
        yield from _begin_new(state, config, index, worker)
    elif session.claim != me:
        yield "tool.claim lost", me, _leave(state, index)
    elif _is_cancelled(session, config):
        yield "tool.forbidden", me, _with_worker(state, index, worker._replace(at=CLOSING, outcome=UNKNOWN))
    else:
        yield from _begun_by_another(state, config, index, worker)


def _begin_new(state: State, config: Config, index: int, worker: Worker) -> Moves:
    session, me = state.session, index + 1
    begun = _touch(state._replace(session=session._replace(begun=me)), journal=True, config=config)
    if state.faults.replies:
        yield "tool.begun, reply lost", me, begun._replace(faults=_spend(state.faults, "replies"))
    if session.claim != me:
        yield "tool.begun too late", me, _with_worker(begun, index, worker._replace(at=UNDOING))
    elif _is_cancelled(session, config):
        yield "tool.begun too late", me, _with_worker(begun, index, worker._replace(at=UNDOING, outcome=NOT_RUN))
    else:
        yield "tool.begun", me, _allowed(begun, config, index, worker)


def _allowed(state: State, config: Config, index: int, worker: Worker) -> State:
    """The transaction said yes; with a clock that can be trusted the worker looks at it once more."""
    if state.session.cancel:
        state = state._replace(ghost=state.ghost._replace(late_begin=True))
    return _with_worker(state, index, worker._replace(at=LOOKING_AT_CLOCK if config.clock else RUNNING))


def _look_at_clock(state: State, config: Config, index: int, worker: Worker) -> Moves:
    session, me = state.session, index + 1
    if not _is_mine(session, worker, me):
        yield "tool.claim lost", me, _leave(state, index)
    elif session.lease:
        yield "tool.in time", me, _with_worker(state, index, worker._replace(at=RUNNING))


def _begun_by_another(state: State, config: Config, index: int, worker: Worker) -> Moves:
    me = index + 1
    if config.effect is Effect.KEYED or config.mutant is Mutant.RERUN_UNSAFE:
        yield "tool.rerun", me, _with_worker(state, index, worker._replace(at=TAKING))
    elif config.effect is Effect.LOOKUP:
        yield from _look_up(state, config, index, worker)
    else:
        yield "tool.unknown", me, _with_worker(state, index, worker._replace(at=CLOSING, outcome=UNKNOWN))


def _look_up(state: State, config: Config, index: int, worker: Worker) -> Moves:
    me, session = index + 1, state.session
    other = state.workers[1 - index]
    # 'It did not happen' counts only after the begin record's time, the tool's timeout and a margin: by then whoever
    # wrote the record does not run any more.
    still_running = session.begun == 2 - index and other.at == RUNNING and other.position == worker.position
    yield "lookup.failed", me, _with_worker(state, index, worker._replace(at=CLOSING, outcome=UNKNOWN))
    if state.ghost.effects[worker.position]:
        yield "lookup.happened", me, _with_worker(state, index, worker._replace(at=RAN))
    elif still_running:
        yield "lookup.too early", me, _released(state, config, index)
    else:
        yield "lookup.did not happen", me, _with_worker(state, index, worker._replace(at=TAKING))


def _take_over(state: State, config: Config, index: int, worker: Worker) -> Moves:
    """Own begin record over the old one, watching ctl: a worker that lost its claim would hide a running call.

    It is never taken back, for the old record meant that the effect may be there.
    """
    session, me = state.session, index + 1
    if not _is_mine(session, worker, me):
        if config.mutant is Mutant.TAKEN_OVER_BLINDLY and session.begun:
            state = state._replace(session=session._replace(begun=me))
        yield "tool.claim lost", me, _leave(state, index)
    elif _is_cancelled(session, config):
        yield "tool.forbidden", me, _with_worker(state, index, worker._replace(at=CLOSING, outcome=UNKNOWN))
    elif session.ended:
        yield "tool.replayed", me, _with_worker(state, index, worker._replace(at=CLOSING, outcome=OK))
    else:
        if config.mutant is not Mutant.RECORD_NOT_RENEWED:
            state = _touch(state._replace(session=session._replace(begun=me)), journal=True, config=config)
        yield "tool.taken over", me, _allowed(state, config, index, worker)


def _undo(state: State, config: Config, index: int, worker: Worker) -> Moves:
    session, me = state.session, index + 1
    current = session.position == worker.position and not session.over
    event = "tool.not undone"
    if current and (session.begun == me or config.mutant is Mutant.BLIND_UNDO):
        state = _touch(state._replace(session=session._replace(begun=NOBODY)), journal=True, config=config)
        event = "tool.undone"
    if worker.outcome == NOT_RUN:
        yield event, me, _with_worker(state, index, worker._replace(at=CLOSING))
    else:
        yield event, me, _leave(state, index)


def _run(state: State, config: Config, index: int, worker: Worker) -> Moves:
    me, ghost = index + 1, state.ghost
    count = ghost.effects[worker.position]
    if config.effect is not Effect.KEYED or config.mutant is Mutant.ATTEMPT_IN_KEY or not count:
        # A keyed effect that is there already is not had twice.
        count += 1
    effects = (count, ghost.effects[1]) if worker.position == FIRST else (ghost.effects[0], count)
    ran = state._replace(ghost=ghost._replace(effects=effects))
    yield "tool.run", me, _with_worker(ran, index, worker._replace(at=RAN))
    if state.session.cancel and _is_mine(state.session, worker, me):
        yield "tool.cancelled", me, _with_worker(state, index, worker._replace(at=CLOSING, outcome=UNKNOWN))


def _end(state: State, config: Config, index: int, worker: Worker) -> Moves:
    session, me = state.session, index + 1
    if session.position == worker.position and not session.over:
        state = _touch(state._replace(session=session._replace(ended=True)), journal=True, config=config)
    yield "tool.ended", me, _with_worker(state, index, worker._replace(at=CLOSING, outcome=OK))


def _close(state: State, config: Config, index: int, worker: Worker) -> Moves:
    """The commit's first round trip."""
    session, me, mutant = state.session, index + 1, config.mutant
    if worker.committed:
        if mutant is Mutant.NO_COMMIT_ID:
            denied = state._replace(ghost=state.ghost._replace(denied=True))
            yield "commit.claim lost", me, _leave(denied, index)
        elif mutant is Mutant.PLAIN_TRANSACTION:
            yield "commit.read", me, _with_worker(state, index, worker._replace(at=COMMITTING))
        else:
            yield "commit.committed already", me, _after_commit(state, config, index, worker.position)
        return
    if not _is_mine(session, worker, me):
        yield "commit.claim lost", me, _leave(state, index)
        return
    closed = worker._replace(at=COMMITTING)
    if closed.outcome == NO_CALL and closed.answer and worker.position < NEXT and not _is_unusable(config, worker):
        closed = closed._replace(outcome=_journaled_outcome(config, worker))
    event = "commit.read"
    if worker.loaded != session.applied and mutant is not Mutant.NO_VERSION_CHECK:
        event, closed = "commit.re-applied", closed._replace(loaded=session.applied)
    if mutant is Mutant.INBOX_UNWATCHED:
        closed = closed._replace(noted=session.inbox)
    if mutant is Mutant.PUBLISH_BEFORE_COMMIT and worker.position == FIRST and not session.cancel:
        state = state._replace(queue=_push(state.queue, LAST))
    yield event, me, _with_worker(state, index, closed)


def _is_unusable(config: Config, worker: Worker) -> bool:
    return config.unusable and worker.position == FIRST


def _journaled_outcome(config: Config, worker: Worker) -> int:
    """Under a stop: what was known of the call at the claim, after which nobody else may begin it."""
    if worker.noted == ENDED:
        return OK
    if worker.noted == BEGUN and config.mutant is not Mutant.BEGUN_IS_NOT_RUN:
        return UNKNOWN
    return NOT_RUN


def _commit(state: State, config: Config, index: int, worker: Worker) -> Moves:
    me = index + 1
    done = _committed(state, config, worker)
    done = _touch(done, config=config)
    published = config.fused and not done.session.over and config.mutant is not Mutant.PUBLISH_BEFORE_COMMIT
    if published:
        done = done._replace(queue=_push(done.queue, done.session.position))
    yield "commit.made", me, _after_commit(done, config, index, worker.position)
    if state.faults.crashes:
        dead = done._replace(faults=_spend(state.faults, "crashes"))
        yield "fault.c7", me, _leave(dead, index)
    if state.faults.replies:
        in_doubt = worker._replace(at=CLOSING, committed=True)
        lost = done._replace(faults=_spend(state.faults, "replies"))
        yield "commit.made, reply lost", me, _with_worker(lost, index, in_doubt)


def _after_commit(state: State, config: Config, index: int, position: int) -> State:
    """Nothing is left to do, or the next step to publish."""
    session = state.session
    if session.over or session.position <= position or config.fused or config.mutant is Mutant.PUBLISH_BEFORE_COMMIT:
        return _leave(state, index)
    return _with_worker(state, index, Worker(PUBLISHING, session.position))


def _committed(state: State, config: Config, worker: Worker) -> State:
    session, ghost, mutant = state.session, state.ghost, config.mutant
    taken = worker.noted if mutant is Mutant.INBOX_UNWATCHED else session.inbox
    before = worker.loaded if mutant is Mutant.NO_VERSION_CHECK else session.applied
    history = ghost.history
    if worker.answer:
        history = (*history, (worker.position, worker.outcome))
    exhausted = _is_exhausted(history, worker, config) and mutant is not Mutant.BUDGET_NOT_CHECKED
    cancelled = session.cancel and worker.position < NEXT
    ends = worker.position != FIRST or cancelled or exhausted or _is_unusable(config, worker)
    unseen = bool(taken) or (worker.answer == BLIND and session.applied > 0)
    ghost = ghost._replace(
        history=history,
        paid=0,
        answered=ghost.answered or (session.answer or worker.answer) == SEEING,
        stopped=ghost.stopped or cancelled or (exhausted and worker.position == FIRST),
    )
    left = Session(inbox=session.inbox - taken, applied=before + taken)
    if not ends:
        left = left._replace(position=LAST)
    elif unseen and worker.position < NEXT:
        left = left._replace(position=NEXT)
    else:
        left = left._replace(position=worker.position, over=True, due=False)
    return state._replace(session=left, ghost=ghost)


def _publish(state: State, config: Config, index: int, worker: Worker) -> Moves:
    me = index + 1
    sent = _leave(state._replace(queue=_push(state.queue, worker.position)), index)
    yield "publish.sent", me, sent
    if state.faults.crashes:
        yield "fault.c9", me, sent._replace(faults=_spend(state.faults, "crashes"))


_RULES: Final = {
    GOT: _claim_read,
    CLAIMING: _claim,
    CLAIMED: _infer,
    ASKING: _journal,
    ASKING_LATE: _journal,
    JOURNALED: _begin,
    TAKING: _take_over,
    UNDOING: _undo,
    LOOKING_AT_CLOCK: _look_at_clock,
    RUNNING: _run,
    RAN: _end,
    CLOSING: _close,
    COMMITTING: _commit,
    PUBLISHING: _publish,
}


# --- the rest of the world ---------------------------------------------------------------------------------------


def _time(state: State) -> Moves:
    session = state.session
    if session.claim == DEAD and session.lease:
        yield "lease.ended", 0, state._replace(session=session._replace(lease=False))


def _sweep(state: State, config: Config) -> Moves:
    session = state.session
    if not session.due or config.mutant is Mutant.NO_SWEEPER:
        return
    if state.neighbour:
        moved = config.mutant is not Mutant.SWEEP_DOES_NOT_MOVE
        yield "sweep.neighbour", 0, state._replace(neighbour=not moved)
    elif session.claim and session.lease:
        yield "sweep.live", 0, state
    elif any(state.queue):
        yield "sweep.queued", 0, state
    else:
        # It notes in ctl when it published, and so disturbs whoever watches.
        published = state._replace(queue=_push(state.queue, session.position))
        yield "sweep.published", 0, _touch(published, config=config)


def _queue_faults(state: State) -> Moves:
    if not state.faults.messages:
        return
    faults = _spend(state.faults, "messages")
    for position, count in enumerate(state.queue):
        if count:
            yield "fault.message lost", 0, state._replace(queue=_push(state.queue, position, -1), faults=faults)
        if position <= state.session.position:
            yield "fault.message repeated", 0, state._replace(queue=_push(state.queue, position), faults=faults)


def _user(state: State, config: Config) -> Moves:
    """One message. Its transaction is one step here: only the lease, which it does not watch, may change under it."""
    if state.message == ACKNOWLEDGED:
        return
    recognised = config.mutant not in (Mutant.NO_OPERATION_ID, Mutant.PLAIN_TRANSACTION)
    if state.message == IN_DOUBT and recognised:
        yield "user.known already", 0, state._replace(message=ACKNOWLEDGED)
        return
    for event, accepted in _accepted(state, config):
        yield event, 0, accepted._replace(message=ACKNOWLEDGED)
        if state.faults.replies:
            lost = accepted._replace(message=IN_DOUBT, faults=_spend(state.faults, "replies"))
            yield "user.reply lost", 0, lost


def _accepted(state: State, config: Config) -> Iterator[tuple[str, State]]:
    session = state.session
    if session.claim:
        queued = state._replace(session=session._replace(inbox=session.inbox + 1))
        yield "user.queued", _touch(queued, inbox=True, config=config)
    if session.over:
        started = state._replace(session=Session(position=NEXT, applied=session.applied + 1))
        if config.fused:
            started = started._replace(queue=_push(state.queue, NEXT))
        yield "user.started", _touch(started, config=config)
    elif not session.claim or not session.lease:
        applied = state._replace(session=session._replace(applied=session.applied + 1))
        yield "user.applied", _touch(applied, config=config)


def _stop(state: State, config: Config) -> Moves:
    """A stop of the first execution: it reads, watching session, ctl, inbox and journal, and then writes."""
    session = state.session
    if state.stop in (NOT_ASKED, READING):
        if session.over or session.position == NEXT:
            yield "stop.nothing", 0, state._replace(stop=STOP_DONE)
            return
        journaled = session.answer and config.mutant is not Mutant.STOP_DROPS_JOURNAL
        held = session.claim and session.lease
        yield "stop.read", 0, state._replace(stop=WILL_CANCEL if held or journaled else WILL_END)
    elif state.stop == WILL_CANCEL:
        cancelled = state._replace(session=session._replace(cancel=True), stop=STOP_DONE)
        yield "stop.cancelled", 0, _touch(cancelled, config=config)
    elif state.stop == WILL_END:
        without_journal = None if session.journal else session.position
        leaked = session.journal and config.mutant is Mutant.STOP_LEAVES_JOURNAL
        ghost = state.ghost._replace(stopped=True, paid=0, without_journal=without_journal, leaked=leaked)
        left = Session(position=session.position, over=True, due=False, applied=session.applied)
        if session.inbox:
            left = Session(position=NEXT, applied=session.applied + session.inbox)
        ended = state._replace(session=left, ghost=ghost, stop=STOP_DONE)
        yield "stop.ended", 0, _touch(ended, config=config)


# --- invariants --------------------------------------------------------------------------------------------------


def violations(state: State, config: Config) -> Iterator[str]:
    """The invariants of PROTOCOL.md that this state breaks, by name."""
    session, ghost = state.session, state.ghost
    positions = [position for position, _ in ghost.history]
    if any(later <= earlier for earlier, later in pairwise(positions)):
        yield "I1: a step is committed twice"
    if ghost.denied:
        yield "I1: a worker denies a step that it committed"
    yield from _effect_violations(state, config)
    if ghost.paid > 1:
        yield "I4: the model is asked again without a crash or a lost lease inside c2"
    if ghost.late_begin:
        yield "I6: a call began after the stop"
    if ghost.over_budget:
        yield "I7: the model is asked although the budget is used up"
    yield from _action_violations(state)
    if session.due == session.over:
        yield "D: runnable and due are not the same"
    if any(state.queue[position] for position in range(session.position + 1, 3)):
        yield "D: a message is ahead of its session"
    if session.over and (session.claim or ghost.leaked):
        yield "I11: a session that is over keeps a claim or a key without TTL"


def _effect_violations(state: State, config: Config) -> Iterator[str]:
    ghost = state.ghost
    if max(ghost.effects) > 1:
        yield f"I3: a call of the class {config.effect} has two effects"
    for position, outcome in ghost.history:
        effects = ghost.effects[position] if position < NEXT else 0
        if outcome == NOT_RUN and effects:
            yield "I5: the history says 'not run', and the effect is there"
        if outcome == OK and not effects and config.effect is not Effect.PURE:
            yield "I3: the history says 'ok', and there is no effect"
    if any(worker.answer == FOREIGN and worker.at == RUNNING for worker in state.workers):
        yield "I5: a tool runs for an answer that is not the journaled one"
    answered = {position for position, _ in ghost.history}
    for position in (FIRST, LAST):
        passed = position < state.session.position or state.session.over
        running = any(worker.at == RUNNING and worker.position == position for worker in state.workers)
        if passed and position not in answered and (ghost.effects[position] or running):
            yield "I5: an effect, or a call that runs, is missing from the history"


def _action_violations(state: State) -> Iterator[str]:
    session, ghost = state.session, state.ghost
    copies = session.inbox + session.applied
    if copies > 1:
        yield "I8: a message is applied twice"
    if state.message == ACKNOWLEDGED and not copies:
        yield "I8: an acknowledged message is lost"
    if session.over and session.inbox:
        yield "I8: a message is stranded in the inbox"
    ended_early = ghost.stopped and session.position < NEXT
    if session.over and state.message == ACKNOWLEDGED and not (ghost.answered or ended_early):
        yield "I8: the execution is over, and no answer has seen the acknowledged message"
    if state.stop == STOP_DONE and session.position < NEXT and not (session.over or session.cancel):
        yield "I8: an acknowledged stop is lost"


def is_prefix(before: State, after: State) -> bool:
    """Whether the history seen before is a prefix of the one seen after (I1)."""
    history = before.ghost.history
    return after.ghost.history[: len(history)] == history
