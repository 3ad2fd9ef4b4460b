"""What drivers and tools emit: only for those who follow, together, and never in the way of a step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool, Delta, InferenceRequest, ScriptedDriver
from celery_agents.worker.drivers.answers import raw_answer
from celery_agents.worker.engine.live_writer import AttemptText, LiveWriter, RunText, _pause_after
from celery_agents.worker.errors import DriverError, InvalidInput, StoreFull
from celery_agents.worker.known_secrets import current_matcher
from celery_agents.worker.store import Attempt, Claim, LiveDelta, NewDelta, StepRef, StreamPosition
from celery_agents.worker.tools import ToolContext, tool

from support.engine import Bench, WorkerDied
from support.wait import wait_until

NewBench = Callable[..., Bench]


class Talking(ScriptedDriver):
    """Emits an answer in pieces, and may fail behind them."""

    def __init__(self, *pieces: str, failures: int = 0, dies: int = 0) -> None:
        super().__init__(["".join(pieces)], repeat_last=True)
        self.pieces, self.failures, self.dies = pieces, failures, dies
        self.emits: list[Any] = []

    def infer(self, request: InferenceRequest) -> bytes:
        self.emits.append(request.emit)
        for piece in self.pieces if request.emit else ():
            request.emit(Delta(piece))
        if self.failures:
            self.failures -= 1
            self.wait_for_writer()
            raise DriverError("connection", "it broke", transient=True)
        if self.dies:
            self.dies -= 1
            self.wait_for_writer()
            raise WorkerDied
        return raw_answer("".join(self.pieces), InferenceRequest(request.state, "s", "e", request.step), "talking")

    wait_for_writer: Callable[[], object] = staticmethod(lambda: None)


def watched(bench: Bench) -> str:
    session_id = bench.submit()
    assert bench.store.live.keep_followed(session_id)
    return session_id


def found(bench: Bench, session_id: str) -> list[LiveDelta]:
    entries = bench.store.live.follow({session_id: StreamPosition()}).get(session_id, [])
    return [entry for entry in entries if isinstance(entry, LiveDelta)]


def wait_for_text(bench: Bench, session_id: str, text: str, part: str = "text") -> list[LiveDelta]:
    def read() -> str:
        return "".join(each.text for each in found(bench, session_id) if each.part == part)

    wait_until(lambda: read() == text, f"{text!r} is written")
    return found(bench, session_id)


def test_nobody_is_asked_to_emit_where_nobody_follows(new_bench: NewBench) -> None:
    driver = Talking("one ", "two")
    bench = new_bench(Agent("a", driver=driver))
    session_id = bench.submit()
    bench.run(session_id)
    assert driver.emits == [None]
    assert found(bench, session_id) == []


def test_what_a_driver_emits_is_written_for_those_who_follow(new_bench: NewBench) -> None:
    bench = new_bench(Agent("a", driver=Talking("one ", "two ", "three")))
    session_id = watched(bench)
    bench.run(session_id)
    pieces = wait_for_text(bench, session_id, "one two three")
    assert {(each.step, each.call, each.part) for each in pieces} == {(1, 1, "text")}
    offset = 0
    for each in pieces:
        assert each.offset == offset
        offset += len(each.text)


def test_a_reader_counts_for_a_minute(new_bench: NewBench) -> None:
    driver = Talking("text")
    bench = new_bench(Agent("a", driver=driver))
    session_id = watched(bench)
    bench.clock.go_on(61)
    bench.run(session_id)
    assert driver.emits == [None]


def test_the_text_of_a_failed_call_is_void_and_the_next_one_has_another_number(new_bench: NewBench) -> None:
    driver = Talking("half ", "a text", failures=1)
    bench = new_bench(Agent("a", driver=driver))
    session_id = watched(bench)
    driver.wait_for_writer = lambda: wait_for_text(bench, session_id, "half a text")
    bench.run(session_id)
    pieces = wait_for_text(bench, session_id, "half a text" * 2)
    assert {each.call for each in pieces} == {1, 2}
    (void,) = [each for each in bench.store.sessions.events(session_id) if each.type == "attempt_voided"]
    assert dict(void.data) == {"attempt": pieces[0].attempt, "call": 1, "keeps_answer": False}


def test_the_text_of_a_worker_that_died_is_void(new_bench: NewBench) -> None:
    driver = Talking("half ", "a text", dies=1)
    bench = new_bench(Agent("a", driver=driver))
    session_id = watched(bench)
    driver.wait_for_writer = lambda: wait_for_text(bench, session_id, "half a text")
    bench.worker_died(session_id)
    bench.run(session_id)
    pieces = wait_for_text(bench, session_id, "half a text" * 2)
    (void,) = [each for each in bench.store.sessions.events(session_id) if each.type == "attempt_voided"]
    assert void.data["attempt"] == pieces[0].attempt != pieces[-1].attempt
    assert bench.record(session_id).final_response == "half a text"


# --- tools ------------------------------------------------------------------------------------------------------------


@tool(effect="pure")
def tell(ctx: ToolContext, value: Any) -> str:
    """Emit a value.

    Args:
        value: What.
    """
    ctx.emit(value)
    return "told"


@pytest.mark.parametrize("value", ["progress", {"done": 3, "of": [1, 2]}, [1, None, True], {"ü": "ü" * 5_000}])
def test_what_a_tool_emits_is_its_own_part(new_bench: NewBench, value: Any) -> None:
    def wait_for_it(state: Any) -> str:
        wait_until(lambda: any(each.part == "t0" for each in found(bench, session_id)), "it is written")
        return "done"

    driver = ScriptedDriver([[CallTool("tell", value=value)], wait_for_it])
    bench = new_bench(Agent("a", driver=driver, tools=[tell]))
    session_id = watched(bench)
    bench.run(session_id)
    (piece,) = [each for each in found(bench, session_id) if each.part == "t0"]
    assert (piece.text if isinstance(value, str) else piece.data) == value
    assert piece.call == 0


@pytest.mark.parametrize("value", [object(), float("nan"), "x" * 16_001, "\ud800", {"a": {1, 2}}])
def test_a_tool_learns_what_it_cannot_emit(value: Any) -> None:
    emitted: list[Any] = []
    from celery_agents.worker.engine.live_writer import _check_piece

    with pytest.raises(InvalidInput, match=r"ctx\.emit takes"):
        emitted.append(_check_piece(value))
    assert emitted == []


@tool
def tell_in_pieces(ctx: ToolContext, text: str, size: int) -> str:
    """Emit a text in pieces."""
    for start in range(0, len(text), size):
        ctx.emit(text[start : start + size])
    return "told"


@pytest.mark.parametrize("size", [1, 3, 11, 1_000])
def test_a_secret_that_a_tool_emits_in_pieces_is_redacted(
    new_bench: NewBench, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    secret, redacted = "not-a-real-key-4711", "the key is [redacted], and its beginning not-a-r"
    monkeypatch.setenv("ACME_API_KEY", secret)

    def wait_for_it(state: Any) -> str:
        wait_for_text(bench, session_id, redacted, part="t0")
        return "done"

    calls = [CallTool("tell_in_pieces", text=redacted.replace("[redacted]", secret), size=size)]
    bench = new_bench(Agent("a", driver=ScriptedDriver([calls, wait_for_it]), tools=[tell_in_pieces]))
    session_id = watched(bench)
    assert secret not in current_matcher(fresh=True).redact(secret)
    bench.run(session_id)
    assert "".join(each.text for each in found(bench, session_id) if each.part == "t0") == redacted


def test_a_tool_that_nobody_follows_emits_nothing(new_bench: NewBench) -> None:
    driver = ScriptedDriver([[CallTool("tell", value="progress")], "done"])
    bench = new_bench(Agent("a", driver=driver, tools=[tell]))
    session_id = bench.submit()
    writes: list[Any] = []
    bench.store.live.write = writes.append  # type: ignore[assignment]
    bench.run(session_id)
    assert (bench.record(session_id).final_response, writes) == ("done", [])


def test_a_failed_call_that_nobody_followed_takes_nothing_back(new_bench: NewBench) -> None:
    bench = new_bench(Agent("a", driver=Talking("text", failures=1)))
    session_id = bench.submit()
    bench.run(session_id)
    assert bench.record(session_id).final_response == "text"
    assert "attempt_voided" not in bench.events(session_id)


@pytest.mark.parametrize(("passed", "is_followed"), [(0.0, True), (59.999, True), (60.0, False)])
def test_a_session_is_followed_until_the_time_that_its_lease_tells(passed: float, is_followed: bool) -> None:
    claim = Claim(id="c", worker="w", ref=StepRef("s", "e", 1), attempt=1, now_ms=1_000_000)
    claimed, lease, clock = SimpleNamespace(claim=claim), SimpleNamespace(followed_until_ms=1_060_000), [50.0]
    text = RunText(LiveWriter(SlowLive()), claimed, lease, lambda: clock[0])  # type: ignore[arg-type]
    clock[0] += passed
    assert text.is_followed is is_followed


def test_emitting_outside_of_a_worker_does_nothing(new_bench: NewBench) -> None:
    context = ToolContext(
        session_id="s", execution_id="e", step=1, index=0, idempotency_key="k", deadline=new_bench().clock.now
    )
    context.emit("text")


# --- the writer -------------------------------------------------------------------------------------------------------


class SlowLive:
    """A store that takes text when it is let, or refuses it."""

    def __init__(self) -> None:
        self.live = self
        self.let = threading.Event()
        self.error: Exception | None = None
        self.seconds = 0.0
        self.written: list[NewDelta] = []
        self.trips = 0

    def write(self, texts: dict[Attempt, list[NewDelta]]) -> int:
        self.trips += 1
        assert self.let.wait(10)
        time.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        self.written += [delta for deltas in texts.values() for delta in deltas]
        return sum(map(len, texts.values()))


def an_attempt(number: int = 1) -> AttemptText:
    ref = StepRef(f"s{number}", "e", 1)
    return AttemptText(Attempt(Claim(id=f"c{number}", worker="w", ref=ref, attempt=1, now_ms=1)))


def test_a_slow_redis_delays_nobody_and_too_much_is_dropped_and_counted() -> None:
    store = SlowLive()
    writer, attempt = LiveWriter(store), an_attempt()  # pyright: ignore[reportArgumentType]
    began = time.monotonic()
    for _ in range(2000):
        writer.add(attempt, 1, "text", "x" * 100)
    assert time.monotonic() - began < 5, "emitting does not wait for Redis"
    store.let.set()
    writer.close()
    assert writer.dropped > 0
    assert sum(len(each.text) for each in store.written) <= 3 * 64_000
    ends = [each.offset + len(each.text) for each in store.written]
    assert ends == sorted(ends)


@pytest.mark.parametrize(("part", "value"), [("text", "漢" * 100), ("t0", b"1"), ("t0", b'"' + b"x" * 1_000 + b'"')])
def test_what_waits_is_limited_by_bytes_whatever_it_is(part: str, value: str | bytes) -> None:
    store = SlowLive()
    writer, attempt = LiveWriter(store), an_attempt()  # pyright: ignore[reportArgumentType]
    writer.add(attempt, 1, "text", "first")
    wait_until(lambda: store.trips, "the first piece is on its way")
    for _ in range(3_000):
        writer.add(attempt, 1, part, value)
    assert sum(len("".join(each.texts).encode()) + len(each.data or b"") for each in attempt.pieces) <= 64_000
    assert len(attempt.pieces) <= 300, "a piece is an object, however short it is"
    assert writer.dropped > 0
    store.let.set()
    writer.close()


def test_many_slow_attempts_together_are_limited_by_bytes() -> None:
    store = SlowLive()
    writer, attempts = LiveWriter(store), [an_attempt(number) for number in range(200)]  # pyright: ignore[reportArgumentType]
    writer.add(attempts[0], 1, "text", "first")
    wait_until(lambda: store.trips, "the first piece is on its way")
    for attempt in attempts:
        writer.add(attempt, 1, "text", "ü" * 20_000)
    waiting = sum(len("".join(piece.texts).encode()) for each in attempts for piece in each.pieces)
    assert 3_000_000 < waiting <= 4_000_000
    store.let.set()
    writer.close()


def test_text_behind_what_was_dropped_tells_its_place() -> None:
    store = SlowLive()
    writer, attempt = LiveWriter(store), an_attempt()  # pyright: ignore[reportArgumentType]
    writer.add(attempt, 1, "text", "a" * 60_000)
    wait_until(lambda: store.trips, "the first piece is on its way")
    writer.add(attempt, 1, "text", "b" * 60_000)
    writer.add(attempt, 1, "text", "c" * 10_000)
    writer.add(attempt, 1, "text", "d" * 1_000)
    store.let.set()
    writer.close()
    assert [(each.text[0], each.offset) for each in store.written] == [("a", 0), ("b", 60_000), ("d", 130_000)]
    assert writer.dropped == 1


def test_a_redis_that_refuses_drops_and_the_writer_goes_on() -> None:
    store = SlowLive()
    store.let.set()
    store.error = StoreFull("no memory")
    writer, attempt = LiveWriter(store), an_attempt()  # pyright: ignore[reportArgumentType]
    writer.add(attempt, 1, "text", "lost")
    wait_until(lambda: writer.dropped == 1, "it is counted")
    store.error = None
    writer.add(attempt, 1, "text", "kept")
    wait_until(lambda: store.written, "it is written")
    assert [(each.text, each.offset) for each in store.written] == [("kept", 4)]
    writer.close()
    writer.add(attempt, 1, "text", "late")
    assert writer.dropped == 2


def test_a_write_that_breaks_otherwise_drops_and_the_writer_goes_on() -> None:
    store = SlowLive()
    store.let.set()
    store.error = UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
    writer, attempt = LiveWriter(store), an_attempt()  # pyright: ignore[reportArgumentType]
    writer.add(attempt, 1, "text", "lost")
    wait_until(lambda: writer.dropped == 1, "it is counted")
    store.error = None
    writer.add(attempt, 1, "text", "kept")
    wait_until(lambda: store.written, "it is written")
    writer.close()


def test_the_pieces_of_many_steps_go_together() -> None:
    store = SlowLive()
    writer = LiveWriter(store)  # pyright: ignore[reportArgumentType]
    attempts = [an_attempt(number) for number in range(100)]
    writer.add(attempts[0], 1, "text", "first")
    wait_until(lambda: store.trips, "the first piece is on its way")
    for attempt in attempts:
        for _ in range(10):
            writer.add(attempt, 1, "text", "x")
    store.let.set()
    writer.close()
    assert store.trips == 2
    assert len(store.written) == 101


def test_where_a_write_takes_long_there_are_fewer() -> None:
    store = SlowLive()
    store.let.set()
    store.seconds = 0.01
    writer, attempt = LiveWriter(store), an_attempt()  # pyright: ignore[reportArgumentType]
    began = time.monotonic()
    while time.monotonic() - began < 1.5:
        writer.add(attempt, 1, "text", "x")
        time.sleep(0.01)
    assert store.trips <= 10, "one each 200 ms, not each 50"
    writer.close()
    assert writer.dropped == 0


def test_a_full_redis_delays_and_fails_no_step(new_bench: NewBench) -> None:
    bench = new_bench(Agent("a", driver=Talking("one ", "two")))
    session_id = watched(bench)

    def refuse(texts: Any) -> int:
        raise StoreFull("no memory")

    bench.store.live.write = refuse  # type: ignore[method-assign]
    bench.run(session_id)
    assert bench.record(session_id).final_response == "one two"
    assert found(bench, session_id) == []


class Halving(Talking):
    """Emits half a character, as a stream that was cut between two."""

    def infer(self, request: InferenceRequest) -> bytes:
        assert request.emit is not None
        request.emit(Delta("half \ud83d "))
        return super().infer(request)


def test_half_a_character_does_not_end_the_writer_for_all(new_bench: NewBench) -> None:
    bench = new_bench(Agent("a", driver=Halving("two")))
    session_id = watched(bench)
    bench.run(session_id)
    wait_for_text(bench, session_id, "half � two")


class NamingHalves(ScriptedDriver):
    """Emits one piece for a part whose name is no Unicode, and then an answer."""

    def infer(self, request: InferenceRequest) -> bytes:
        if request.emit is not None:
            request.emit(Delta("hidden", part="\ud800"))
            time.sleep(0.2)
            request.emit(Delta("shown"))
        return raw_answer("shown", InferenceRequest(request.state, "s", "e", request.step), "naming")


def test_a_part_of_a_strange_name_does_not_end_the_writer_for_all(new_bench: NewBench) -> None:
    bench = new_bench(Agent("a", driver=NamingHalves(["shown"])))
    session_id = watched(bench)
    bench.run(session_id)
    wait_for_text(bench, session_id, "shown")


class SlowStore:
    """A store whose writes wait until they may go on."""

    def __init__(self) -> None:
        self.may_write = threading.Event()
        self.begun = threading.Event()
        self.texts: list[str] = []
        self.live = self

    def write(self, texts: Any) -> int:
        self.begun.set()
        assert self.may_write.wait(30)
        found = [each.text for deltas in texts.values() for each in deltas]
        self.texts += found
        return len(found)


def test_what_waits_for_redis_has_a_limit_for_each_attempt_and_for_all() -> None:
    store: Any = SlowStore()
    writer, first = LiveWriter(store), an_attempt(0)
    writer.add(first, 1, "text", "begins")
    assert store.begun.wait(10)
    writer.add(first, 1, "text", "x" * 63_699)  # with its piece of 300 bytes one byte below the limit
    writer.add(first, 1, "text", "y")
    assert (first.size, writer.dropped) == (64_000, 0)
    writer.add(first, 1, "text", "z")
    assert (first.size, writer.dropped) == (64_000, 1)
    others = [an_attempt(number) for number in range(1, 63)]
    for each in others[:61]:
        writer.add(each, 1, "text", "x" * 63_700)
    writer.add(others[61], 1, "text", "x" * 31_700)
    assert writer.dropped == 1
    writer.add(others[61], 1, "text", "x")
    assert writer.dropped == 2
    assert not writer.void(others[0], 1)  # nothing of it was written
    writer.add(others[61], 1, "text", "again")
    assert (others[0].size, writer.dropped) == (0, 2)
    store.may_write.set()
    writer.close()
    assert sorted(map(len, store.texts)) == [5, 6, 31_700, *[63_700] * 61]
    writer.add(first, 1, "text", "late")
    assert writer.dropped == 3


@pytest.mark.parametrize(("seconds", "pause"), [(0.0, 0.05), (0.001, 0.05), (0.002, 0.1), (0.004, 0.2), (1.0, 0.2)])
def test_writes_take_a_fiftieth_of_the_time_and_wait_a_fifth_of_a_second_at_most(seconds: float, pause: float) -> None:
    assert _pause_after(seconds) == pytest.approx(pause)


def test_text_after_a_silence_is_written_at_once() -> None:
    store: Any = SlowStore()
    store.may_write.set()
    writer, attempt = LiveWriter(store), an_attempt()
    for text in ("first", "second", "third"):
        began = time.monotonic()
        writer.add(attempt, 1, "text", text)
        wait_until(lambda text=text: text in store.texts, "it is written")
        assert time.monotonic() - began < 1.5, "the thread that waits for text is told of it"
        time.sleep(0.1)
    writer.close()


@pytest.mark.parametrize(("attempts", "trips"), [(200, 1), (201, 2)])
def test_so_many_attempts_go_in_one_round_trip(attempts: int, trips: int) -> None:
    store = SlowLive()
    writer = LiveWriter(store)  # pyright: ignore[reportArgumentType]
    writer.add(an_attempt(0), 1, "text", "first")
    wait_until(lambda: store.trips, "the first piece is on its way")
    for number in range(attempts):
        writer.add(an_attempt(number + 1), 1, "text", "x")
    store.let.set()
    writer.close()
    assert (store.trips, len(store.written)) == (1 + trips, 1 + attempts)
