"""The people and the service who answer the requests of a seed: promptly, twice, together, late, at the worst moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from celery_agents.worker.errors import (
    InvalidInput,
    MessagesUnseen,
    RequestNotFound,
    RequestNotOpen,
    SessionNotFound,
    StoreFull,
    StoreUnavailable,
)
from celery_agents.worker.requests import TokenPurpose, TokenSigner, check_answer
from celery_agents.worker.state import Answer, AnswerNote, Approve, Complete, Deny, Fail, GivenAnswer, RequestKind
from celery_agents.worker.store import AnswerAction, StepRef, Store

from .asking import EDITED_AMOUNT
from .observing import History
from .requests import Asked, RequestHistory
from .world import World
from support.points import Points

# Where an answer comes at the worst moment.
_MOMENTS: Final = (
    f"<{Points.WAIT_READ}", f">{Points.WAIT_READ}", f"<{Points.WAIT_EXEC}", f">{Points.WAIT_EXEC}", "w0", "w1", "w3",
    f">{Points.REQUEST_LOOK}", f"<{Points.REQUEST_CLOSE}", f"<{Points.COMMIT_EXEC}", f"<{Points.STOP_ASK}",
    f"<{Points.SUSPEND_EXEC}", f"<{Points.RESUME_EXEC}", f">{Points.CLAIM_READ}", "lease ended",
)  # fmt: skip


@dataclass
class Answering:
    """Somebody who answers requests of a session, when a point is passed for the n-th time, or at a time.

    Attributes:
        looks: The request is looked at before, and the answer names the newest message that was seen.
    """

    session: str
    answers: dict[str, GivenAnswer]
    by: str
    operation: str
    at: float
    point: str = ""
    copies: int = 1
    left: int = 0
    looks: bool = False
    started: bool = False
    outcome: str = ""
    refused: str = ""

    @property
    def is_done(self) -> bool:
        return self.started and self.left == 0


class Desk:
    """All who answer in one seed, on one store."""

    def __init__(
        self, world: World, history: History, store: Store, secret: str, publish: Callable[[StepRef], None]
    ) -> None:
        self._world = world
        self._history = history
        self._store = store
        self._signer = TokenSigner(secret)
        self._publish = publish
        self.requests: RequestHistory = history.requests
        self.requests.on_asked = self._asked
        self.everybody: list[Answering] = []

    # --- what comes ---------------------------------------------------------------------------------------------

    def _asked(self, asked: Asked) -> None:
        """A request was opened: draw how people behave. The service answers when the tool has told it of the job."""
        rng, request = self._world.rng, asked.request
        if request.kind is RequestKind.EXTERNAL:
            return
        is_short = request.expires_at_ms is not None and request.expires_at_ms - request.asked_at_ms < 60_000
        how = rng.choices(("one", "two", "twice", "late", "all", "nobody"), (10, 4, 3, 2, 2, 5))[0]
        if how == "nobody":
            return
        if how == "late" and is_short and request.expires_at_ms is not None:
            self._plan(asked, at=request.expires_at_ms + rng.choice((-5, 0, 1, 3000)), point="")
            return
        self._plan(asked, copies=2 if how == "twice" else 1, others=how == "all")
        if how == "two":
            self._plan(asked)

    def start_job(self, session: str, token: str, result: str) -> None:
        """The service has a job, with the token to bring its result."""
        world, rng = self._world, self._world.rng
        claims = self._signer.read(token, TokenPurpose.COMPLETE, int(world.now))
        given: GivenAnswer = Complete(result) if rng.random() < 0.85 else Fail("the job failed")
        at = world.now + rng.choice((0, 100, 3000, 15_000)) * rng.random()
        self._add(session, {claims.request_id: given}, "service", at, copies=1 if rng.random() < 0.8 else 2)

    def _plan(
        self, asked: Asked, *, at: float | None = None, point: str | None = None, copies: int = 1, others: bool = False
    ) -> None:
        world, rng = self._world, self._world.rng
        answers = {asked.request.id: self._drawn(asked)}
        if others:  # all open requests of the session at once, or none
            answers |= {
                other.request.id: self._drawn(other)
                for other in self.requests.open(asked.session, *asked.place[:2])
                if other.request.kind is not RequestKind.EXTERNAL
            }
        when = world.now + rng.choice((0, 60, 600, 5000)) * rng.random() if at is None else at
        where = rng.choice(_MOMENTS) if point is None and rng.random() < 0.45 else point or ""
        late = world.now + 20_000 * rng.random() if where else when
        person = f"person {rng.randint(1, 3)}"
        self._add(asked.session, answers, person, late, point=where, copies=copies, looks=rng.random() < 0.4)

    def _drawn(self, asked: Asked) -> GivenAnswer:
        rng, request = self._world.rng, asked.request
        if request.kind is RequestKind.QUESTION:
            return Answer({"count": rng.randint(1, 5)}) if rng.random() < 0.8 else Deny("no time")
        args: Any = dict(request.args)
        edited = Approve(args | {"amount": EDITED_AMOUNT})
        return rng.choices((Approve(), edited, Deny("not now")), (6, 2, 2))[0]

    def _add(
        self, session: str, answers: dict[str, GivenAnswer], by: str, at: float, *, point: str = "", copies: int = 1,
        looks: bool = False,
    ) -> None:  # fmt: skip
        operation = f"a{len(self.everybody)}"
        self.everybody.append(
            Answering(
                session=session, answers=answers, by=by, operation=operation, at=at, point=point, copies=copies,
                looks=looks,
            )
        )  # fmt: skip

    # --- when it happens ------------------------------------------------------------------------------------------

    def passed(self, point: str) -> None:
        """Begin what waits for this point."""
        for each in self.everybody:
            if not each.started and each.point == point:
                self._begin(each)
                running = self._world.current
                if running is not None and self._world.rng.random() < 0.8:
                    running.wake_at, running.until = self._world.now, None
                    running.give_turn()

    def timers(self) -> None:
        """Begin what is due, and let somebody care for what nobody answers."""
        world = self._world
        for each in self.everybody:
            if not each.started and each.at <= world.now:
                self._begin(each)
        for session, ctl in self._history.ctl.items():
            if ctl.get("phase") != "wait" or any(e.session == session and not e.is_done for e in self.everybody):
                continue
            for asked in self.requests.open(session, ctl["execution"], int(ctl["step"])):
                if asked.request.expires_at_ms is None:
                    self._answer_at_last(asked)

    def _answer_at_last(self, asked: Asked) -> None:
        world = self._world
        if asked.request.kind is RequestKind.EXTERNAL:
            answers: dict[str, GivenAnswer] = {asked.request.id: Fail("nobody knows the job")}
        else:
            answers = {asked.request.id: self._drawn(asked)}
        self._add(asked.session, answers, "the last", world.now + 1000 + 20_000 * world.rng.random())

    def moments(self) -> list[float]:
        """When something is to begin."""
        return [each.at for each in self.everybody if not each.started]

    def is_done(self) -> bool:
        """Whether nobody is still to answer. Who waits for a point that never came answers nothing any more."""
        return all(each.is_done for each in self.everybody)

    # --- an answer ------------------------------------------------------------------------------------------------

    def _begin(self, each: Answering) -> None:
        each.started, each.left = True, each.copies
        for copy in range(each.copies):
            self._world.spawn(f"{each.by} {each.operation}.{copy}", None, lambda: self._act(each))

    def _action(self, each: Answering, *, looks: bool) -> AnswerAction:
        """What somebody answers, perhaps a while after a look at the request."""
        about, seen = AnswerNote(operation_id=each.operation, by=each.by), None
        if looks:
            found = self._store.requests.find(each.session, next(iter(each.answers)))
            self.requests.inboxes.show(each.operation, {message.operation_id for message in found.messages})
            seen = found.newest_message
            self._world.sleep(self._world.rng.choice((0.0, 0.2, 3.0)))
        return AnswerAction(each.answers, about, seen=seen, check=check_answer)

    def _act(self, each: Answering) -> None:
        world = self._world
        looks = each.looks
        early = 5 if each.by == "service" else 0  # a job may be done before the worker has asked for its result
        try:
            for _ in range(200):
                try:
                    result = self._store.requests.answer(each.session, self._action(each, looks=looks))
                    break
                except MessagesUnseen:
                    world.tally.answers["answer unseen"] += 1
                except RequestNotFound:
                    if not early:
                        raise
                    early -= 1
                    world.tally.answers["service tries again"] += 1
                    world.sleep(2.0)
                except InvalidInput as refusal:
                    if refusal.field != "seen" or looks:
                        raise
                    looks = True
                    world.tally.answers["answer has to look"] += 1
                except (StoreUnavailable, StoreFull):
                    world.tally.answers["person asks again"] += 1
                    world.sleep(0.3)
            else:
                raise AssertionError("a person found no Redis for a minute")
        except (RequestNotOpen, RequestNotFound, SessionNotFound, InvalidInput) as refusal:
            status = refusal.status if isinstance(refusal, RequestNotOpen) else type(refusal).__name__
            each.refused = status
            world.tally.answers[f"answer refused {status}"] += 1
            world.say(f"{each.by} {each.operation}: {refusal}")
            return
        finally:
            each.left -= 1
        each.outcome = each.outcome or result.outcome
        world.tally.answers[f"answer {result.outcome}"] += 1
        world.say(f"{each.by} {each.operation}: {result.outcome}")
        if result.publish is None:
            return
        if world.faults_on and world.rng.random() < 0.15:
            world.fired("answer without message")
        else:
            self._publish(result.publish)
