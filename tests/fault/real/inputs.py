"""Inputs by hypothesis at four borders: what is stored, what a model answers, what tools get and give, what is submitted.

Every example is judged and none ends the run, so that one finding does not hide the next: a violation names its example
and the seed. Extreme values are drawn again and again, and counted where they are drawn.
"""

from __future__ import annotations

import _thread
import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import json
import logging
import reprlib
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import hypothesis
import pydantic
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

import celery_agents
from celery_agents import AgentClient, ExecutionBudget
from celery_agents.config.settings import Settings
from celery_agents.worker.agent import Agent, AgentRegistry
from celery_agents.worker.concurrency.tool_threads import ToolThreads
from celery_agents.worker.drivers import FunctionDriver, InferenceRequest, PydanticAIDriver
from celery_agents.worker.drivers.answers import read_response
from celery_agents.worker.drivers.pydantic_ai.answers import Answer as ProviderAnswer
from celery_agents.worker.engine import (
    Done,
    EngineServices,
    EventLoopThread,
    FirstExecution,
    LeaseKeeper,
    Outcome,
    Parked,
    StepRunner,
    first_state,
    operation_transition,
    retry_transition,
    stop_transition,
)
from celery_agents.worker.engine.run import moment
from celery_agents.worker.errors import (
    CeleryAgentsError,
    SessionNotFound,
    StateUnreadable,
    StoreFull,
    StoreUnavailable,
    UnusableAnswer,
)
from celery_agents.worker.state import (
    AgentState,
    FinishReason,
    FrozenDict,
    InferenceResponse,
    InferenceUsage,
    LLMConfig,
    Message,
    ToolCall,
    freeze,
)
from celery_agents.worker.store import (
    InboxKind,
    NextState,
    Operation,
    StepRef,
    Store,
    memory_store,
    redis_store,
)
from celery_agents.worker.store.database import Command
from celery_agents.worker.store.keys import SessionKeys
from celery_agents.worker.tools import StopExecution, tool

from support.redis_server import RedisServer
from support.verdict import Verdict

# Hypothesis remembers every example of a run; a run of this size remembers little.
_AT_ONCE: Final = 2_000
_SLOW_SECONDS: Final = 20.0
_HANG_SECONDS: Final = 60.0
_PACKAGE: Final = Path(celery_agents.__file__).parent
_HUGE_CHARS: Final = 10 * 1024 * 1024
_DEPTH: Final = 100_000
_SHARES: Final = {
    "state": 0.42, "state_on_redis": 0.03, "control": 0.23, "control_on_redis": 0.02, "answer": 0.12, "tool": 0.08,
    "submit": 0.08, "notify": 0.02,
}  # fmt: skip


def everything(directory: Path, examples: int, seed: int) -> Verdict:
    """So many examples in all, divided among the borders."""
    verdict = Verdict()
    for name, share in _SHARES.items():
        verdict.add(BORDERS[name](directory / name, max(1, round(examples * share)), seed))
    return verdict


# --- what is drawn ----------------------------------------------------------------------------------------------------


def _deep(make: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(_DEPTH):
        value = make(value)
    return value


# By name: the value, and the bytes that somebody would write for it.
_EXTREMES: Final[Mapping[str, tuple[tuple[Callable[[], Any], ...], tuple[Callable[[], bytes], ...]]]] = {
    "nan": ((lambda: float("nan"),), (lambda: b"NaN",)),
    "infinity": ((lambda: float("inf"), lambda: float("-inf")), (lambda: b"-Infinity", lambda: b"1e999")),
    "huge_int": ((lambda: 10**5000, lambda: -(10**5000)), (lambda: b"1" + b"0" * 5000, lambda: b"-1" + b"0" * 5000)),
    "large_int": ((lambda: 2**63, lambda: 2**63 - 1), (lambda: b"9223372036854775808", lambda: b"9223372036854775807")),
    "surrogate": ((lambda: "half \ud800 a pair",), (lambda: rb'"\ud800"', lambda: b'"\xed\xa0\x80"')),
    "nul": ((lambda: "NUL \0",), (lambda: rb'"\u0000"', lambda: b"\x00")),
    "deep": (
        (lambda: _deep(lambda inner: [inner]), lambda: _deep(lambda inner: {"a": inner})),
        (
            lambda: b"[" * _DEPTH + b"]" * _DEPTH,
            lambda: b'{"a":' * _DEPTH + b"1" + b"}" * _DEPTH,
            lambda: b"[" * _DEPTH,
        ),
    ),
    "huge_text": ((lambda: "x" * _HUGE_CHARS,), (lambda: b'"' + b"x" * _HUGE_CHARS + b'"',)),
}
# What is large takes long, and comes in fewer examples.
_OFTEN: Final = tuple(name for name in _EXTREMES for _ in range({"huge_text": 1, "deep": 5}.get(name, 12)))

WANTED: Final = (
    *(f"extreme_{name}" for name in _EXTREMES),
    *(f"examples_{name}" for name in _SHARES),
    *("damaged_head", "damaged_message", "damaged_step", "state_Parked", "state_Done", "job_failed", "job_completed"),
    *("call_ok", "call_error", "submit_accepted", "submit_refused"),
)
"""Counts without which a run has shown nothing."""


@functools.cache
def _made(name: str, kind: int, which: int) -> Any:
    return _EXTREMES[name][kind][which]()


_scalars: Final = (
    st.sampled_from(
        (None, True, False, 0, 1, -1, 0.0, -0.0, 1.5, 1e308, 5e-324, "", "a", "1", "\n", "ä", "🦊", "\u202e")
    )
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
)
_names: Final = st.sampled_from(("", "a", "id", "content", "0", "ä", "\0", "__class__"))
# Flat: what is nested deeply is among the extremes, and drawing trees takes longer than judging them.
json_values: Final = (
    _scalars | _scalars | st.lists(_scalars, max_size=3) | st.dictionaries(_names, _scalars | st.just([{}]), max_size=3)
)


class Material:
    """Strategies of one run, which count the extremes they give."""

    def __init__(self, verdict: Verdict) -> None:
        self._counts = verdict.counts
        self._damaged: dict[bytes, st.SearchStrategy[bytes]] = {}
        names = st.sampled_from(_OFTEN)
        self.extremes = st.tuples(names, st.integers(0, 5)).map(lambda drawn: self._extreme(0, *drawn))
        self.raw_extremes = st.tuples(names, st.integers(0, 5)).map(lambda drawn: self._extreme(1, *drawn))
        nested = self.extremes.flatmap(lambda value: st.sampled_from(([value], {"a": value}, [1, {"b": [value]}])))
        keyed = st.sampled_from(({1: 2}, {None: 1}, {"\ud800": 1}, {"\0": 1}, {"": ""}))
        self.json = json_values | self.extremes | nested
        self.values = json_values | self.extremes | nested | keyed | self.objects()
        self.raw = (
            st.binary(max_size=60)
            | json_values.map(_as_json)
            | self.raw_extremes
            | self.raw_extremes.map(lambda raw: b'{"content": ' + raw + b"}")
        )

    def _extreme(self, kind: int, name: str, which: int) -> Any:
        self._counts[f"extreme_{name}"] += 1
        return _made(name, kind, which % len(_EXTREMES[name][kind]))

    def objects(self) -> st.SearchStrategy[Any]:
        """What Python can hold and JSON cannot."""
        holding = self.extremes.flatmap(
            lambda value: st.sampled_from((_Pair(value, 1), _Model(held=value), (value,), _Told(value)))
        )
        return st.sampled_from(_OBJECTS).map(lambda make: make()) | holding

    def damaged(self, original: bytes) -> st.SearchStrategy[bytes]:
        """The bytes with something wrong with them."""
        if original not in self._damaged:  # making a strategy takes longer than drawing from it
            self._damaged[original] = self._damages(original)
        return self._damaged[original]

    def _damages(self, original: bytes) -> st.SearchStrategy[bytes]:
        return st.one_of(
            st.tuples(st.integers(0, 2**20), st.integers(1, 255)).map(lambda drawn: _flipped(original, *drawn)),
            st.integers(0, 2**20).map(lambda place: original[: place % (len(original) + 1)]),
            st.integers(0, 2**20).map(lambda place: original + original[place % (len(original) + 1) :]),
            st.tuples(st.integers(0, 2**20), self.raw_extremes | st.binary(max_size=4)).map(
                lambda drawn: _spliced(original, *drawn)
            ),
            self.raw,
            self._changed(original),
            self._changed(original),
            self._changed(original),
        )

    def _changed(self, original: bytes) -> st.SearchStrategy[bytes]:
        """Valid JSON of the same shape, with another value, another key or a value less at one place."""
        written = json_values.map(_as_json) | self.raw_extremes
        drawn = st.tuples(st.integers(0, 2**20), st.sampled_from(("value", "value", "value", "key", "drop")), written)
        return drawn.map(lambda each: _replaced(original, *each))


def _as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _flipped(data: bytes, place: int, mask: int) -> bytes:
    if not data:
        return bytes([mask])
    place %= len(data)
    return data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :]


