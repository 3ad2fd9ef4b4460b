"""`EffectLedger`: counts the runs of tools and their effects, independently of the engine."""

from __future__ import annotations

import functools
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from ..worker.state.execution.inference import InferenceResponse
from ..worker.tools.context import ToolContext
from ..worker.tools.definition import FunctionTool
from ..worker.tools.effect import Effect
from ..worker.tools.protocol import Tool
from ..worker.tools.toolset import ToolSet

_OWN_CONTEXT: Final = "celery_agents_testing_context"
_running: ContextVar[ToolRun | None] = ContextVar("celery_agents_testing_run", default=None)


@dataclass(eq=False)
class ToolRun:
    """One run of a tool's function.

    Attributes:
        tool: Name of the tool.
        effect: Declared effect class.
        step: Number of the step, from 1.
        index: Position of the call in the step, from 0.
        key: The idempotency key.
        returned: The function returned without an exception.
    """

    tool: str
    effect: Effect
    execution_id: str
    step: int
    index: int
    key: str
    returned: bool = False

    @property
    def call(self) -> tuple[str, int, int]:
        """Identity of the tool call: the same for every attempt at it."""
        return (self.execution_id, self.step, self.index)

    def __str__(self) -> str:
        return f"{self.tool} (declared {self.effect}) in step {self.step}, call {self.index}"


@dataclass(frozen=True, slots=True)
class Happening:
    """An effect that a tool had.

    Attributes:
        what: The tool's name for it.
        key: The key by which a repetition is recognised; "" when none is.
        run: The tool run that caused it; None outside of one.
    """

    what: str
    key: str
    run: ToolRun | None


class EffectLedger:
    """Counts the runs of wrapped tools, and the effects that tools report with `happened`.

    It takes the place of the outside world in a test: a tool calls `ledger.happened("letter")` where it would print a
    letter, or
    `ledger.happened("payment", key=ctx.idempotency_key)` where it would call a bank that deduplicates by that key.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: list[ToolRun] = []
        self._effects: list[Happening] = []

    def clear(self) -> None:
        """Forget all runs and effects."""
        with self._lock:
            self._runs, self._effects = [], []

    def happened(self, what: str, *, key: str = "") -> bool:
        """Report an effect.

        Args:
            what: Name of the effect, for messages and for `count`.
            key: Key by which the receiver deduplicates; "" for an effect that happens every time.
        Returns:
            False when this effect was reported with this key before, so nothing happened.
        """
        with self._lock:
            is_new = not key or not any((each.what, each.key) == (what, key) for each in self._effects)
            self._effects.append(Happening(what, key, _running.get()))
        return is_new

    def count(self, what: str | None = None, *, key: str | None = None) -> int:
        """Count effects, once per key; None means any. A tool's `lookup` may call it."""
        return len(select_distinct([e for e in self.told if what in (None, e.what) and key in (None, e.key)]))

    @property
    def runs(self) -> tuple[ToolRun, ...]:
        """Runs of wrapped tools, in order."""
        with self._lock:
            return tuple(self._runs)

    @property
    def told(self) -> tuple[Happening, ...]:
        """Everything reported with `happened`, repetitions under a known key included, in order."""
        with self._lock:
            return tuple(self._effects)

    def runs_by_key(self) -> dict[str, int]:
        """Count the runs by idempotency key."""
        counts: dict[str, int] = {}
        for run in self.runs:
            counts[run.key] = counts.get(run.key, 0) + 1
        return counts

    def effects_by_key(self) -> dict[str, int]:
        """Count the distinct effects of each call by idempotency key."""
        caused: dict[str, list[Happening]] = {}
        for each in self.told:
            if each.run is not None:
                caused.setdefault(each.run.key, []).append(each)
        return {key: len(select_distinct(effects)) for key, effects in caused.items()}

    def wrap(self, tool: Tool) -> Tool:
        """Make a tool that is the same to the model and to the engine, and whose runs are counted."""
        if not isinstance(tool, FunctionTool):
            return cast("Tool", _CountedTool(tool, self))
        plain = cast("FunctionTool[..., Any]", tool)
        function = self._count_async(plain) if plain.is_async else self._count_sync(plain)
        return replace(plain, function=function, context_parameter=plain.context_parameter or _OWN_CONTEXT)

    def _count_sync(self, tool: FunctionTool[..., Any]) -> Any:
        @functools.wraps(tool.function)
        def run(*args: Any, **given: Any) -> Any:
            with self._run(tool, given):
                return tool.function(*args, **given)

        return run

    def _count_async(self, tool: FunctionTool[..., Any]) -> Any:
        @functools.wraps(tool.function)
        async def run(*args: Any, **given: Any) -> Any:
            with self._run(tool, given):
                return await tool.function(*args, **given)

        return run

    @contextmanager
    def _run(self, tool: FunctionTool[..., Any], given: dict[str, Any]) -> Generator[None]:
        context = given.get(tool.context_parameter) if tool.context_parameter else given.pop(_OWN_CONTEXT, None)
        if not isinstance(context, ToolContext):  # called by hand, as a function
            yield
            return
        with self.counting(tool, context):
            yield

    @contextmanager
    def counting(self, tool: Tool, context: ToolContext) -> Generator[None]:
        """Count a run of a tool."""
        ref = (context.execution_id, context.step, context.index)
        run = ToolRun(tool.name, tool.effect, *ref, key=context.idempotency_key)
        with self._lock:
            self._runs.append(run)
        token = _running.set(run)
        try:
            yield
            run.returned = True
        finally:
            _running.reset(token)

    def problems(self) -> list[str]:
        """Describe what a crash must never cause, and did: repeated effects and runs."""
        calls: dict[tuple[str, int, int], list[ToolRun]] = {}
        for run in self.runs:
            calls.setdefault(run.call, []).append(run)
        found: list[str] = []
        for runs in calls.values():
            found += _find_repeated_runs(runs) + self._find_repeated_effects(runs)
        return found

    def _find_repeated_effects(self, runs: list[ToolRun]) -> list[str]:
        """Compare the effects of all attempts at a call with those of a single attempt."""
        told = [each for each in self.told if each.run in runs]
        found: list[str] = []
        for what in dict.fromkeys(each.what for each in told):
            mine = [each for each in told if each.what == what]
            happened = len(select_distinct(mine))
            alone = max(len(select_distinct([each for each in mine if each.run is run])) for run in runs)
            if happened > alone:
                found.append(f"{runs[0]}: the effect {what!r} happened {happened} times; {_advise(runs[0])}")
        return found


