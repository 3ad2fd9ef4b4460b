"""The clients of a seed: they submit, send messages, stop, retry and save while workers run steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_agents.worker.engine import (
    FirstExecution,
    first_state,
    operation_transition,
    retry_transition,
    stop_transition,
)
from celery_agents.worker.errors import (
    ActionRefused,
    InvalidTransition,
    SessionNotFound,
    StoreFull,
    StoreUnavailable,
)
from celery_agents.worker.state import AgentState, ExecutionBudget, Message
from celery_agents.worker.store import ActionResult, InboxKind, NextState, Operation, StepRef, Store, fields
from celery_agents.worker.store.bookkeeping import BOOKKEEPING, Bookkeeping
from celery_agents.worker.store.control import ControlFields, control_command
from celery_agents.worker.store.database import Changed
from celery_agents.worker.store.records import MessageMode
from celery_agents.worker.store.sessions import loading
from celery_agents.worker.store.sessions.saving import SessionSave

from .deleting import delete
from .holding import WHO, change_limit
from .observing import History
from .plan import Action
from .rewinding import rewind
from .sessions import MESSAGE, Stage, moment
from .world import World


class Clients:
    """All clients of a seed, on one store of their own."""

    def __init__(
        self, world: World, history: History, stage: Stage, store: Store, actions: list[Action], *,
        publish: Callable[[StepRef], None], forge: Callable[[StepRef], None],
    ) -> None:  # fmt: skip
        """
        Args:
            publish: Queues the message of a step.
            forge: Queues a message that nobody of the product has sent.
        """
        self.world = world
        self.history = history
        self.stage = stage
        self.store = store
        self.actions = actions
        self._publish = publish
        self._forge = forge

    def passed(self, point: str) -> None:
        """Begin what waits for this point."""
        for action in self.actions:
            if not action.started and action.point == point and self.is_open(action):
                action.nth -= 1
                if action.nth <= 0:
                    self.begin(action)
                    running = self.world.current
                    if running is not None and self.world.rng.random() < 0.8:
                        running.wake_at, running.until = self.world.now, None
                        running.give_turn()

    def is_open(self, action: Action) -> bool:
        return action.kind == "submit" or action.session in self.history.versions

    def begin(self, action: Action) -> None:
        action.started = True
        action.operation = f"{action.session}o{action.number}"
        for copy in range(2 if action.kind.endswith("twice") else 1):
            self.world.spawn(f"client {action.kind} {action.number}.{copy}", None, lambda: self._act(action))

    def _act(self, action: Action) -> None:
        world = self.world
        for _ in range(200):
            try:
                applied = self._send(action)
                break
            except (StoreUnavailable, StoreFull):
                world.tally.answers["client asks again"] += 1
                world.sleep(0.3)
            except (InvalidTransition, ActionRefused, SessionNotFound) as refusal:
                action.refused, action.done = type(refusal).__name__, True
                world.tally.answers[f"{action.kind.split(' ')[0]} refused"] += 1
                return
        else:
            raise AssertionError(f"{action.kind} found no Redis for a minute")
        action.done = True
        if applied is None:
            return
        action.outcome = action.outcome or applied.outcome
        action.execution = action.execution or applied.execution_id
        world.say(f"client {action.kind} {action.operation}: {applied.outcome} {applied.execution_id}")
        world.tally.answers[f"{action.kind.split(' ')[0]} {applied.outcome}"] += 1
        if applied.publish is not None:
            self._publish(applied.publish)

    def _send(self, action: Action) -> ActionResult | None:
        store, session = self.store, action.session
        match action.kind:
            case "submit" | "submit again":
                execution = self.stage.first_of(session)
                plan = self.stage.plans[session]

                def first(now_ms: int) -> NextState:
                    now = moment(now_ms)
                    operation = f"{session}o0"
                    message = Message.user(MESSAGE + operation)
                    return first_state(
                        AgentState.fresh(now=now),
                        message,
                        FirstExecution(execution, operation, plan.budget),
                        now,
                    )

                return store.sessions.submit(session, "async" if plan.is_async else "plain", session, first)
            case "message" | "twice" | "queue" | "interrupt":
                return store.sessions.act(session, self._operation(action), operation_transition)
            case "stop":
                return store.sessions.stop(session, None, stop_transition)
            case "stop clear":
                return store.sessions.stop(session, None, stop_transition, clear_queue=True)
            case "withdraw":
                return store.sessions.withdraw(session, action.target)
            case "mode steer" | "mode queue" | "mode interrupt":
                mode = MessageMode(action.kind.removeprefix("mode "))
                return store.sessions.set_mode(session, action.target, mode, operation_transition)
            case "release":
                return store.sessions.release_queue(session, action.operation, operation_transition)
            case "retry":
                return store.sessions.retry(session, retry_transition(None))
            case "suspend":
                until_ms = int(self.world.now + self.world.rng.choice((300, 5000, 30_000, 200_000)))
                return store.sessions.suspend(session, reason="holiday", by="a person", until_ms=until_ms)
            case "resume":
                return store.sessions.resume(session, by="a person")
            case "budget":
                budget = ExecutionBudget(max_steps=action.limit)
                return store.sessions.change_budget(session, budget, by="a person")
            case "concurrency":
                for ref in change_limit(store, action):
                    if ref is not None:
                        self._publish(ref)
                return None
            case "label":
                store.sessions.label(session, {WHO: action.target or None})
                return None
            case "rewind" | "rewind twice":
                return rewind(self.world, store, action, self.stage.first_of(session), self._publish)
            case "delete":
                return delete(self.world, store, session, self._publish)
            case "beside":
                return self._beside(action, with_message=False)
            case "beside message":
                return self._beside(action, with_message=True)
            case _:
                execution = self.history.ctl[session]["execution"]
                for ref in (StepRef(session, execution, 77), StepRef("nobody", "nothing", 1)):
                    self._forge(ref)
                return None

    def _operation(self, action: Action) -> Operation:
        message = Message.user(MESSAGE + action.operation).to_dict()
        when = {"when": action.kind} if action.kind in ("queue", "interrupt") else {}
        return Operation(action.operation, InboxKind.MESSAGE, {"message": message, **when})

    def _beside(self, action: Action, *, with_message: bool) -> ActionResult | None:
        """Somebody saves the session while a step of it runs: an administrator, or another version of the product."""
        context = self.store.context
        keys = context.keys(action.session)
        for _ in range(50):
            reads: list[Any] = [
                ("HMGET", keys.session, "version", *BOOKKEEPING),
                control_command(keys),
                context.clock.now(),
            ]
            try:
                with context.database.watch("beside.read", (keys.session, keys.ctl), reads) as watched:
                    (version, *standing_reply), ctl_reply, now_reply = watched.replies
                    ctl, bookkeeping = ControlFields.read(ctl_reply), Bookkeeping.read(*standing_reply)
                    if ctl.phase != "run" or action.operation in bookkeeping.operations:
                        action.refused = "" if action.operation in bookkeeping.operations else "over"
                        return None
                    scope, cached = context.session(action.session), context.cache.get(action.session)
                    stored = loading.finish(
                        scope, ctl.execution, cached, watched,
                        watched.pipeline("beside.load", loading.reads(scope, ctl.execution, cached)),
                    ).state  # fmt: skip
                    now_ms = context.clock.milliseconds(now_reply)
                    now = moment(now_ms)
                    after = stored.with_metadata(action.operation, 1, now=now)
                    if with_message:
                        after = stored.with_user_message(Message.user(MESSAGE + action.operation), now=now)
                    save = SessionSave(
                        scope=scope,
                        before=stored,
                        next_state=NextState(after, operations=(action.operation,)),
                        bookkeeping=bookkeeping,
                        version=fields.number(version) + 1,
                        now_ms=now_ms,
                        work_changed=False,
                    ).prepare()
                    watched.commit("beside.exec", save.commands)
                    return ActionResult("changed", ctl.execution, 0)
            except Changed:
                continue
        return None