def _spliced(data: bytes, place: int, more: bytes) -> bytes:
    place %= len(data) + 1
    return data[:place] + more + data[place:]


_MARK: Final = "@here@"


def _replaced(original: bytes, place: int, how: str, written: bytes) -> bytes:
    try:
        tree = json.loads(original)
    except ValueError:
        return written  # a plain text, such as an id or a number
    places = list(_places(tree))
    if not places:
        return written
    holder, key = places[place % len(places)]
    if how == "value":
        holder[key] = _MARK
    elif how == "drop":
        del holder[key]
    elif isinstance(holder, dict):
        holder[f"{key}{_MARK}"] = holder.pop(key)
    else:
        holder[key] = [holder[key]]
    return _as_json(tree).replace(b'"' + _MARK.encode() + b'"', written)


def _places(value: Any) -> Generator[tuple[Any, Any]]:
    """Every place in a JSON value that something stands at: what holds it, and where."""
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value)
    for key, inner in list(pairs):
        yield value, key
        yield from _places(inner)


@dataclasses.dataclass(frozen=True)
class _Pair:
    one: Any
    other: Any


class _Model(pydantic.BaseModel):
    held: Any = None


class _Colour(enum.Enum):
    RED = float("nan")


class _Told(Exception):
    """Raised by a tool, not returned."""


class _Hostile:
    """An object all of whose answers are errors."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__

    def __iter__(self) -> Any:
        raise RuntimeError("no items")

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __bool__(self) -> bool:
        raise RuntimeError("neither")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not to be compared")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")


class _HostileMapping(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise RuntimeError(key)

    def __iter__(self) -> Any:
        return iter(("a", "b"))

    def __len__(self) -> int:
        return 2


class _Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class _Text(str):
    __slots__ = ()

    def encode(self, *_: Any, **__: Any) -> bytes:
        raise RuntimeError("no bytes")


def _cycle() -> Any:
    value: dict[str, Any] = {}
    value["self"] = [value]
    return value


_OBJECTS: Final[Sequence[Callable[[], Any]]] = (
    object, _Hostile, _HostileMapping, _Wordless, _cycle, lambda: _Text("text"), lambda: b"\xff", lambda: bytearray(b"a"),
    lambda: memoryview(b"a"), lambda: {1, 2}, lambda: frozenset({"\ud800"}), lambda: (i for i in "ab"), lambda: range(3),
    lambda: len, lambda: _Colour.RED, lambda: _Colour, lambda: _Pair, lambda: _Model(), lambda: _Pair(_cycle(), 1),
    lambda: decimal.Decimal("NaN"), lambda: decimal.Decimal("sNaN"), lambda: decimal.Decimal("1e100000"),
    lambda: dt.datetime.max.replace(tzinfo=dt.UTC), lambda: dt.timedelta.max, lambda: uuid.UUID(int=0),
    lambda: complex(1, float("nan")), lambda: Path("a\0b"), lambda: {(1, 2): 3}, lambda: {1: 2, "1": 3},
    lambda: {float("nan"): 1}, lambda: {_Colour.RED: 1}, lambda: ..., lambda: NotImplemented, lambda: json,
    lambda: ValueError("half \ud800"), lambda: StopIteration("a"), lambda: RecursionError(), lambda: SystemExit("x"),
    lambda: GeneratorExit(), lambda: TimeoutError(), lambda: ExceptionGroup("a", [_Wordless()]),
    lambda: StopExecution("enough", result=_cycle()), lambda: StopExecution(result=10**5000),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), lambda: OSError(5, "x" * 100_000), lambda: KeyError(b"\xff"),
)  # fmt: skip


class _Short(reprlib.Repr):
    """A repr that always comes to an end and is never long."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxdict, self.maxlist = 4, 90, 90, 6, 6

    def repr1(self, x: Any, level: int) -> str:
        try:
            return super().repr1(x, level)
        except Exception as error:
            return f"<{type(x).__name__}: {type(error).__name__}>"

    def repr_int(self, x: int, level: int) -> str:
        return f"<{x.bit_length()} bits>" if x.bit_length() > 200 else repr(x)

    def repr_str(self, x: str, level: int) -> str:
        return super().repr_str(x[:200], level) + (f" of {len(x)}" if len(x) > 200 else "")

    def repr_bytes(self, x: bytes, level: int) -> str:
        return repr(x[:150]) + (f" of {len(x)}" if len(x) > 150 else "")


