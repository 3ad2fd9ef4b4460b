"""`MemoryFacts`: facts that the model remembers, in the session and, with a store as `FactFiles`, in others, too."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Protocol

from pydantic import Field, ValidationError

from ...capability import Capability
from ...errors import ConfigurationError, StateUnreadable
from ...hooks import Hook, HookContext, HookPoint
from ...run_state.parts import Share
from ...state.agent_state import AgentState
from ...state.conversation.messages import Message
from ...state.execution.tool_calls import ToolCall, ToolOutcome
from ...state.parts.state_part import PartScope, PartValue, StatePart
from ...state.values.field_types import Amount, Text, UtcDatetime, utcnow
from ...state.values.ids import ID_PATTERN
from ...tools.arguments import InvalidArguments
from ...tools.context import ToolContext
from ...tools.definition import tool
from ...tools.protocol import Tool
from ..numbers import check_whole

REMEMBER_FACT: Final = "remember_fact"
RECALL_FACTS: Final = "recall_facts"
MAX_KEY_CHARS: Final = 100
MAX_VALUE_CHARS: Final = 1_000
_DESCRIPTION: Final = (
    "Remember a fact under a key. The same key with another value replaces the former fact; a value that was said "
    "before is confirmed. ttl_seconds is how long the fact counts."
)


class FactStatus(StrEnum):
    """Whether a fact still holds."""

    ACTIVE = "active"
    OBSOLETE = "obsolete"


class MemoryFact(PartValue):
    """One fact that is remembered.

    Attributes:
        confidence: From 0 to 1.
        updated_at: The last time it was said (UTC).
        ttl_seconds: It counts no longer than this after `updated_at`; None: for good.
        tags: Words to find it by.
    """

    key: Text
    value: Text
    confidence: Share = 0.5
    status: FactStatus = FactStatus.ACTIVE
    updated_at: UtcDatetime
    ttl_seconds: Amount | None = None
    tags: tuple[Text, ...] = ()


class Memory(StatePart):
    """The facts of the session, the newest last."""

    part_name = "smart_memory"
    scope = PartScope.SESSION
    facts: tuple[MemoryFact, ...] = ()


class FactStore(Protocol):
    """Keeps facts across sessions, by namespace. May be called from any thread and process."""

    def load(self, namespace: str) -> Sequence[MemoryFact]:
        """The facts of a namespace, the newest last; empty for one that is not known."""
        ...

    def save(self, namespace: str, fact: MemoryFact) -> None:
        """Merge one fact into a namespace by `merge_fact`. Saving the same fact again changes nothing."""
        ...


@dataclass(frozen=True)
class MemoryFacts(Capability):
    """Gives the model `remember_fact` and `recall_facts`, and shows it the newest facts.

    A fact has a key. Another value for the key makes the former fact obsolete, the same value raises the confidence to
    the larger of both. A fact whose time is over no longer counts.

    Attributes:
        store: Keeps the facts for other sessions, too; a session begins with those of its namespace. None: the facts
            belong to the session alone.
        namespace: The name under which the store keeps them.
        read_limit: So many facts are shown, the newest ones; from 0.
        max_facts: So many facts the session keeps, obsolete ones included; from 1.
    """

    store: FactStore | None = None
    namespace: str = "default"
    read_limit: int = 16
    max_facts: int = 100

    def __post_init__(self) -> None:
        check_whole("MemoryFacts(read_limit)", self.read_limit)
        check_whole("MemoryFacts(max_facts)", self.max_facts, least=1)
        if not isinstance(self.namespace, str) or ID_PATTERN.fullmatch(self.namespace) is None:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"MemoryFacts(namespace)={self.namespace!r:.60}: give 1 to 64 letters, digits, '_' or '-'"
            )
        effect = "pure" if self.store is None else "keyed"
        remember = tool(effect=effect, name=REMEMBER_FACT, description=_DESCRIPTION)(self._remember)
        object.__setattr__(self, "_tool", remember)

    def tools(self) -> Sequence[Tool | Callable[..., Any]]:
        """`remember_fact` and `recall_facts`."""
        recall = tool(effect="pure", name=RECALL_FACTS, description="Return the remembered facts with a word in them.")
        return (self._tool, recall(self._recall))  # type: ignore[attr-defined]

    def parts(self) -> Sequence[Any]:
        """The facts of the session."""
        return (Memory,)

    def hooks(self) -> Sequence[Hook]:
        """Loads the facts of the namespace, and keeps those of a step."""
        load = [Hook(HookPoint.BEFORE_EXECUTION, self._load, name=self.name)] if self.store is not None else []
        return (*load, Hook(HookPoint.AFTER_STEP, self._keep, name=self.name))

    def compile(self, state: AgentState, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Put the newest facts behind the conversation."""
        facts = active_facts(state.part(Memory).facts, state.updated_at)[-self.read_limit :] if self.read_limit else ()
        if not facts:
            return messages
        lines = ["Facts that you remember:", *(f"- {each.key} = {each.value}" for each in facts)]
        return (*messages, Message.system("\n".join(lines)))

    def _remember(
        self,
        ctx: ToolContext,
        key: Annotated[str, Field(min_length=1, max_length=MAX_KEY_CHARS)],
        value: Annotated[str, Field(min_length=1, max_length=MAX_VALUE_CHARS)],
        confidence: Annotated[float, Field(ge=0, le=1)] = 0.5,
        ttl_seconds: Annotated[float | None, Field(gt=0)] = None,
    ) -> str:
        """Remember a fact; the state takes it when the step ends."""
        if self.store is not None:
            now = ctx.state.updated_at if ctx.state is not None else utcnow()
            given = {"key": key, "value": value, "confidence": confidence, "ttl_seconds": ttl_seconds}
            self.store.save(self.namespace, _fact(given, now))
        return f"remembered: {key} = {value}"

    def _recall(self, ctx: ToolContext, word: str = "") -> list[dict[str, Any]]:
        """Return facts with a word in their key or value; all without one."""
        if ctx.state is None:
            return []
        facts = active_facts(ctx.state.part(Memory).facts, ctx.state.updated_at)
        found = [each for each in facts if word.lower() in f"{each.key} {each.value}".lower()]
        return [{"key": each.key, "value": each.value, "confidence": each.confidence} for each in found]

    def _load(self, context: HookContext) -> HookContext | None:
        assert self.store is not None
        facts = context.state.part(Memory).facts
        for fact in self.store.load(self.namespace):
            facts = merge_fact(facts, fact)
        return self._replace_facts(context, facts)

    def _keep(self, context: HookContext) -> HookContext | None:
        step = context.state.current_step
        if step is None:
            return None
        calls = [each.tool_call for each in step.tool_executions if each.outcome is ToolOutcome.OK]
        facts = context.state.part(Memory).facts
        for given in map(self._arguments, calls):
            if given is not None:
                facts = merge_fact(facts, _fact(given, context.state.updated_at))
        return self._replace_facts(context, facts)

    def _arguments(self, call: ToolCall) -> Mapping[str, Any] | None:
        """The arguments of a call that remembers; None for others."""
        if call.name != REMEMBER_FACT:
            return None
        try:
            return self._tool.bind(call.args)  # type: ignore[attr-defined,no-any-return]
        except InvalidArguments:
            return None

    def _replace_facts(self, context: HookContext, facts: tuple[MemoryFact, ...]) -> HookContext | None:
        kept = facts[-self.max_facts :]
        if kept == context.state.part(Memory).facts:
            return None
        return context.changed(state=context.state.with_part(Memory(facts=kept), now=context.state.updated_at))


