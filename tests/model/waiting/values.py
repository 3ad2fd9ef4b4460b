"""The values of the waiting model: its configuration, and the one immutable state that the rules change."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from ..values import Effect, Faults


class Note(StrEnum):
    """What a message to a busy session asks for."""

    NONE = ""
    STEER = "steer"  # the next step reads it
    DENY = "deny"  # it also denies what is asked
    INTERRUPT = "interrupt"  # it also stops the execution, in the same transaction


class Mutant(StrEnum):
    """One breakage of the protocol each."""

    WAIT_WITHOUT_WATCH = "the wait does not watch the journal"
    WAIT_WITHOUT_CLAIM = "the wait does not check its claim"
    WAIT_REPEATED = "a wait whose reply was lost runs again without reading first"
    WAIT_NOT_DUE = "a wait without an expiry removes the session from the due index"
    WAIT_IGNORES_STOP = "the wait does not look for a stop"
    WAIT_IGNORES_INBOX = "the wait does not look for a message that denies"
    ANSWER_WITHOUT_WATCH = "an answer does not watch ctl and journal"
    ANSWER_NOT_RECOGNISED = "an answer that is sent again is not recognised"
    SECOND_DECISION = "a second decision replaces the first"
    ROUND_IGNORED = "an answer counts for whatever round is open"
    WAKE_FORGOTTEN = "an answer wakes nobody"
    WAKE_NOT_DUE = "a wake pushes a message and leaves the due entry as it was"
    WAKE_KEEPS_WAIT = "a wake leaves phase wait"
    EXPIRY_OVERWRITES = "an expiry replaces an answer that came before it"
    EXPIRY_IGNORED = "a leg does not look for expired requests"
    CLAIM_KEEPS_WAIT = "a claim leaves phase wait"
    HELD_CLAIMED = "a claim does not look at the hold"
    HELD_CARRIED = "a commit that keeps its claim does not look at the hold"
    HOLD_REFUSES_STOP = "a held session refuses the claim although somebody asked for a stop"
    HOLD_WITHOUT_END = "a held session refuses every claim, at the end of its hold too"
    SUSPENDED_UNDER_STOP = "a session that is being stopped is suspended"
    HOLD_OUTLIVES_END = "an execution that ends keeps the hold"
    RESUME_DOES_NOT_WAKE = "resume puts a waiting session back to its expiry, whatever was answered meanwhile"
    RESUME_LEAVES_DUE = "resume leaves the due entry of a claimed session where it is"
    STOP_KEEPS_WAIT = "a stop leaves phase wait"
    STOP_FORGETS_DUE = "a stop leaves the due entry where it was"
    INTERRUPT_TWICE = "an interrupt leaves its message and its stop in two transactions"
    EXTERNAL_OPENED_LATE = "the request of an external call is opened by the wait, after the call began"
    EXTERNAL_STARTED_AGAIN = "an unsafe external call that a dead claim began is started again"
    BEGIN_RECORD_KEPT = "a request leaves the begin record of the tool that asked"
    LATE_FAILURE_COUNTS = "the failure of a run that began before its call asked stands for the approved call"
    ARGUMENTS_MADE_AGAIN = "a woken leg runs what its hooks make of the arguments now"
    EDITS_IGNORED = "an approved call runs with the arguments of the request, whatever the answer says"
    MODEL_ASKED_AGAIN = "a woken leg drops the model's answer"
    BEGUN_UNDER_STOP = "an approved call begins without looking for a stop"
    END_FORGETS_INBOX = "an execution that ends leaves the inbox"


class Config(NamedTuple):
    """The part of the protocol that one search looks at.

    Attributes:
        approval: The step has a call that needs an approval.
        external: The step has a call whose result comes later.
        effect: The class of both calls: unsafe or keyed.
        asked_by_tool: The tool itself asks, so its call begins before the request; else a policy asks.
        edited: The approval changes the arguments.
        expires: Requests expire. Without, nobody but an answer or a stop ends the wait.
        passes_on: An expiry of the approval opens a second round with another addressee.
        people: Persons who answer the approval. The first approves, the second denies; with `passes_on` the second
            is the addressee of the second round and approves.
        stop: Somebody may stop the execution, at any moment.
        hold: Somebody may suspend the session, and resume it later or never.
        note: A message may come, at any moment.
        carries: A commit keeps its claim for the next step.
        faults: Most faults of all kinds together.
        crashes, pauses, replies, messages: Most faults of each kind.
        mutant: The breakage.
    """

    approval: bool = True
    external: bool = False
    effect: Effect = Effect.UNSAFE
    asked_by_tool: bool = False
    edited: bool = False
    expires: bool = True
    passes_on: bool = False
    people: int = 1
    stop: bool = False
    hold: bool = False
    note: Note = Note.NONE
    carries: bool = False
    faults: int = 1
    crashes: int = 1
    pauses: int = 1
    replies: int = 1
    messages: int = 1
    mutant: Mutant | None = None


# Where a worker is. LEG is the place at which it decides what can be done next.
IDLE, LEG, ASKING, STARTING, STARTED, RUNNING, RAN, WAITING, WAITED, CLOSING, COMMITTING = range(11)
CRASH: Final = {
    ASKING: "fault.c4",
    STARTING: "fault.c4",
    STARTED: "fault.c5",
    RUNNING: "fault.c4",
    RAN: "fault.c5",
    WAITING: "fault.w0",
    WAITED: "fault.w1",
    CLOSING: "fault.c6",
    COMMITTING: "fault.c6",
}

# Positions: the step that waits, the final step of its execution, the one step of the second execution.
FIRST, LAST, NEXT = range(3)
RUN, WAIT, END = range(3)  # phases
ABSENT, NOW, EXPIRY, HOLD_END = range(4)  # the time of the due entry
NOBODY, DEAD = 0, 3  # beside the claims 1 and 2 of the two workers
OPEN, APPROVED, DENIED, EXPIRED, ANSWERED = range(5)  # the reply to a request
NO_RESULT, OK, UNKNOWN, SUPERSEDED = range(4)  # the result of the approved call; of a run that had not asked
NOT_STOPPED, STOPPED, HOLD_OVER = range(3)  # why a leg ends the execution
ASKED_ARGUMENTS, OTHER_ARGUMENTS, EDITED_ARGUMENTS = 1, 2, 3
UNSENT, READ, IN_DOUBT, ACCEPTED, REFUSED = range(5)  # a person's answer
NOT_HELD, SUSPENDED, RESUMED = range(3)  # the client that holds


class Session(NamedTuple):
    """The content of Redis."""

    position: int = FIRST
    phase: int = RUN
    claim: int = NOBODY
    lease: bool = False
    due: int = NOW
    cancel: bool = False
    held: bool = False
    inbox: int = 0
    answer: int = 0  # the model's answer: the arguments that it asks for
    round: int = 0
    asked: int = 0  # the arguments of the approval's request
    reply: int = OPEN
    edited: int = 0  # the arguments that the approval brought
    begun: int = NOBODY
    result: int = NO_RESULT
    job_asked: bool = False
    job_begun: int = NOBODY
    job_started: bool = False  # the journal says that the external call returned
    job_reply: int = OPEN


class View(NamedTuple):
    """What a leg knows of answers, messages and a stop."""

    reply: int = OPEN
    job_reply: int = OPEN
    denied: bool = False


class Worker(NamedTuple):
    """What one worker knows."""

    at: int = IDLE
    position: int = 0
    view: View = View()
    ending: int = NOT_STOPPED
    is_woken: bool = False  # a leg after the first
    asked: bool = False  # this leg made the request


class Person(NamedTuple):
    """Who answers the approval."""

    at: int = UNSENT
    phase: int = RUN  # the phase that was read


class Ghost(NamedTuple):
    """What only the observer sees."""

    paid: int = 0
    effects: int = 0
    ran: int = 0  # the arguments of the effect
    approved: int = 0  # the arguments that were approved
    opened: tuple[int, int] = (0, 0)  # how often each round was opened
    decided: tuple[int, int] = (0, 0)  # how many decisions of each round were accepted
    begun: bool = False  # an approved call began
    used: int = 0
    jobs: int = 0
    news: bool = False  # an answer that no leg has seen
    taken: int = 0  # messages that a commit took
    broken: str = ""  # an invariant that a move broke


class State(NamedTuple):
    """Everything."""

    session: Session
    workers: tuple[Worker, Worker]
    queue: tuple[int, int, int]
    people: tuple[Person, ...]
    ghost: Ghost
    stop: bool  # somebody has asked for it
    hold: int
    note: bool  # the message is sent
    is_expired: bool  # the time of the requests, or of the wait's due entry, has come
    is_hold_over: bool
    faults: Faults


Move = tuple[str, int, State]
Moves = Iterator[Move]
RESTING: Final = Worker()


def initial(config: Config) -> State:
    """The execution is submitted and its first message is in the queue."""
    kinds = (config.crashes, config.pauses, config.replies, config.messages)
    return State(
        session=Session(),
        workers=(RESTING, RESTING),
        queue=(1, 0, 0),
        people=(Person(),) * config.people if config.approval else (),
        ghost=Ghost(),
        stop=False,
        hold=NOT_HELD,
        note=False,
        is_expired=False,
        is_hold_over=False,
        faults=Faults(config.faults, *kinds) if config.faults else Faults(0, 0, 0, 0, 0),
    )


def canonical(state: State) -> State:
    """One of the two states that differ only in which worker is which."""
    one, two = state.workers
    session = state.session
    claim, begun, job = _SWAP[session.claim], _SWAP[session.begun], _SWAP[session.job_begun]
    if (two, one, claim, begun, job) < (one, two, session.claim, session.begun, session.job_begun):
        return state._replace(workers=(two, one), session=session._replace(claim=claim, begun=begun, job_begun=job))
    return state


_SWAP: Final = (0, 2, 1, 3)