_short: Final = _Short().repr


# --- how examples are run ---------------------------------------------------------------------------------------------


class Broken(AssertionError):
    """An example did what must not happen."""


def expect(holds: bool, text: str) -> None:
    """Refuse an example."""
    if not holds:
        raise Broken(text)


class Watchdog:
    """Ends an example that hangs, in the main thread of this process."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @contextlib.contextmanager
    def example(self) -> Generator[None]:
        """One example; it may take a while, and no longer."""
        began = self._began = time.monotonic()
        try:
            yield
        except KeyboardInterrupt:
            if time.monotonic() - began < _HANG_SECONDS:
                raise
            raise Broken(f"it hung for {_HANG_SECONDS:g} s") from None
        finally:
            self._began = None
        took = time.monotonic() - began
        expect(took < _SLOW_SECONDS, f"it took {took:.1f} s")

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            began = self._began
            if began is not None and time.monotonic() - began > _HANG_SECONDS:
                self._began = None
                _thread.interrupt_main()


def _run(
    verdict: Verdict,
    border: str,
    examples: int,
    seed: int,
    strategy: st.SearchStrategy[Any],
    judge: Callable[[Any], None],
) -> None:
    """Judge examples. What is found twice at the same place is told once, and counted."""
    seen: set[str] = set()

    def one(example: Any) -> None:
        verdict.counts[f"examples_{border}"] += 1
        try:
            with watchdog.example():
                judge(example)
        except Exception as error:
            place, said = _place(error), _short(str(error))
            verdict.counts[f"broken_{border}"] += 1
            if place not in seen:
                seen.add(place)
                verdict.expect(False, border, f"{said}, {place}; example {_short(example)}; seed {seed}")

    with _quiet(), Watchdog() as watchdog:
        for number, start in enumerate(range(0, examples, _AT_ONCE)):
            count = min(_AT_ONCE, examples - start)
            settings = hypothesis.settings(
                max_examples=count, database=None, deadline=None, phases=(Phase.generate,), derandomize=False,
                suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            hypothesis.seed(f"{seed}.{border}.{number}")(settings(hypothesis.given(strategy)(one)))()


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Without the log, in which each example would have its line."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _place(error: Exception) -> str:
    """What was raised, and where in the package; or what was not as it should be."""
    if isinstance(error, Broken):
        return str(error)
    frames = [each for each in traceback.extract_tb(error.__traceback__) if _is_product(Path(each.filename))]
    at = " < ".join(f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in reversed(frames[-3:]))
    return f"{type(error).__name__} at {at}"


def _is_product(file: Path) -> bool:
    return file.is_relative_to(_PACKAGE) and not file.is_relative_to(_PACKAGE / "tests")


class Worker:
    """One engine on a store, in this process."""

    def __init__(self, store: Store, settings: Settings, *agents: Agent) -> None:
        self.store = store
        self._settings = settings
        self._loop = EventLoopThread()
        self._keeper = LeaseKeeper(store, settings)
        threads = ToolThreads.of(settings)
        services = EngineServices(store=store, settings=settings, keeper=self._keeper, loop=self._loop, threads=threads)
        self.runner = StepRunner(services, AgentRegistry(agents), worker="worker")

    def close(self) -> None:
        self._keeper.close()
        self._loop.close()

    def submit(self, session_id: str, agent: str) -> StepRef:
        """A new session, and its first step."""

        def transition(now_ms: int) -> NextState:
            now = moment(now_ms)
            state = AgentState.fresh(metadata=FrozenDict(a=1), now=now)
            return first_state(state, Message.user("hello"), FirstExecution(f"{session_id}-e", f"{session_id}-o"), now)

        self.store.sessions.submit(session_id, agent, session_id, transition)
        return StepRef(session_id, f"{session_id}-e", 1)

    def run(self, ref: StepRef, limit: int = 8) -> list[Outcome]:
        """Run a step and those that follow, as long as they are committed."""
        outcomes: list[Outcome] = []
        following: StepRef | None = ref
        while following is not None and len(outcomes) < limit:
            outcomes.append(self.runner.run_step(following.session_id, following.execution_id, following.step))
            last = outcomes[-1]
            following = last.next if isinstance(last, Done) else None
        return outcomes


def _settings(**more: Any) -> Settings:
    """Leases that end soon, and no pause between attempts."""
    quick = {"retry_delay_seconds": 0.0001, "retry_delay_max_seconds": 0.0002, "driver_attempts": 2}
    return Settings.build(**{**quick, "lease_seconds": 1.0, "lease_renew_seconds": 0.25, "steps_per_task": 1, **more})


# --- stored state -----------------------------------------------------------------------------------------------------


@tool(effect="keyed")
def noted(work: str) -> str:
    """Have an effect that may be had again."""
    return work


@tool(effect="unsafe")
def once(work: str) -> str:
    """Have an effect that may not."""
    return work


def _worked(state: AgentState) -> Any:
    assert state.execution is not None
    number = state.execution.step_count
    if number >= 3:
        return "done"
    return [ToolCall(id=f"a{number}", name="noted", args=FrozenDict(work="a")),
            ToolCall(id=f"b{number}", name="once", args=FrozenDict(work="b"))]  # fmt: skip


_at_work: Final = Agent("at-work", driver=_worked, tools=(noted, once), step_timeout=30)


@dataclasses.dataclass(frozen=True)
class Victim:
    """A session as it is stored, to be put back and damaged again and again.

    Attributes:
        ref: The step that is due, or the last one.
        parts: By key: the fields of a hash, or the items of a list.
    """

    ref: StepRef
    keys: SessionKeys
    parts: Mapping[str, Mapping[bytes, bytes] | tuple[bytes, ...]]

    def named(self, key: str) -> str:
        """What a key holds, in a word."""
        if key == self.keys.session:
            return "session"
        return {"ctl": "ctl", "inbox": "inbox", "m": "message", "x": "step", "j": "journal"}[
            key.removeprefix(self.keys.session + ":").partition(":")[0]
        ]

    def restoring(self, now_ms: int) -> list[Command]:
        """Commands that put it back as it was."""
        commands: list[Command] = [("DEL", *self.parts)]
        for key, part in self.parts.items():
            if isinstance(part, tuple):
                commands += [("RPUSH", key, *part)] if part else []
            elif part:
                commands.append(("HSET", key, *(word for pair in part.items() for word in pair)))
        return [*commands, ("ZADD", self.keys.shard.due, now_ms, self.keys.session_id)]


@dataclasses.dataclass(frozen=True)
class Damage:
    """What is wrong with one part: the commands that make it so."""

    part: str
    what: str
    commands: tuple[Command, ...]

    def __repr__(self) -> str:
        return f"{self.part}: {self.what} {_short(self.commands[-1][-1])}"


@dataclasses.dataclass(frozen=True)
class Attack:
    """A damaged session, and what is then done with it."""

    victim: Victim
    damages: tuple[Damage, ...]
    action: str
    cold: bool

    def __repr__(self) -> str:
        session = self.victim.keys.session_id
        return f"{session} {'' if self.cold else 'held '}{self.action} after {list(self.damages)!r:.700}"


_STATE: Final = ("head", "message", "step")
_CONTROL: Final = ("session", "ctl", "journal", "inbox")


def state(directory: Path, examples: int, seed: int) -> Verdict:
    """Heads, messages and steps of sessions in memory, damaged."""
    del directory
    settings = _settings()
    return _attacked(memory_store(settings), settings, examples, seed, "state", _STATE)


def state_on_redis(directory: Path, examples: int, seed: int) -> Verdict:
    """The same on a Redis."""
    with RedisServer(directory) as server:
        settings = _settings(redis_url=server.url())
        store = redis_store(settings, name="inputs")
        return _attacked(store, settings, examples, seed, "state_on_redis", _STATE)


def control(directory: Path, examples: int, seed: int) -> Verdict:
    """What is stored beside the state, damaged together with it: control fields, journals, inboxes, whole keys."""
    del directory
    settings = _settings()
    return _attacked(memory_store(settings), settings, examples, seed, "control", _STATE + _CONTROL)


def control_on_redis(directory: Path, examples: int, seed: int) -> Verdict:
    """The same on a Redis."""
    with RedisServer(directory) as server:
        settings = _settings(redis_url=server.url())
        store = redis_store(settings, name="inputs")
        return _attacked(store, settings, examples, seed, "control_on_redis", _STATE + _CONTROL)


def _attacked(store: Store, settings: Settings, examples: int, seed: int, border: str, parts: Sequence[str]) -> Verdict:
    verdict = Verdict()
    material = Material(verdict)
    worker = Worker(store, settings, _at_work)
    try:
        victims = _victims(worker)
        neighbour = _dumped(store, worker.submit("neighbour", "at-work"))
        siege = _Siege(worker, verdict, neighbour, contradictions="ctl" in parts)
        _run(verdict, border, examples, seed, _attacks(material, victims, parts), siege.judge)
        expect([type(each) for each in worker.run(siege.neighbour.ref)] == [Done] * 4, "the neighbour goes on")
    except Broken as error:
        verdict.expect(False, border, str(error))
    finally:
        worker.close()
    return verdict


def _victims(worker: Worker) -> list[Victim]:
    """A session that was just submitted, one in the middle of its third step, and one that has ended."""
    store = worker.store
    ended = worker.submit("ended", "at-work")
    worker.run(ended)
    middle = worker.submit("middle", "at-work")
    worker.run(middle, 2)
    middle = dataclasses.replace(middle, step=3)
    claim = _claimed(store, middle)
    answer = InferenceResponse(
        tool_calls=_worked(store.sessions.load("middle").state), finish_reason=FinishReason.TOOL_CALLS
    )
    store.steps.record_failure(claim, 1, b'{"kind": "timeout", "transient": true}')
    store.steps.record_answer(claim, answer.to_json())
    store.steps.begin_calls(claim, {0: 1000, 1: 1000}, claim.now_ms)
    store.steps.record_results(claim, {0: _record_of_a_call(store)})
    for operation in (
        Operation("m1", InboxKind.MESSAGE, {"message": Message.user("more").to_dict(), "budget": {"max_steps": 9}}),
        Operation("m2", InboxKind.METADATA, {"key": "b", "value": [1, {"c": None}]}),
        Operation("m3", InboxKind.SYSTEM_PROMPT, {"prompt": "Be brief."}),
        Operation("m4", InboxKind.MODEL, {"model": LLMConfig(model="a:b").to_dict()}),
    ):
        store.sessions.act("middle", operation, operation_transition)
    store.context.database.transaction("test", [("DEL", store.context.keys("middle").shard.lease(claim.id))])
    fresh = worker.submit("fresh", "at-work")
    return [_dumped(store, ref) for ref in (fresh, middle, middle, dataclasses.replace(ended, step=4))]


def _claimed(store: Store, ref: StepRef) -> Any:
    claimed: Any = store.steps.claim(ref, "c1a1", "dead-worker", alone=False)
    return claimed.claim


def _record_of_a_call(store: Store) -> bytes:
    """What the journal holds of a call that has ended, taken from one that did."""
    execution = store.sessions.load("middle").state.execution
    assert execution is not None
    (first, _) = execution.step_executions[0].step.tool_executions
    return _as_json({"execution": json.loads(first.to_json())})


def _dumped(store: Store, ref: StepRef) -> Victim:
    keys, ask = store.context.keys(ref.session_id), store.context.database.pipeline
    journal = keys.journal(ref.execution_id, ref.step)
    hashes = (keys.session, keys.ctl, journal)
    lists = (keys.section("messages", 0), keys.steps(ref.execution_id), keys.inbox)
    found = ask("test", [*(("HGETALL", key) for key in hashes), *(("LRANGE", key, 0, -1) for key in lists)])
    parts: dict[str, Any] = {
        key: dict(zip(flat[::2], flat[1::2], strict=True)) for key, flat in zip(hashes, found, strict=False)
    }
    parts |= {key: tuple(items) for key, items in zip(lists, found[3:], strict=True)}
    return Victim(ref, keys, parts)


def _attacks(material: Material, victims: Sequence[Victim], parts: Sequence[str]) -> st.SearchStrategy[Attack]:
    actions = st.sampled_from(("run", "run", "run", "send", "stop", "retry"))
    return st.one_of(
        *(
            st.builds(
                Attack,
                st.just(victim),
                st.one_of(st.tuples(damage), st.tuples(damage), st.tuples(damage, damage)),
                actions,
                st.sampled_from((True, True, True, False)),
            )
            for victim, damage in ((each, _damages(material, each, parts)) for each in victims)
        )
    )


def _damages(material: Material, victim: Victim, parts: Sequence[str]) -> st.SearchStrategy[Damage]:
    chosen: list[st.SearchStrategy[Damage]] = []
    for key, part in victim.parts.items():
        name = victim.named(key)
        if name == "session" and isinstance(part, Mapping) and "head" in parts:
            chosen.append(_damages_of_fields(material, "head", key, {b"head": part[b"head"]}))
        if name not in parts:
            continue
        chosen.append(_damages_of_key(material, name, key))
        if isinstance(part, tuple):
            chosen.append(_damages_of_list(material, name, key, part))
        else:
            chosen.append(_damages_of_fields(material, name, key, part))
    return st.one_of(*chosen)


def _damages_of_list(material: Material, part: str, key: str, items: Sequence[bytes]) -> st.SearchStrategy[Damage]:
    def written(at: int, changed: Sequence[bytes], what: str) -> Damage:
        items_now = [*items[:at], *changed, *items[at + 1 :]]
        return Damage(part, f"{what} {at}", (("DEL", key), *((("RPUSH", key, *items_now),) if items_now else ())))

    place = st.integers(0, max(0, len(items) - 1))
    return st.one_of(
        *(
            material.damaged(item).map(lambda raw, at=at: written(at, [raw], "item"))  # type: ignore[misc]
            for at, item in enumerate(items)
        ),
        place.map(lambda at: written(at, [], "lost")),
        place.map(lambda at: written(at, 2 * items[at : at + 1], "doubled")),
        material.raw.map(lambda raw: written(len(items), [raw], "one more")),
    )


_ODD: Final = (b"t9:r", b"t0:s", b"t1:r", b"t:s", b"tx:r", b":s", b":r", b"llm", b"try:x", b"err:x", b"\xff:s", b"t1:s")


def _damages_of_fields(
    material: Material, part: str, key: str, fields: Mapping[bytes, bytes]
) -> st.SearchStrategy[Damage]:
    changed = [
        material.damaged(value).map(
            lambda raw, name=name: Damage(part, f"field {name.decode()}", (("HSET", key, name, raw),))  # type: ignore[misc]
        )
        for name, value in sorted(fields.items())
    ]
    lost = st.sampled_from(sorted(fields) or [b"none"]).map(
        lambda name: Damage(part, f"lost {name.decode()}", (("HDEL", key, name),))
    )
    if part != "journal":
        return st.one_of(*changed, lost)
    added = st.tuples(st.sampled_from(_ODD), material.raw)
    return st.one_of(
        *changed, lost, added.map(lambda pair: Damage(part, f"added {pair[0]!r}", (("HSET", key, *pair),)))
    )


def _damages_of_key(material: Material, part: str, key: str) -> st.SearchStrategy[Damage]:
    return st.one_of(
        st.just(Damage(part, "gone", (("DEL", key),))),
        material.raw.map(lambda raw: Damage(part, "another type", (("DEL", key), ("SET", key, raw)))),
    )


class _Siege:
    """Judges attacks: works, or says which session cannot be read; nobody else is touched."""

    def __init__(self, worker: Worker, verdict: Verdict, neighbour: Victim, *, contradictions: bool) -> None:
        """
        Args:
            contradictions: Run steps of sessions too whose state and control fields tell of different executions.
        """
        self._contradictions = contradictions
        self._worker = worker
        self._store = worker.store
        self._verdict = verdict
        self.neighbour = neighbour

    def judge(self, attack: Attack) -> None:
        """One attack."""
        store, victim = self._store, attack.victim
        session_id = victim.keys.session_id
        store.context.cache.drop(session_id)
        store.context.database.transaction("test", victim.restoring(store.housekeeping.now_ms()))
        if not attack.cold:
            store.sessions.stop(session_id, "another", stop_transition)  # whatever reads it makes it held
        for each in attack.damages:
            with contextlib.suppress(StateUnreadable):  # the damage before it has made the key another type
                store.context.database.transaction("test", each.commands)
            self._verdict.counts[f"damaged_{each.part}"] += 1
        whole = self._loads(session_id)
        self._header(session_id)
        if whole and self._contradicts(victim):
            self._verdict.counts["contradicting"] += 1
            if not self._contradictions:
                return
        if attack.action == "run":
            self._ran(victim, whole)
        else:
            self._acted(attack.action, session_id)
        self._header(session_id)
        expect(_dumped(store, self.neighbour.ref).parts == self.neighbour.parts, "the neighbour was touched")

    def _loads(self, session_id: str) -> bool:
        try:
            self._store.sessions.load(session_id)
        except SessionNotFound:
            return False
        except StateUnreadable as error:
            expect(0 < len(str(error)) < 2000, "it says what cannot be read")
            return False
        return True

    def _contradicts(self, victim: Victim) -> bool:
        execution = self._store.sessions.load(victim.keys.session_id).state.execution
        return execution is None or execution.execution_id != victim.ref.execution_id

    def _header(self, session_id: str) -> None:
        with contextlib.suppress(SessionNotFound):
            expect(self._store.sessions.header(session_id).session_id == session_id, "the header is another session's")
        listed, _ = self._store.sessions.headers(limit=10)
        expect("neighbour" in {header.session_id for header in listed}, "the listing lacks the neighbour")

    def _ran(self, victim: Victim, whole: bool) -> None:
        counts = self._verdict.counts
        try:
            (outcome,) = self._worker.run(victim.ref, 1)
        except StateUnreadable:
            counts["state_refused"] += 1
            return
        counts[f"state_{type(outcome).__name__}"] += 1
        if isinstance(outcome, Parked):
            expect(bool(outcome.reason), "it is parked without a reason")
        if isinstance(outcome, Done) and whole:
            self._store.context.cache.drop(victim.keys.session_id)
            expect(self._loads(victim.keys.session_id), "it could be read, and after a step it cannot")

    def _acted(self, action: str, session_id: str) -> None:
        store = self._store
        message = Operation(uuid.uuid4().hex, InboxKind.MESSAGE, {"message": Message.user("more").to_dict()})
        calls: Mapping[str, Callable[[], object]] = {
            "send": lambda: store.sessions.act(session_id, message, operation_transition),
            "stop": lambda: store.sessions.stop(session_id, None, stop_transition),
            "retry": lambda: store.sessions.retry(session_id, retry_transition(None)),
        }
        try:
            calls[action]()
        except (StoreUnavailable, StoreFull):
            raise
        except CeleryAgentsError as error:
            self._verdict.counts[f"state_{action}_refused"] += 1
            expect(bool(str(error)), "an error without a word")


# --- the model's answer -----------------------------------------------------------------------------------------------


class _Given:
    """A driver whose first answer is given, and whose others are good."""

    name = "given"

    def __init__(self, parse: Callable[[bytes], InferenceResponse], *, is_async: bool) -> None:
        self.is_async = is_async
        self._parse = parse
        self.raw: Any = b""
        self.good = b""

    def infer(self, request: InferenceRequest) -> Any:
        raw = self.raw if request.step == 1 else self.good
        return self._later(raw) if self.is_async else raw

    async def _later(self, raw: bytes) -> bytes:
        return raw

    def parse(self, raw: bytes) -> InferenceResponse:
        return self._parse(raw)

    def check(self) -> None:
        """Nothing can be missing."""

    def knows_price(self, settings: LLMConfig | None = None) -> bool:
        del settings
        return True

    async def aclose(self) -> None:
        """Nothing is open."""


_USAGE: Final = InferenceUsage(input=2**63 - 1, output=2**63 - 1, requests=1)
_ANSWERS: Final = tuple(
    response.to_json()
    for response in (
        InferenceResponse(
            content="done", usage=InferenceUsage(input=10, output=5), cost=0.01, model="m", request_id="r"
        ),
        InferenceResponse(content="done", usage=_USAGE, cost=1e308, finish_reason=FinishReason.LENGTH, thinking="so"),
        InferenceResponse(
            content="first",
            tool_calls=(
                ToolCall(id="a", name="noted", args=FrozenDict(work="a")),
                ToolCall(id="b", name="once", args=FrozenDict(work="b")),
                ToolCall(id="c", name="no such tool", args="no JSON"),
            ),
            usage=_USAGE,
            cost=1e308,
            finish_reason=FinishReason.TOOL_CALLS,
        ),
        InferenceResponse(
            content="{}", output=FrozenDict(a=[1, {"b": None}]), provider=FrozenDict(kind="x", items=[1])
        ),
    )
)


def _provider_answers() -> tuple[bytes, ...]:
    """As the driver of pydantic-ai journals them."""
    from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart
    from pydantic_ai.usage import RequestUsage

    usage = RequestUsage(input_tokens=100, cache_read_tokens=40, output_tokens=30)
    said: list[list[Any]] = [
        [TextPart("done")],
        [ThinkingPart("so", signature="s"), ToolCallPart("noted", '{"work": "a"}', "c")],
    ]
    return tuple(
        ProviderAnswer(ModelResponse(parts=parts, usage=usage, model_name="m"), "openai:m", 0.5, None).to_raw()
        for parts in said
    )


def _functions(material: Material) -> st.SearchStrategy[Any]:
    """What a plain function may return in the place of a model."""
    calls = st.tuples(material.values, material.values).map(lambda drawn: _Lazy(_call_of, *drawn))
    responses = st.tuples(
        st.sampled_from(("content", "cost", "output", "thinking", "tool_calls", "provider", "usage", "model")),
        material.values,
    ).map(lambda drawn: _Lazy(_response_of, *drawn))
    raised = st.sampled_from(_OBJECTS).map(lambda make: _Lazy(_raised, make()))
    return material.values | calls | responses | st.lists(material.values, max_size=2) | raised


class _Lazy:
    """Made inside the engine, where its errors belong."""

    def __init__(self, make: Callable[..., Any], *given: Any) -> None:
        self.make = make
        self.given = given

    def __repr__(self) -> str:
        return f"{self.make.__name__}{_short(self.given)}"


def _raised(error: Any) -> Any:
    # After a timeout the step is put off, and its execution does not end.
    if isinstance(error, BaseException) and not isinstance(error, (GeneratorExit, TimeoutError)):
        raise error
    return error


def _call_of(name: Any, args: Any) -> ToolCall:
    return ToolCall(id="c", name=name, args=args)


def _response_of(field: str, value: Any) -> InferenceResponse:
    return InferenceResponse(**{field: value})


def answer(directory: Path, examples: int, seed: int) -> Verdict:
    """What a driver gives: bytes of all kinds, what is no bytes, and what functions return."""
    del directory
    verdict = Verdict()
    material = Material(verdict)
    desk = _Desk(verdict)
    provider = _provider_answers()
    raw = (
        st.sampled_from(_ANSWERS).flatmap(material.damaged) | material.raw | st.sampled_from(_ANSWERS) | material.values
    )
    foreign = st.sampled_from(provider).flatmap(material.damaged) | st.sampled_from(provider) | material.raw
    strategy = st.one_of(
        st.tuples(st.sampled_from(("plain", "plain", "async")), raw),
        st.tuples(st.just("provider"), foreign | _halves(material, provider)),
        st.tuples(st.just("function"), _functions(material)),
    )
    try:
        _run(verdict, "answer", examples, seed, strategy, desk.answered)
    finally:
        desk.close()
    return verdict


def _halves(material: Material, provider: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """One of the two lines damaged, the other whole."""
    head, _, body = provider[1].partition(b"\n")
    return material.damaged(head).map(lambda raw: raw + b"\n" + body) | material.damaged(body).map(
        lambda raw: head + b"\n" + raw
    )


class _Desk:
    """Runs jobs to their end on a store in memory, which is a new one now and then."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._numbers = 0
        self._worker: Worker | None = None
        self._function: Any = None
        self._drivers = {
            "plain": _Given(read_response, is_async=False),
            "async": _Given(read_response, is_async=True),
            "provider": _Given(PydanticAIDriver("openai:m").parse, is_async=False),
        }
        for name, driver in self._drivers.items():
            driver.good = _provider_answers()[0] if name == "provider" else _ANSWERS[0]
        self._agents = [Agent(name, driver=driver, tools=_TOOLS) for name, driver in self._drivers.items()]
        self._agents.append(Agent("function", driver=FunctionDriver(self._returned), tools=_TOOLS))

    def _returned(self, state: AgentState) -> Any:
        assert state.execution is not None
        if state.execution.step_count:
            return "done"
        given = self._function
        return given.make(*given.given) if isinstance(given, _Lazy) else given

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def worker(self) -> Worker:
        """The one to use; its store does not grow for ever."""
        self._numbers += 1
        if self._worker is None or self._numbers % 500 == 0:
            self.close()
            settings = _settings()
            self._worker = Worker(memory_store(settings), settings, *self._agents)
        return self._worker

    def answered(self, example: tuple[str, Any]) -> None:
        """An answer that is judged by what becomes of its execution."""
        kind, given = example
        if kind == "function":
            self._function = given
        else:
            self._drivers[kind].raw = given
            self._read_directly(kind, given)
        worker, ref, failure = self.carried_out(kind)
        journal = worker.store.context.keys(ref.session_id).journal(ref.execution_id, 1)
        (flat,) = worker.store.context.database.pipeline("test", [("HGETALL", journal)])
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        if failure is None:
            expect(kind == "function" or fields.get(b"llm") == given, "the journal has not the answer that was used")
        else:
            expect(any(name.startswith(b"err:") for name in fields), f"the journal lacks the failure, {failure}")
            is_raw = kind != "function" and isinstance(given, bytes)
            expect(not is_raw or failure == "unusable_answer", f"bytes failed as {failure}")

    def _read_directly(self, kind: str, given: Any) -> None:
        if not isinstance(given, bytes):
            return
        try:
            self._drivers[kind].parse(given)
        except UnusableAnswer as error:
            expect(0 < len(str(error)) < 5000, "an error without a word, or with too many")

    def carried_out(self, agent: str) -> tuple[Worker, StepRef, str | None]:
        """Run a job to its end; the kind of failure, None when there was none."""
        worker = self.worker()
        ref = worker.submit(f"s{self._numbers}", agent)
        outcomes = worker.run(ref)
        expect(isinstance(outcomes[-1], Done), f"it ended with {outcomes[-1]!r:.200}")
        record = worker.store.sessions.record(ref.session_id, ref.execution_id)
        assert record is not None, "it has not ended"
        self._verdict.counts[f"job_{record.status}"] += 1
        state = worker.store.sessions.load(ref.session_id).state
        assert state.execution is not None
        expect(state.execution.status.value == record.status, "record and state differ")
        json.dumps(dataclasses.asdict(record), allow_nan=False).encode()
        worker.store.sessions.events(ref.session_id)
        if record.status != "failed":
            return worker, ref, None
        expect(bool(record.errors) and all(record.errors), "it failed without saying why")
        failure = state.execution.errors[-1] if state.execution.errors else None
        return worker, ref, failure.kind if failure is not None else "of a step"

    def called(self, example: tuple[str, bytes | str, bytes | None, Any]) -> None:
        """A call of a tool: its arguments as text or as JSON in the raw answer, and what it returns."""
        name, text, raw, result = example
        _result[:] = [result]
        # A stop that a tool asked for, with a result that cannot be used, is a step that failed.
        allowed = [None, "unusable_answer", *(["of a step"] if isinstance(result, StopExecution) else [])]
        if raw is None:
            self._function = _Lazy(ToolCall.from_text, "c", name, text)
            _, ref, failure = self.carried_out("function")
            allowed.append("InvalidInput")
        else:
            shape = b'{"tool_calls":[{"id":"c","name":"%b","args":%b},{"id":"d","name":"words"}]}'
            self._drivers["plain"].raw = shape % (name.encode(), raw)
            _, ref, failure = self.carried_out("plain")
        expect(failure in allowed, f"a call failed its execution as {failure}")
        if failure is None:
            self._judge_calls(ref)

    def _judge_calls(self, ref: StepRef) -> None:
        assert self._worker is not None
        execution = self._worker.store.sessions.load(ref.session_id).state.execution
        assert execution is not None
        made = execution.step_executions[0].step.tool_executions
        expect(bool(made), "the call is not recorded")
        for each in made:
            self._verdict.counts[f"call_{each.outcome.value}"] += 1
            # An async call's `TimeoutError` without a word is its deadline.
            allowed = ("ok", "error", "unknown" if isinstance(_result[0], TimeoutError) else "")
            expect(each.outcome.value in allowed, f"the call ended as {each.outcome.value}")
            expect(each.outcome.value == "ok" or bool(each.error_message()), "a failure without a word")