def merge_fact(facts: Sequence[MemoryFact], new: MemoryFact) -> tuple[MemoryFact, ...]:
    """The facts with a new one. Merging the same one again changes nothing.

    A fact of the same key and value is confirmed: the larger confidence, and the later time, by which it comes behind
    the others. If a key has two values, the later one holds, and the other is obsolete.
    """
    merged = list(facts)
    for index, each in enumerate(merged):
        if each.key != new.key or each.status is FactStatus.OBSOLETE:
            continue
        if each.value == new.value:
            confidence = max(each.confidence, new.confidence)
            if new.updated_at > each.updated_at:
                return (*merged[:index], *merged[index + 1 :], new.replace(confidence=confidence))
            merged[index] = each.replace(confidence=confidence)
            return tuple(merged)
        if each.updated_at > new.updated_at:
            return tuple(merged)
        merged[index] = each.replace(status=FactStatus.OBSOLETE)
    return (*merged, new)


def active_facts(facts: Sequence[MemoryFact], now: datetime) -> tuple[MemoryFact, ...]:
    """The facts that hold at a time: neither obsolete nor older than they may be."""
    return tuple(
        each
        for each in facts
        if each.status is FactStatus.ACTIVE
        and (each.ttl_seconds is None or (now - each.updated_at).total_seconds() < each.ttl_seconds)
    )


def _fact(given: Mapping[str, Any], now: datetime) -> MemoryFact:
    return MemoryFact(
        key=given["key"],
        value=given["value"],
        confidence=given["confidence"],
        ttl_seconds=given["ttl_seconds"],
        updated_at=now,
    )


@dataclass(frozen=True)
class FactFiles:
    """Keeps facts as JSON in a folder that the workers share; made for one machine. Each write is atomic.

    Attributes:
        folder: Made when the first fact is saved.
        max_facts: So many facts a namespace keeps, the newest ones; from 1.
    """

    folder: Path | str
    max_facts: int = 1_000

    def __post_init__(self) -> None:
        check_whole("FactFiles(max_facts)", self.max_facts, least=1)

    def load(self, namespace: str) -> Sequence[MemoryFact]:
        """The facts of a namespace.

        Raises:
            StateUnreadable: The file is damaged.
        """
        path = self._path(namespace)
        try:
            return Memory.from_json(path.read_bytes()).facts
        except FileNotFoundError:
            return ()
        except ValidationError as error:
            raise StateUnreadable(f"file {path.name}", str(error.errors()[0]["msg"])) from None

    def save(self, namespace: str, fact: MemoryFact) -> None:
        """Merge a fact into a namespace."""
        path = self._path(namespace)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock_file(path.with_suffix(".lock")):
            facts = merge_fact(self.load(namespace), fact)[-self.max_facts :]
            written = path.with_suffix(".new")
            with written.open("wb") as file:
                file.write(Memory(facts=facts).to_json())
                file.flush()
                os.fsync(file.fileno())
            written.replace(path)

    def _path(self, namespace: str) -> Path:
        return Path(self.folder) / f"{namespace}.json"


@contextmanager
def _lock_file(path: Path) -> Generator[None, None, None]:
    """Keep other processes out; the lock ends with the process."""
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