class CountedToolSet(ToolSet):
    """The tools of an agent, whose calls a ledger counts; those too that only a run or an answer knows."""

    __slots__ = ("_ledger", "_tools")

    def __init__(self, tools: ToolSet, ledger: EffectLedger) -> None:
        self._tools, self._ledger = tools, ledger
        super().__init__(ledger.wrap(tool) for tool in tools)

    def get(self, name: str) -> Tool | None:
        """See `ToolSet.get`."""
        counted = super().get(name)
        plain = self._tools.get(name) if counted is None else None
        return counted if plain is None else self._ledger.wrap(plain)

    def of_answer(self, response: InferenceResponse) -> ToolSet:
        """See `ToolSet.of_answer`."""
        tools = self._tools.of_answer(response)
        return self if tools is self._tools else CountedToolSet(tools, self._ledger)


class _CountedTool:
    """A tool of any kind whose calls the ledger counts."""

    def __init__(self, tool: Tool, ledger: EffectLedger) -> None:
        self._tool = tool
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tool, name)

    def call(self, ctx: ToolContext, bound: Mapping[str, Any]) -> Any:
        if self._tool.is_async:
            return self._call_async(ctx, bound)
        with self._ledger.counting(self._tool, ctx):
            return self._tool.call(ctx, bound)

    async def _call_async(self, ctx: ToolContext, bound: Mapping[str, Any]) -> Any:
        with self._ledger.counting(self._tool, ctx):
            return await self._tool.call(ctx, bound)


def select_distinct(effects: list[Happening]) -> list[Happening]:
    """Select the effects that really happened: of those with the same key, the first."""
    keyed: dict[tuple[str, str], Happening] = {}
    for each in effects:
        if each.key:
            keyed.setdefault((each.what, each.key), each)
    return [each for each in effects if not each.key or keyed[each.what, each.key] is each]


def _find_repeated_runs(runs: list[ToolRun]) -> list[str]:
    first = runs[0]
    if first.effect is Effect.UNSAFE and len(runs) > 1:
        return [f"{first}: ran {len(runs)} times; an unsafe tool never runs again"]
    if first.effect is Effect.LOOKUP and sum(run.returned for run in runs) > 1:
        return [f"{first}: ran to its end {len(runs)} times; its lookup did not find what had happened"]
    if len({run.key for run in runs}) > 1:
        return [f"{first}: was called under several idempotency keys"]
    return []


def _advise(run: ToolRun) -> str:
    if run.effect is Effect.KEYED:
        return "hand ctx.idempotency_key to the service that deduplicates, the same in every attempt"
    if run.effect is Effect.LOOKUP:
        return "its lookup has to find an effect that happened"
    return "such a tool is not pure: declare it keyed, lookup or unsafe"