# --- tools ------------------------------------------------------------------------------------------------------------

_result: Final[list[Any]] = [None]


def _given() -> Any:
    result = _result[0]
    if isinstance(result, BaseException):
        raise result
    return result


@tool(effect="pure")
def given() -> Any:
    """Return what the example says, or raise it."""
    return _given()


@tool(effect="unsafe")
async def given_async() -> Any:
    """The same on the event loop."""
    return _given()


@tool(effect="keyed")
def whole(value: int = 0, amount: float = 0.0, flag: bool = False) -> list[Any]:
    """Numbers."""
    return [value, amount, flag]


@tool(effect="keyed")
def words(value: str = "", choice: Literal["a", "b"] = "a", many: list[str] | None = None) -> list[Any]:
    """Texts."""
    return [value, choice, many]


@tool(effect="unsafe")
def anything(value: Any = None, table: dict[str, Any] | None = None) -> list[Any]:
    """Anything at all."""
    return [value, table]


@tool(effect="pure")
def typed(
    value: decimal.Decimal | None = None, when: dt.datetime | None = None, lasting: dt.timedelta | None = None,
    name: uuid.UUID | None = None, data: bytes | None = None, model: _Model | None = None,
) -> list[Any]:  # fmt: skip
    """What pydantic reads from JSON."""
    return [value, when, lasting, name, model, data and len(data)]


