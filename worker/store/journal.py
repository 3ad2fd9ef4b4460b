"""The journal of a step as a value, and how it is parsed: what a step has obtained, asked and been answered."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, TypeVar, cast

from pydantic import ValidationError

from ..errors import StateUnreadable
from ..flow.values import BACKGROUND
from ..state.execution.answers import AnswerRecord, RequestResolution
from ..state.execution.requests import Request, RequestKind
from ..state.values.value import Value
from . import fields

V = TypeVar("V", bound=Value)
# A policy's decision about a call, the note that a service has it; a request of a round, an answer to it, the id of
# its child, the time at which the child was asked to stop.
_ASKED_FIELD: Final = re.compile(r"t(\d{1,4}):(?:([ph])|([qack])(\d{1,4}))")
SAW: Final = "saw"
JOB: Final = "job:"
"""Begins the names of the fields of a job at a provider: `job:<n>` was intended, `:id` created, `:end` has ended."""
ANSWERED: Final = "answered"
"""The end of a job whose answer was journaled."""
LOST: Final = "lost"
"""The end of a job of which nobody can tell whether it was created."""
NOT_CREATED: Final = "not created"
"""The end of a job that its provider has refused, or that was not asked for after all."""
CHARGED: Final = "charged"
"""The end of a job that was cancelled, and whose session was charged for what it had answered."""
OVERTIME: Final = "over:"
"""Begins the name of the field that tells why an execution ends, by its retries: a retry asks the model again."""
_ASKED: Final = "try:"
"""Begins the name of the field of a claim under which the driver may have been asked."""
# Parsed values that are kept, and the largest of them: 5 MB at most.
_KEPT: Final = 512
_KEPT_BYTES: Final = 4_096


@dataclass(frozen=True, slots=True)
class BeginRecord:
    """Record of a tool call that was begun: by whom, when (Redis ms) and with which timeout (ms).

    Attributes:
        primary: Replication id of the server whose clock tells `at_ms`; "" where it is not known.
    """

    claim: str
    at_ms: int
    timeout_ms: int
    primary: str = ""


@dataclass(frozen=True, slots=True)
class JournaledJob:
    """A job at a provider: a question of the step whose answer comes later.

    Attributes:
        number: From 0 within the step.
        window: The time within which the answer was asked for.
        intended_ms: When the journal told that it is about to be created (Redis ms).
        until_ms: Until when somebody may be creating it (Redis ms).
        retries: How often its execution had been retried when it was intended.
        id: The provider's; "" where it is not known whether it was created.
        handle: What its driver knows it by.
        ended_ms: When it had ended for the step (Redis ms); None while the step waits for it.
        why: The reason why it gave no answer; `ANSWERED` where it gave one.
    """

    number: int
    window: str
    intended_ms: int
    until_ms: int
    retries: int = 0
    id: str = ""
    handle: str = ""
    ended_ms: int | None = None
    why: str = ""

    @property
    def counts_as_failed(self) -> bool:
        """Whether its provider has given no answer to it."""
        return self.ended_ms is not None and self.why not in (ANSWERED, NOT_CREATED, LOST, CHARGED)

    @property
    def intention(self) -> str:
        """As the journal tells of it before it is created."""
        told = f"{self.intended_ms} {self.until_ms} {self.window}"
        return f"{told} {self.retries}" if self.retries else told

    def created(self, stored: bytes) -> JournaledJob:
        """The same with the id and the handle that were stored as one value: an id has no blank."""
        found, _, handle = stored.decode().partition(" ")
        return replace(self, id=found, handle=handle)

    def ended(self, at_ms: int, why: str) -> JournaledJob:
        """The same, at its end (Redis ms)."""
        return replace(self, ended_ms=at_ms, why=why)

    def waited_ms(self, now_ms: int) -> int:
        """How long the step has waited for it."""
        return max(0, (now_ms if self.ended_ms is None else self.ended_ms) - self.intended_ms)


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal of a step: what it has obtained before its commit.

    Attributes:
        answer: The driver's raw answer, or None.
        begun: Tool calls that were begun, by index.
        results: Results of tool calls, by index.
        auxiliary: Raw answers of auxiliary calls, by key.
        rejected: Records of answers that were paid for and could not be used, in order.
        decisions: Decisions of the approval policy other than "run", by call index, as the engine wrote them.
        requests: Requests of each call, by call index, in the order of their rounds.
        answers: Answers to requests, by call index and round.
        started_calls: Calls with a later result whose start has returned, by index: no worker starts them again.
        made: Requests whose children exist, by call index and round.
        stopped: When the step asked the children of requests to stop (Redis ms), by call index and round.
        ending: Why the execution ends after this step, as the engine wrote it; None while it does not.
        tools: Digests of the remote lists of tools that the step is pinned to, as the engine wrote them; None without.
        saw: What the model saw, as the engine wrote it when the step began to wait (`Asked.to_stored`); None before.
        asked_ms: When each claim was taken under which the driver may have been asked (Redis ms), by claim.
        jobs: Jobs at a provider, in the order in which they were intended.
    """

    answer: bytes | None = None
    begun: Mapping[int, BeginRecord] = field(default_factory=dict[int, BeginRecord])
    results: Mapping[int, bytes] = field(default_factory=dict[int, bytes])
    auxiliary: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    rejected: tuple[bytes, ...] = ()
    decisions: Mapping[int, bytes] = field(default_factory=dict[int, bytes])
    requests: Mapping[int, tuple[Request, ...]] = field(default_factory=dict[int, tuple[Request, ...]])
    answers: Mapping[tuple[int, int], AnswerRecord] = field(default_factory=dict[tuple[int, int], AnswerRecord])
    started_calls: frozenset[int] = frozenset()
    made: frozenset[tuple[int, int]] = frozenset()
    stopped: Mapping[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    ending: bytes | None = None
    tools: bytes | None = None
    saw: bytes | None = None
    asked_ms: Mapping[str, int] = field(default_factory=dict[str, int])
    jobs: tuple[JournaledJob, ...] = ()

    @property
    def was_paid_for(self) -> bool:
        """Whether the step has cost anything, so that a worker has to commit it even when it is stopped."""
        return self.holds_something or bool(self.auxiliary) or bool(self.rejected) or bool(self.jobs)

    @property
    def holds_something(self) -> bool:
        """Whether the step has obtained anything that its commit must keep."""
        return self.answer is not None or bool(self.begun) or bool(self.results)

    @property
    def has_asked(self) -> bool:
        """Whether a decision, a request or an answer is journaled: the model's answer is never dropped then."""
        return bool(self.decisions or self.requests or self.answers)

    @property
    def all_requests(self) -> tuple[Request, ...]:
        """Every request of the step, by call index and round."""
        if not self.requests:  # as in nearly every step
            return ()
        return tuple(request for index in sorted(self.requests) for request in self.requests[index])

    @property
    def open_requests(self) -> tuple[Request, ...]:
        """Requests without an answer, by call index. Only the newest round of a call can be one."""
        if not self.requests:
            return ()
        return tuple(request for request in self.all_requests if request.place not in self.answers)

    @property
    def child_requests(self) -> tuple[Request, ...]:
        """The requests whose answers are the ends of children, by call index and round."""
        if not self.requests:
            return ()
        return tuple(request for request in self.all_requests if request.child is not None)

    @property
    def open_children(self) -> tuple[Request, ...]:
        """The requests whose children have not ended, made or not, by call index and round."""
        return tuple(request for request in self.child_requests if request.place not in self.answers)

    def waited_ms(self, now_ms: int) -> int:
        """How long no worker had the step, since it waited for jobs at a provider (Redis ms)."""
        return sum(job.waited_ms(now_ms) for job in self.jobs if job.window != BACKGROUND)

    def answer_to(self, request: Request) -> AnswerRecord | None:
        """The answer to a request; None while it is open."""
        return self.answers.get(request.place)

    def resolutions(self, index: int) -> tuple[RequestResolution, ...]:
        """How the answered requests of a call were resolved, by round; the committed call keeps them."""
        answered = ((request, self.answer_to(request)) for request in self.requests.get(index, ()))
        return tuple(record.resolve(request) for request, record in answered if record is not None)

    def with_decisions(self, decisions: Mapping[int, bytes]) -> Journal:
        """The same journal with decisions that were stored since."""
        return replace(self, decisions={**self.decisions, **decisions})

    def with_requests(self, requests: Iterable[Request]) -> Journal:
        """The same journal with requests that were stored since; their calls' begin records are as the store left them.

        A request that takes its call's begin record back is followed by a reload of the journal or by this method: the
        begin record of a call that waits for a person is gone, the one of a call with a later result is there.
        """
        known = {index: {each.round: each for each in rounds} for index, rounds in self.requests.items()}
        begun = dict(self.begun)
        for request in requests:
            known.setdefault(request.index, {})[request.round] = request
            if request.kind is not RequestKind.EXTERNAL or request.has_begun:
                begun.pop(request.index, None)
        ordered = {index: tuple(rounds[number] for number in sorted(rounds)) for index, rounds in known.items()}
        return replace(self, requests=ordered, begun=begun)

    def with_answers(self, answers: Mapping[tuple[int, int], AnswerRecord]) -> Journal:
        """The same journal with answers that were stored since, by call index and round."""
        return replace(self, answers={**self.answers, **answers})

    def with_stopped(self, stopped: Mapping[tuple[int, int], int], ending: bytes | None) -> Journal:
        """The same journal with children that were asked to stop since, and why the execution ends."""
        return replace(self, stopped={**self.stopped, **stopped}, ending=ending or self.ending)

    def without_results(self, indexes: Collection[int]) -> Journal:
        """The same journal without the results of these calls, which were deleted since."""
        return replace(self, results={index: raw for index, raw in self.results.items() if index not in indexes})


NOTHING_JOURNALED: Final = Journal()


def read_journal(reply: list[bytes], retries: int | None = None) -> Journal:
    """Parse a step's journal, the reply to HGETALL.

    Args:
        retries: How often the execution was retried, for its `ending`; None where nobody asks for that.
    """
    if not reply:
        return NOTHING_JOURNALED
    answer = None
    begun: dict[str, bytes] = {}
    results: dict[int, bytes] = {}
    auxiliary: dict[str, bytes] = {}
    asked: dict[str, bytes] = {}
    rejected: dict[str, bytes] = {}
    asked_ms: dict[str, int] = {}
    tools: bytes | None = None
    saw: bytes | None = None
    for name, value in fields.pairs(reply).items():
        if name == "llm":
            answer = value
        elif name == "tools":
            tools = value
        elif name == SAW:
            saw = value
        elif name.startswith("x:"):
            auxiliary[name[2:]] = value
        elif name.startswith("rej:"):
            rejected[name] = value
        elif name.startswith(_ASKED):
            asked_ms[name.removeprefix(_ASKED)] = fields.or_else(fields.milliseconds, value, 0)
        elif name.startswith("err:"):
            continue  # for those who account for model calls
        elif name.endswith((":s", ":n")):
            begun[name] = value
        elif name.endswith(":r"):
            results[_call_index(name)] = value
        else:
            asked[name] = value
    found = Journal(
        answer=answer, begun=_read_begun(begun), results=results, auxiliary=auxiliary, tools=tools, asked_ms=asked_ms,
        saw=saw, jobs=_read_jobs(asked) if f"{JOB}0" in asked else (),
        rejected=tuple(rejected[name] for name in sorted(rejected, key=lambda name: (len(name), name))),
    )  # fmt: skip
    ending = asked.pop("end", None) or asked.get(f"{OVERTIME}{retries}")
    return replace(_with_asked(found, asked), ending=ending) if asked or ending else found


def _read_jobs(stored: Mapping[str, bytes]) -> tuple[JournaledJob, ...]:
    """Parse the jobs at a provider: their numbers follow each other."""
    jobs: list[JournaledJob] = []
    while (value := stored.get(f"{JOB}{len(jobs)}")) is not None:
        number = len(jobs)
        end = stored.get(f"{JOB}{number}:end")
        try:
            intended_ms, until_ms, window, *retries = value.decode().split(" ")
            at_ms, until = int(intended_ms), int(until_ms)
            job = JournaledJob(number, window, intended_ms=at_ms, until_ms=until, retries=int(*retries))
            if (created := stored.get(f"{JOB}{number}:id")) is not None:
                job = job.created(created)
            if end is not None:
                ended_ms, _, why = end.decode().partition(" ")
                job = job.ended(int(ended_ms), why)
            jobs.append(job)
        except ValueError:
            raise StateUnreadable("journal", "a job at a provider is not told as it should be") from None
    return tuple(jobs)


def _read_begun(stored: Mapping[str, bytes]) -> dict[int, BeginRecord]:
    """Join begin records with the primaries, which have a field of their own: older versions park a longer record."""
    records = {_call_index(name): begun_record(value) for name, value in stored.items() if name.endswith(":s")}
    primaries = {_call_index(name): fields.text(value) for name, value in stored.items() if name.endswith(":n")}
    return {index: replace(record, primary=primaries.get(index, "")) for index, record in records.items()}


def _with_asked(found: Journal, asked: Mapping[str, bytes]) -> Journal:
    """Add what the step has asked of people and services, and their answers."""
    decisions: dict[int, bytes] = {}
    requests: list[Request] = []
    answers: dict[tuple[int, int], AnswerRecord] = {}
    started_calls: set[int] = set()
    made: set[tuple[int, int]] = set()
    stopped: dict[tuple[int, int], int] = {}
    for name, value in asked.items():
        match = _ASKED_FIELD.fullmatch(name)
        if match is None:
            continue  # of a newer version
        index, kind, round_ = int(match[1]), match[2] or match[3], int(match[4] or 0)
        if kind == "p":
            decisions[index] = value
        elif kind == "h":
            started_calls.add(index)
        elif kind == "q":
            requests.append(_value(Request, value, name))
        elif kind == "a":
            answers[index, round_] = _value(AnswerRecord, value, name)
        elif kind == "c":
            made.add((index, round_))
        else:
            stopped[index, round_] = fields.milliseconds(value)
    return replace(
        found.with_requests(requests),
        begun=found.begun,
        decisions=decisions,
        answers=answers,
        started_calls=frozenset(started_calls),
        made=frozenset(made),
        stopped=stopped,
    )


def _value(kind: type[V], value: bytes, name: str) -> V:
    try:
        return cast("V", _read_again(kind, value)) if len(value) <= _KEPT_BYTES else kind.from_json(value)
    except ValidationError:
        raise StateUnreadable(f"journal {name}", f"it is no {kind.__name__}") from None


@lru_cache(_KEPT)
def _read_again(kind: type[Value], value: bytes) -> Value:
    """Parse a value that each leg of a waiting step parses again: a parent has one for each of its children."""
    return kind.from_json(value)


def begun_record(value: bytes) -> BeginRecord:
    """Parse a begin record: `<claim> <redis ms> <timeout ms>`."""
    try:
        claim, at_ms, timeout_ms = value.decode().split(" ")
        return BeginRecord(claim=claim, at_ms=int(at_ms), timeout_ms=int(timeout_ms))
    except ValueError:
        raise StateUnreadable("journal", "a begin record has not three words") from None


def _call_index(name: str) -> int:
    """Parse the index of a call from the name of its field, such as `t3:s`."""
    try:
        return int(name[1:-2])
    except ValueError:
        raise StateUnreadable("journal", "a field of a call has no number") from None
