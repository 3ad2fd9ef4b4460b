"""An agent that gives each example's answer or makes its call, and what must hold afterwards."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import FunctionDriver, InferenceRequest, PydanticAIDriver
from celery_agents.worker.drivers.answers import read_response
from celery_agents.worker.engine import (
    Done,
)
from celery_agents.worker.errors import (
    UnusableAnswer,
)
from celery_agents.worker.state import (
    AgentState,
    InferenceResponse,
    LLMConfig,
    ToolCall,
)
from celery_agents.worker.store import (
    StepRef,
    memory_store,
)
from celery_agents.worker.tools import StopExecution

from .examples import Worker, expect, quick_settings
from .given import ANSWERS, Lazy, provider_answers
from .offered import TOOLS, given_result
from support.verdict import Verdict


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


class Desk:
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
            driver.good = provider_answers()[0] if name == "provider" else ANSWERS[0]
        self._agents = [Agent(name, driver=driver, tools=TOOLS) for name, driver in self._drivers.items()]
        self._agents.append(Agent("function", driver=FunctionDriver(self._returned), tools=TOOLS))

    def _returned(self, state: AgentState) -> Any:
        assert state.execution is not None
        if state.execution.step_count:
            return "done"
        given = self._function
        return given.make(*given.given) if isinstance(given, Lazy) else given

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def worker(self) -> Worker:
        """The one to use; its store does not grow for ever."""
        self._numbers += 1
        if self._worker is None or self._numbers % 500 == 0:
            self.close()
            settings = quick_settings()
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
            expect(not is_raw or failure == _failure_of(given), f"bytes failed as {failure}")

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
        given_result[:] = [result]
        # A stop that a tool asked for, with a result that cannot be used, is a step that failed.
        allowed = [None, "unusable_answer", *(["of a step"] if isinstance(result, StopExecution) else [])]
        if raw is None:
            self._function = Lazy(ToolCall.from_text, "c", name, text)
            _, ref, failure = self.carried_out("function")
            # As JSON, an answer with such a text may be several times as long.
            is_large = 6 * len(text) > quick_settings().max_answer_bytes
            allowed += ["InvalidInput", *(["answer_too_large"] if is_large else [])]
        else:
            shape = b'{"tool_calls":[{"id":"c","name":"%b","args":%b},{"id":"d","name":"words"}]}'
            self._drivers["plain"].raw = answer = shape % (name.encode(), raw)
            allowed += [_failure_of(answer)]
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
            allowed = ("ok", "error", "unknown" if isinstance(given_result[0], TimeoutError) else "")
            expect(each.outcome.value in allowed, f"the call ended as {each.outcome.value}")
            expect(each.outcome.value == "ok" or bool(each.error_message()), "a failure without a word")


def _failure_of(answer: bytes) -> str:
    """The kind of failure of an answer that cannot be used."""
    return "answer_too_large" if len(answer) > quick_settings().max_answer_bytes else "unusable_answer"