_TOOLS: Final = (noted, once, given, given_async, whole, words, anything, typed)
_PARAMETERS: Final = (
    "value",
    "amount",
    "flag",
    "choice",
    "many",
    "table",
    "when",
    "lasting",
    "name",
    "data",
    "model",
    "x",
)


def _is_no_exit(result: Any) -> bool:
    """An exit raised on the event loop ends the loop; a test of its own tells of it."""
    return isinstance(result, Exception) or not isinstance(result, BaseException)


def tools(directory: Path, examples: int, seed: int) -> Verdict:
    """Arguments of all kinds, as a model writes them, and results of all kinds."""
    del directory
    verdict = Verdict()
    material = Material(verdict)
    desk = _Desk(verdict)
    written = (
        json_values.map(_as_json) | material.raw_extremes | st.sampled_from((b'"1e5000"', b'"P1D"', b'"2026-01-01"'))
    )
    one = st.tuples(st.sampled_from(_PARAMETERS), written).map(lambda each: b'{"%b":%b}' % (each[0].encode(), each[1]))
    raw = (
        one | material.raw | st.sampled_from((b'{"value":1,"amount":2.5}', b'{"many":["a"]}')).flatmap(material.damaged)
    )
    texts = raw.map(lambda data: data.decode("utf-8", "surrogateescape")) | st.text(max_size=20)
    names = st.sampled_from(tuple(each.name for each in _TOOLS))
    strategy = st.one_of(
        st.tuples(names, texts, st.none(), st.none()),
        st.tuples(names, st.just(""), raw, st.none()),
        st.tuples(st.just("given"), st.just("{}"), st.none() | st.just(b"{}"), material.values),
        st.tuples(st.just("given_async"), st.just("{}"), st.none(), material.values.filter(_is_no_exit)),
    )
    try:
        _run(verdict, "tool", examples, seed, strategy, desk.called)
    finally:
        desk.close()
    return verdict


