"""The state of the model of messages with a mode: one session, one worker, and clients who act."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

INTERRUPT, STEER, QUEUE, REFUSE = range(4)  # modes, in the order of delivery
IDLE, RUN, WAIT = range(3)  # phases
COMPLETED, STOPPED, FAILED = range(3)  # how the last execution has ended
NOBODY, WORKER, DEAD = range(3)  # who has the claim
NONE, FINAL, CALLS, ASKS, INTERRUPTED = range(5)  # the journaled answer of the model; ASKS: a call needs an answer
RESTING, CALLING, ASKING, CLOSING, COMMITTING, IN_DOUBT = range(6)  # where the worker is
STARTS, JOINS, QUEUED, HELD = range(4)  # the placement that a client is told


class Mutant(StrEnum):
    """A rule of the protocol that is broken."""

    QUEUE_UNWATCHED = "a commit that ends an execution does not watch the queue"
    INBOX_UNWATCHED = "a commit does not watch the inbox"
    EVERY_END_STARTS = "a stop or a failure starts the next queued message"
    STOP_LEAVES_INBOX = "a stop leaves the messages of the inbox where they are"
    FAILURE_LEAVES_INBOX = "a failure leaves the messages of the inbox where they are"
    MOVED_TO_THE_END = "messages of the inbox move behind the queue"
    QUEUE_TAKEN_WHOLE = "all queued messages start one execution"
    QUEUE_BEFORE_STEER = "a queued message starts in front of a steering one"
    INTERRUPT_NOT_FIRST = "an interrupting message is delivered behind steering ones"
    NOT_RECOGNISED = "a message that is sent again is not recognised"
    DELIVERED_FORGOTTEN = "the id of a delivered message is forgotten"
    QUEUED_FORGOTTEN = "the id of a queued message is forgotten"
    WITHDRAWN_FORGOTTEN = "the id of a message that was withdrawn or cleared is forgotten"
    PLACED_AGAIN = "a message that is sent again is told where it would go now"
    REFUSED_IS_KEPT = "a message that refuses to wait is written although an execution is active"
    COMMIT_REPEATED = "a commit whose reply was lost writes before it reads"
    INTERRUPT_DOES_NOT_WAKE = "an interrupting message does not wake a wait"
    WAIT_IGNORES_INTERRUPT = "the wait does not look for the interrupt mark"
    MESSAGE_LEAVES_REQUEST = "a message leaves a request open of which it takes the place"
    MESSAGE_DOES_NOT_WAKE = "a message closes what a session waits for, and wakes nobody"
    WAIT_IGNORES_MESSAGES = "a wait does not look for messages that close what it waits for"
    RESUME_FORGETS_INTERRUPT = "a resume removes the interrupt mark"
    RESUME_DOES_NOT_WAKE = "a resume leaves phase wait, whatever was answered meanwhile"
    INTERRUPTED_IS_FINAL = "an interrupted answer ends the execution when its message is gone"
    WITHDRAWAL_KEEPS_INTERRUPT = "taking out the last interrupting message leaves the interrupt mark"
    CLEARING_KEEPS_INTERRUPT = "a stop that clears leaves the interrupt mark"
    END_KEEPS_INTERRUPT = "an end leaves the interrupt mark"
    INTERRUPT_DROPS_ANSWER = "a claim that finds the interrupt mark drops the journaled answer"
    INTERRUPT_BEHIND_FINAL = "an interrupting message behind a last answer joins the same execution"
    HOLD_ENDS = "the execution that a commit starts does not keep the hold of the session"
    QUEUE_OVERTAKES_HELD = "a queued message to an idle session starts in front of a held queue"
    STEER_RELEASES = "a message that starts an idle session releases the held queue"
    RETRY_KEEPS_HELD = "a retry leaves the queue held"
    RELEASE_NOT_RECOGNISED = "a release that is sent again is not recognised"
    IDLE_RELEASE_REMEMBERED = "a release that finds nothing held is remembered"
    EMPTY_QUEUE_HELD = "a queue without messages stays held"
    STOP_KEEPS_WAIT = "a stop leaves phase wait"
    HOLD_REFUSES_STOP = "a held session refuses the claim although it is being stopped"
    CLEARED_AT_END = "a stop clears the queue when the execution ends"
    IDLE_STOP_CLEARS_NOTHING = "a stop of an idle session clears nothing"
    SECOND_STOP_CLEARS_NOTHING = "a second stop of an execution clears nothing"
    SECOND_STOP_KEEPS_MARKS = "a second stop leaves the marks of messages that came between"
    AFTER_STOP_HELD = "a stop holds the messages that came after it"
    BEFORE_STOP_STARTS = "a stopped execution starts the next one with messages that came before the stop"
    QUEUED_AFTER_STOP_HELD = "a stop holds a queue whose messages all came after it"
    MARKS_OUTLIVE_STOP = "a queued message that came after a stop keeps its mark when the execution has ended"
    AFTER_STOP_RELEASES = "the execution that a message after a stop starts releases the queue"
    FAILURE_HOLDS_AFTER_STOP = "a stopped execution that fails holds the messages that came after the stop"
    PROMOTED_BEFORE_STOP = "a message that is promoted after a stop counts as one that came before it"
    PROMOTED_WAITS = "a promoted message of an idle session waits in the inbox"
    MODE_IN_TWO = "a change of mode takes a message out and puts it back in two transactions"
    DEMOTED_LAST = "a demoted message goes to the end of the queue"
    DEMOTED_BY_FIRST_MODE = "a demoted message is placed only among those that were sent as queue"
    DEMOTED_STARTS = "a message that an end has moved to the queue starts when its mode becomes queue"


@dataclass(frozen=True)
class Send:
    """A client sends a message; two of the same number are one message that is sent again."""

    number: int
    mode: int


@dataclass(frozen=True)
class Withdraw:
    """A client withdraws a message."""

    number: int


@dataclass(frozen=True)
class SetMode:
    """A client changes the mode of a message."""

    number: int
    mode: int


@dataclass(frozen=True)
class Stop:
    """A client stops the active execution."""

    clears: bool = False


class Other(StrEnum):
    """An act without arguments; all releases have the same operation id."""

    RELEASE = "release"
    RETRY = "retry"
    SUSPEND = "suspend"
    RESUME = "resume"
    ANSWER = "answer"


Act: TypeAlias = Send | Withdraw | SetMode | Stop | Other


class Config(NamedTuple):
    """What may happen in one search.

    Attributes:
        acts: What clients do: each at most once, at any moment, in any order.
        asks: A call of the first step may need an answer.
        yields: A message that waits for the step closes what is asked.
        fails: How often an execution may fail.
        crashes, replies: Most faults of each kind: a crash, a lost reply of a commit.
        mutant: The breakage.
    """

    acts: tuple[Act, ...]
    asks: bool = False
    yields: bool = False
    fails: int = 0
    crashes: int = 0
    replies: int = 0
    mutant: Mutant | None = None


class Message(NamedTuple):
    """A message that is not delivered yet."""

    number: int
    mode: int
    is_after_stop: bool = False


Messages: TypeAlias = tuple[Message, ...]


class Session(NamedTuple):
    """The content of Redis."""

    phase: int = IDLE
    execution: int = 0
    last: int = COMPLETED
    has_called: bool = False  # the step with calls is committed
    answer: int = NONE
    claim: int = NOBODY
    interrupt: bool = False
    cancel: bool = False
    held: bool = False
    queue_held: bool = False
    inbox: Messages = ()
    queue: Messages = ()
    release_known: bool = False
    clears: bool = False  # with a mutant: the end clears the queue


class Worker(NamedTuple):
    """What the worker knows: whether its step fails, and what its commit has read."""

    at: int = RESTING
    fails: bool = False
    inbox: Messages = ()
    queue: Messages = ()


class Receipt(NamedTuple):
    """What the sender of a message was told first."""

    number: int
    mode: int
    placement: int


class Delivery(NamedTuple):
    """A message that an execution has taken in."""

    number: int
    mode: int
    execution: int


class Ghost(NamedTuple):
    """What only the observer sees.

    Attributes:
        receipts: All accepted messages, in order of arrival.
        delivered, withdrawn, undelivered: Where messages went.
        is_suspended: Nothing may begin.
        is_queue_held: The queue may go on only after a release or a retry.
        is_released: The release was applied.
        stopped: The messages that came before the last stop of the active execution.
        cleared: The messages that a stop was told to clear.
        broken: An invariant that a move broke.
    """

    receipts: tuple[Receipt, ...] = ()
    delivered: tuple[Delivery, ...] = ()
    withdrawn: tuple[int, ...] = ()
    undelivered: tuple[int, ...] = ()
    is_suspended: bool = False
    is_queue_held: bool = False
    is_released: bool = False
    stopped: tuple[int, ...] = ()
    cleared: tuple[int, ...] = ()
    broken: str = ""


class State(NamedTuple):
    """Everything. `left` are the acts that nobody has done yet, by their places in the configuration."""

    session: Session
    worker: Worker
    ghost: Ghost
    left: tuple[int, ...]
    fails: int
    crashes: int
    replies: int


Moves: TypeAlias = Iterator[tuple[str, int, State]]
AT_REST: Final = Worker()


def initial(config: Config) -> State:
    """The session is idle and empty."""
    left = tuple(range(len(config.acts)))
    return State(Session(), AT_REST, Ghost(), left, config.fails, config.crashes, config.replies)
