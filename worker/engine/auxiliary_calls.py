"""Auxiliary model calls: what a hook or a tool asks a model besides the step's own driver call.

Each answer is journaled under its key before any code reads it, so that a later run of the step adopts it, and it is
paid for once. It is charged to the execution once, which the state records by step and key.
"""

from __future__ import annotations

import json
import re
import threading
import time
from functools import partial
from typing import Final

from ..drivers.protocol import AuxiliaryRequest, InferenceRequest
from ..errors import (
    ConfigurationError,
    DriverError,
    InvalidInput,
    ModelCallRefused,
)
from ..moments import moment
from ..state.conversation.messages import Message
from ..state.execution.inference import InferenceResponse
from .asking import ask_models
from .charges import charge_children, charge_execution, check_budget, journaled_answers
from .driver_calls import Owed, admit, call_driver, finish_call, parse_answer
from .leases import CallInterrupted
from .run import Run
from .services import EngineServices

MOST_OF_STEP: Final = 1_000
"""Auxiliary answers that the journal of a step keeps."""
_MOST_TIMES_AN_ANSWER: Final = 4
_KEY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class AuxiliaryCalls:
    """Asks a model for hooks and tools. May be called from any thread."""

    def __init__(self, services: EngineServices) -> None:
        self._services = services
        self._store = services.store
        self._keeper = services.keeper
        self._settings = services.settings

    def ask(self, run: Run, key: str, request: AuxiliaryRequest | str) -> InferenceResponse:
        """The journaled answer of the key, or a new one where the model may still be asked.

        Raises:
            ModelCallRefused: A limit is reached, the execution is being stopped, or the claim is gone.
            DriverError: There is no answer; `transient` says whether asking again may help. `auxiliary_limit`: the step
                has asked too often, or for too much.
            UnusableAnswer: The journaled answer cannot be parsed; it stays, and another key asks again.
        """
        if _KEY.fullmatch(key) is None:
            advice = "use 1 to 100 letters, digits, '_', '-' or '.', beginning with a letter or digit."
            raise InvalidInput("ask_model", key, advice)
        with run.memory.asking.setdefault(key, threading.Lock()):  # who asks the same meanwhile gets the same answer
            return self._ask(run, key, request)

    def _ask(self, run: Run, key: str, request: AuxiliaryRequest | str) -> InferenceResponse:
        raw = journaled_answers(run).get(key)
        if raw is None:
            self._check_limits(run)
            asked, owed = self._obtain(run, self._as_inference(run, key, request))
            steps = self._store.steps
            raw = self._services.ask_store(
                run, lambda: steps.record_auxiliary(run.claim, key, asked, owed.settlement), "an auxiliary answer"
            )
            finish_call(run, self._services, asked, owed)
            run.memory.auxiliary[key] = raw
        return parse_answer(run, raw)

    def _obtain(self, run: Run, request: InferenceRequest) -> tuple[bytes, Owed]:
        """Ask as often as the settings allow."""
        services = self._services

        def attempt(question: InferenceRequest) -> tuple[bytes, Owed]:
            self._check_claim(run)
            return call_driver(run, services, question, admit(run, services, question))

        try:
            return ask_models(run, services, request, attempt=attempt, note=partial(self._record_failure, run))
        except CallInterrupted:
            raise ModelCallRefused("the step was interrupted") from None

    def _record_failure(
        self, run: Run, request: InferenceRequest, error: DriverError, pause_seconds: float | None
    ) -> None:
        del request, pause_seconds
        facts = {"kind": error.kind, "transient": error.transient, "auxiliary": True}
        self._store.steps.record_failure(run.claim, time.time_ns(), json.dumps(facts).encode())

    def _check_limits(self, run: Run) -> None:
        """Refuse a call that no budget covers any more, or whose price a cost limit could not count."""
        if run.ending.is_stopping:
            raise ModelCallRefused("the execution is being ended")
        answers, most_bytes = journaled_answers(run), _MOST_TIMES_AN_ANSWER * self._settings.max_answer_bytes
        if len(answers) >= MOST_OF_STEP or sum(map(len, answers.values())) >= most_bytes:
            # No ModelCallRefused: without a reason to end, the step would be run again.
            message = f"a step keeps {MOST_OF_STEP} auxiliary answers, of {most_bytes} bytes together; ask later"
            raise DriverError("auxiliary_limit", message, transient=False)
        execution = charge_children(run, charge_execution(run, run.limited_execution), reserved=True)
        if run.obtained.response is not None:
            execution = execution.with_charge(run.obtained.response.usage, run.obtained.response.cost)
        now = moment(self._services.redis_ms(run))
        check_budget(execution, now)
        if execution.budget.max_cost is not None and not run.agent.answering.knows_price(run.state.llm_config):
            raise ConfigurationError(f"agent {run.agent.name!r} has max_cost, and its model has no known price")

    def _as_inference(self, run: Run, key: str, request: AuxiliaryRequest | str) -> InferenceRequest:
        asked = AuxiliaryRequest((Message.user(request),)) if isinstance(request, str) else request
        context = run.state.context.with_system_prompt(asked.system_prompt)
        context = context.with_response_format(asked.response_format)
        return InferenceRequest(
            state=run.state.with_context_and_execution(context, run.state.execution),
            session_id=run.ref.session_id,
            execution_id=run.ref.execution_id,
            step=run.ref.step,
            timeout=self._keeper.call_timeout(run.lease),
            settings=asked.settings or run.state.llm_config,
            replaced_messages=asked.messages,
            purpose=key,
            max_answer_bytes=self._settings.max_answer_bytes,
        )

    def _check_claim(self, run: Run) -> None:
        lease = run.lease
        if lease.interruption is not None or not (self._keeper.is_fresh(lease) or self._keeper.confirm(lease)):
            raise ModelCallRefused("the step was interrupted")