# --- submit -----------------------------------------------------------------------------------------------------------


def submit(directory: Path, examples: int, seed: int) -> Verdict:
    """Jobs handed to a client: accepted and kept as they are, or refused with a sentence, and then nothing is written."""
    verdict = Verdict()
    material = Material(verdict)
    with RedisServer(directory) as server, server.client() as redis:
        counter = _Counter(AgentClient(settings=Settings.build(redis_url=server.url())), redis, verdict)
        _run(verdict, "submit", examples, seed, _requests(material, _GIVEN), counter.judge)
    return verdict


def notify(directory: Path, examples: int, seed: int) -> Verdict:
    """The same of whom to tell how a job ended."""
    verdict = Verdict()
    material = Material(verdict)
    with RedisServer(directory) as server, server.client() as redis:
        counter = _Counter(AgentClient(settings=Settings.build(redis_url=server.url())), redis, verdict)
        _run(verdict, "notify", examples, seed, _requests(material, _TOLD), counter.judge)
    return verdict


_GIVEN: Final = ("agent", "message", "session_id", "idempotency_key", "budget", "metadata")
_TOLD: Final = ("on_complete", "webhook")


def _requests(material: Material, spoilt: Sequence[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Mostly good, with one or two of these fields of which anything may be expected."""
    text = st.text(min_size=1, max_size=40).map(lambda said: f"a{said}")
    message = text | st.tuples(text, json_values).map(lambda each: _Lazy(_message_of, *each))
    good: Mapping[str, st.SearchStrategy[Any]] = {
        "agent": st.just("a"),
        "message": message,
        "session_id": st.none() | st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True),
        "idempotency_key": st.none() | text,
        "budget": st.none() | st.tuples(st.integers(0, 9), st.floats(0, 1e9)).map(lambda b: _Lazy(_budget_of, *b)),
        "metadata": st.none() | st.dictionaries(st.text(max_size=5), json_values, max_size=3),
        "on_complete": st.none() | st.just("a.task"),
        "webhook": st.none() | st.just("https://example.org/hook"),
    }
    bad: Mapping[str, st.SearchStrategy[Any]] = {
        **dict.fromkeys(good, material.values),
        "message": material.values | st.tuples(material.values, material.values).map(lambda e: _Lazy(_message_of, *e)),
        "budget": material.values | st.tuples(material.values, material.values).map(lambda b: _Lazy(_budget_of, *b)),
        "metadata": material.values | st.dictionaries(st.text(max_size=5), material.values, max_size=2),
        "on_complete": material.values | material.values.map(lambda value: {"task": "a", "args": [value]}),
        "webhook": material.values
        | st.sampled_from(("http://[", "http://a:b@c", "https://\0", "http://h:x/", "HTTP://h")),
    }
    pairs = {frozenset((one, other)) for one in spoilt for other in spoilt}
    spoiled = [
        st.fixed_dictionaries({**good, **{name: bad[name] for name in pair}}) for pair in sorted(pairs, key=sorted)
    ]
    return st.one_of(*(st.fixed_dictionaries(dict(good)) for _ in spoiled[::2]), *spoiled)


def _message_of(content: Any, metadata: Any) -> Message:
    return Message(role="user", content=content, metadata={"a": metadata})  # type: ignore[arg-type]


def _budget_of(max_steps: Any, max_cost: Any) -> ExecutionBudget:
    return ExecutionBudget(max_steps=max_steps, max_cost=max_cost, deadline=dt.datetime(2090, 1, 1, tzinfo=dt.UTC))


class _Counter:
    """Where jobs are handed over."""

    def __init__(self, client: AgentClient, redis: Any, verdict: Verdict) -> None:
        self._client = client
        self._redis = redis
        self._verdict = verdict
        self._accepted = 0
        self._emptied()

    def _emptied(self) -> None:
        self._redis.flushall()
        self._client.store.registry.register("w", {}, {"a": "hash"})  # somebody offers the agent

    def judge(self, request: dict[str, Any]) -> None:
        """One request."""
        before = self._redis.dbsize()
        try:
            made = {name: _unwrapped(value) for name, value in request.items()}
            job = self._client.submit(**made)
        except (StoreUnavailable, StoreFull, RecursionError):
            raise
        except RuntimeError:  # raised by the caller's own object when it was read
            expect(self._redis.dbsize() == before, "something was stored of a job that was not handed over")
            self._verdict.counts["submit_raised"] += 1
            return
        except CeleryAgentsError as error:
            text = str(error)
            text.encode()
            expect(0 < len(text) < 1000, "an error without a word, or with too many")
            expect(self._redis.dbsize() == before, "something was stored of a job that was refused")
            self._verdict.counts["submit_refused"] += 1
            return
        self._verdict.counts["submit_accepted"] += 1
        self._accepted += 1
        self._judge_stored(made, job.session_id)
        self._redis.flushall()
        self._emptied()

    def _judge_stored(self, made: Mapping[str, Any], session_id: str) -> None:
        state = self._client.show(session_id).state
        assert state.execution is not None
        message = made["message"]
        message = message if isinstance(message, Message) else Message.user(message)
        kept = state.messages[0]
        expect(_same((kept.content, kept.metadata), (message.content, message.metadata)), "the message is another")
        expect(_same(state.metadata, freeze(made["metadata"] or {})), "the metadata are others")
        expect(state.execution.budget == (made["budget"] or ExecutionBudget.unlimited()), "the budget is another")
        expect(made["session_id"] in (None, session_id), "the session has another id")


def _unwrapped(value: Any) -> Any:
    return value.make(*value.given) if isinstance(value, _Lazy) else value


def _same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down."""
    return one == other and repr(one) == repr(other)


BORDERS: Final[Mapping[str, Callable[[Path, int, int], Verdict]]] = {
    "state": state,
    "state_on_redis": state_on_redis,
    "control": control,
    "control_on_redis": control_on_redis,
    "answer": answer,
    "tool": tools,
    "submit": submit,
    "notify": notify,
}
