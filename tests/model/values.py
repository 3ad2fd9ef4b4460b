"""The values of the model: its configuration, and the one immutable state that the rules change."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple


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
    DELETED_WHILE_IT_RUNS = "a deletion does not look whether an execution runs"
    DELETE_UNWATCHED = "a deletion does not watch the control fields"
    NO_TOMBSTONE = "a submission does not look for the mark that a deletion leaves"
    DELETED_BUT_DUE = "a deletion leaves the entry of the due index"
    LATE_WRITER_STAYS = "a journal that a worker revives after the deletion keeps no time to live"


class Config(NamedTuple):
    """What is explored.

    Attributes:
        effect: Class of both tools.
        message: Whether a user message may come, at any moment.
        stop: Whether somebody may stop the first execution, at any moment.
        delete: Whether somebody may delete the session, at any moment; a caller who has no reply submits it again.
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
    delete: bool = False
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
CRASH: Final = {
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
# The client that deletes: NOT_ASKED, READING, and these.
WILL_DELETE, DELETE_DONE = range(5, 7)


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
    deleted: bool = False  # nothing is left but the mark


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
    deleted: bool = False
    cut_off: bool = False  # it was deleted while an execution was running


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
    delete: int = NOT_ASKED


Move = tuple[str, int, State]
Moves = Iterator[Move]
RESTING: Final = Worker()


def initial(config: Config) -> State:
    """Submitted: the session is due and its first message queued."""
    kinds = (config.crashes, config.pauses, config.replies, config.messages)
    faults = Faults(config.faults, *kinds) if config.faults else Faults(0, 0, 0, 0, 0)
    return State(Session(), (RESTING, RESTING), (1, 0, 0), Ghost(), UNSENT, NOT_ASKED, config.neighbour, faults)


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
