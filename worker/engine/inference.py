"""Obtains the model's answer for a step: from the journal, or from the driver as often as the settings allow.

Each answer is paid for at most once: it is journaled before it is parsed, and nothing begins by what it says before the
journal has it.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from functools import partial

from .. import crash_points
from ..drivers.protocol import InferenceRequest, SentRequest
from ..errors import ClaimLost, DriverError, ModelCallRefused, PutOff, UnusableAnswer
from ..guards import time_left
from ..hooks import AnswerUndecided, HookPoint
from ..moments import moment
from ..redaction import describe_exception, place_of
from ..state.agent_state import AgentState
from ..state.execution.inference import FinishReason, InferenceResponse
from ..state.execution.signals import StopReason
from ..state.values.error_info import ErrorInfo
from ..store.asked import Asked
from ..tools.stop import StopExecution
from .asking import ask_models, check_prices, doubled
from .charges import charge_execution, check_budget, with_corrections
from .child_calls import EndingRecord
from .driver_calls import (
    Admission,
    DriverCaller,
    Owed,
    call_driver,
    check_answer_of_hook,
    interrupted_answer,
    parse_answer,
    read_paid,
)
from .endings import (
    OF_STORE,
    adopt_hook_context,
    delay_step,
    give_back,
    put_off,
    resolve_interruption,
    user_stop_signal,
)
from .leases import CallInterrupted, Interruption
from .outcome import TakenOver
from .provider_jobs import ProviderJobs, window_of
from .run import Run
from .run_values import Question, RejectedAnswer
from .services import EngineServices

log = logging.getLogger(__name__)


class Inference:
    """The step's driver call: request, attempts, and the hooks around them."""

    def __init__(self, services: EngineServices) -> None:
        self._services = services
        self._steps = services.store.steps
        self._keeper = services.keeper
        self._settings = services.settings
        self._driver = DriverCaller(services)
        self._jobs = ProviderJobs(services, self._driver)

    def infer(self, run: Run) -> Run:
        """Adopt the journaled answer, or ask the driver for one where a call may begin."""
        if run.outcome is not None:
            return run
        run = self._infer(run)
        if run.lease.interruption is Interruption.CANCEL and not run.ending.is_stopping:
            return run.stopping(user_stop_signal())
        return run

    def run_hooks_again(self, run: Run) -> Run:
        """Repeat the changes that the hooks around inference made, on the state that is stored now.

        Raises:
            Exception: Any exception of a hook.
        """
        response = run.obtained.response
        if response is None or run.obtained.is_given or run.agent.hook_stack.is_empty:
            return run
        run, _ = self._build_request(run)
        return self._run_after_hooks(run, response, may_wait=False).with_response(response)

    def resolve_hook_error(self, run: Run, error: Exception) -> Run:
        """Give the run after a hook before the driver call raised. A refused or delayed model call is no failure.

        Raises:
            StoreUnavailable, StoreFull, ClaimLost: It was raised by what the hook has asked of the store.
        """
        if isinstance(error, OF_STORE):
            raise error
        if isinstance(error, ModelCallRefused):
            return run.stopping(*error.signals) if error.signals else self._resolve_interruption(run)
        if isinstance(error, DriverError) and error.transient:
            return self._give_up(run, error)
        described, session = describe_exception(error), run.ref.session_id
        log.info("a hook of session %s raised %s%s", session, described.message, place_of(error))
        return run.failing(described, StopReason.ERROR_FORBADE)

    def _infer(self, run: Run) -> Run:
        raw = run.loaded.journal.answer
        if raw is not None:
            self._jobs.settle_again(run)
            return self._read_answer(self._with_stored_question(run), raw)
        if run.ending.is_stopping or run.obtained.is_given:
            return run
        if run.lease.is_cut:
            return self._leave_off(run)
        try:
            check_prices(run)
            run, request = self._build_request(run)
        except Exception as error:  # noqa: BLE001 - a hook of the user's, or a driver that cannot be made
            return self.resolve_hook_error(run, error)
        return run if run.ending.is_stopping else self._ask(run, request)

    def _with_stored_question(self, run: Run) -> Run:
        """The run with the question whose answer is journaled, or with what this worker would ask."""
        saw = run.journal.saw
        if saw is not None:
            return run.with_question(Asked.from_stored(saw))
        return run.with_question(Question(self._own_request(run), is_of_another=True))

    def _build_request(self, run: Run) -> tuple[Run, InferenceRequest]:
        request = self._own_request(run)
        if not run.agent.hook_stack.at(HookPoint.BEFORE_INFERENCE):
            return run, request
        context = run.agent.hook_stack.run(run.hook_context(HookPoint.BEFORE_INFERENCE, run.state, request=request))
        return adopt_hook_context(run, context), context.request or request

    def _own_request(self, run: Run) -> InferenceRequest:
        """The question as it is before hooks."""
        return InferenceRequest(
            state=_with_prompt(run),
            session_id=run.ref.session_id,
            execution_id=run.ref.execution_id,
            step=run.ref.step,
            tools=run.agent.toolset.specs(),
            timeout=self._keeper.call_timeout(run.lease),
            compiler=run.agent.messages_from,
            settings=run.state.llm_config,
            max_answer_bytes=self._settings.max_answer_bytes,
        )

    # --- attempts ---------------------------------------------------------------------------------------------

    def _ask(self, run: Run, request: InferenceRequest) -> Run:
        """Ask until there is a readable answer, as often as the settings allow within this step."""
        try:
            return ask_models(
                run,
                self._services,
                request,
                attempt=partial(self._attempt, run),
                note=partial(self._driver.journal_failure, run),
            )
        except CallInterrupted:
            is_cut = run.lease.is_cut and run.lease.interruption is None
            return self._leave_off(run) if is_cut else self._resolve_interruption(run)
        except ModelCallRefused as error:
            return run.stopping(*error.signals)
        except StopExecution as stop:
            return run.stopping(stop.signal_from(run.agent.answering.name))
        except DriverError as error:
            return self._give_up(run, error)

    def _attempt(self, run: Run, request: InferenceRequest) -> Run:
        if run.lease.is_cut or not self._driver.may_begin(run):
            raise CallInterrupted
        if run.memory.rejected:
            # The rejected answers may have used up the budget.
            check_budget(charge_execution(run, run.limited_execution), moment(self._services.redis_ms(run)))
            request = with_corrections(request, run.memory.rejected)
        run.lease.on_overtime = partial(self._journal_overtime, run)
        try:
            return self._obtain(run, request)
        finally:
            run.lease.on_overtime = None

    def _obtain(self, run: Run, request: InferenceRequest) -> Run:
        window = window_of(run, request)
        raw = None if window is None else self._jobs.ask(run, request, window)
        return self._ask_now(run, request) if raw is None else self._read_job(run, request, raw)

    def _read_job(self, run: Run, request: InferenceRequest, raw: bytes) -> Run:
        if self._services.observer is not None:
            seconds = run.memory.jobs[-1].waited_ms(self._services.redis_ms(run)) / 1000
            self._services.observer.job_answered(run, request, seconds, read_paid(run, raw))
        return self._read_answer(self._with_stored_question(run), raw)

    def _ask_now(self, run: Run, request: InferenceRequest) -> Run:
        request, admission = self._jobs.admit(run, request)
        run.memory.has_asked = True
        emit = None if run.agent.holds_live_text else run.live.begin_call()
        if emit is not None:
            request = replace(request, emit=emit)
        told = list[SentRequest | None]()
        try:
            raw, owed = self._call_driver(run, replace(request, tell=told.append), admission)
            crash_points.at("c2")
            run = run.with_question(Question(request, told[-1] if told else None, is_asked=told[-1:] != [None]))
            # Journaled before it is parsed: an answer whose parsing ends the process is not paid for again.
            stored = self._jobs.journal_answer(run, raw, owed)
            return self._read_answer(run, raw) if stored == raw else self._adopt_answer(run, stored, raw)
        except DriverError as error:
            self._jobs.note_end(run, error)
            raise

    def _call_driver(self, run: Run, request: InferenceRequest, admission: Admission) -> tuple[bytes, Owed]:
        """Call the driver; an answer that it cannot read was paid for as one that is rejected later."""
        try:
            return call_driver(run, self._services, request, admission)
        except UnusableAnswer as error:
            self._reject_answer(run, error, was_journaled=False)
            raise

    def _leave_off(self, run: Run) -> Run:
        """Take what has arrived of the answer for the answer: a message came first, and the next step answers it.

        What the provider charges for it is not known. An answer that is stored already stays.
        """
        raw = interrupted_answer(run.live.said, run.model)
        stored = self._driver.journal_answer(run, raw)
        if stored == raw:
            return run.with_response(parse_answer(run, raw))
        try:
            return self._adopt_answer(run, stored, raw)
        except UnusableAnswer:
            return self._leave_off(run)

    # --- answers ----------------------------------------------------------------------------------------------

    def _adopt_answer(self, run: Run, stored: bytes, raw: bytes) -> Run:
        """Use the answer that another worker journaled first, or this run's own when that one is unusable."""
        try:
            return self._read_answer(self._with_stored_question(run), stored)
        except UnusableAnswer:
            return self._read_answer(run, self._driver.journal_answer(run, raw))

    def _read_answer(self, run: Run, raw: bytes) -> Run:
        """Parse a journaled answer. An unusable one leaves the journal, unless a tool call of it has begun.

        Raises:
            UnusableAnswer: It was unusable, and this attempt may ask again.
        """
        run.memory.has_answer = True
        try:
            response = parse_answer(run, raw)
            if response.finish_reason is FinishReason.INTERRUPTED:  # nothing that hooks judge
                return run.with_response(response)
        except UnusableAnswer as error:
            if run.ending.is_stopping or run.loaded.journal.holds_something:
                # Refused once a tool call of the answer has begun: no worker may ask for another answer then.
                if self._reject_answer(run, error) and not run.ending.is_stopping:
                    return self._infer(_without_answer(run))
                return run.failing(describe_exception(error), StopReason.ERROR_FORBADE)
            self._reject_answer(run, error)
            raise
        return self._run_after_hooks(run, response)

    def _run_after_hooks(self, run: Run, response: InferenceResponse, *, may_wait: bool = True) -> Run:
        """Run the hooks after an answer.

        Args:
            may_wait: The run may be decided without the answer, which then stays in the journal.
        """
        stack = run.agent.hook_stack
        if not stack.at(HookPoint.AFTER_INFERENCE):
            return run.with_response(response)
        answered = run.with_response(response)  # limits of auxiliary calls count the answer
        try:
            context = stack.run(answered.hook_context(HookPoint.AFTER_INFERENCE, run.state, response=response))
        except AnswerUndecided as undecided:
            if may_wait and not self._ends_anyway(run, undecided.error):
                return self.resolve_hook_error(run, undecided.error)
            context = undecided.otherwise
        changed = context.response
        if changed is not None and changed is not response:
            try:
                check_answer_of_hook(changed, self._settings.max_answer_bytes)
            except DriverError as error:  # the driver's own stays, which was paid for
                failing = adopt_hook_context(answered, context).with_response(response)
                return failing.failing(describe_exception(error), StopReason.ERROR_FORBADE)
            response = changed.with_unique_call_ids()
        return adopt_hook_context(run.with_response(response), context)

    def _ends_anyway(self, run: Run, error: Exception) -> bool:
        """Whether the execution ends with this step, so that no later step can ask."""
        is_ended = run.ending.is_stopping or run.lease.interruption in (Interruption.CANCEL, Interruption.LIMIT)
        return is_ended or (isinstance(error, ModelCallRefused) and bool(error.signals))

    def _reject_answer(self, run: Run, error: UnusableAnswer, *, was_journaled: bool = True) -> bool:
        """Take an answer that cannot be used out of the journal, and keep what it cost; False when it has to stay."""
        rejected = RejectedAnswer.of(error)
        run.memory.rejected.append(rejected)
        is_dropped = self._steps.drop_answer(run.claim, rejected.to_json(), was_journaled=was_journaled)
        run.memory.has_answer = was_journaled and not is_dropped
        return is_dropped

    # --- without an answer ------------------------------------------------------------------------------------

    def _resolve_interruption(self, run: Run) -> Run:
        if run.lease.interruption is Interruption.DEADLINE:
            if self._jobs.outlasts_step(run):  # no attempt: it is the provider who takes so long
                return give_back(run, self._services.store, "the answer takes longer than the step may")
            return _out_of_time(run)
        if run.lease.interruption is None:  # the lease could not be confirmed
            return run.decide(TakenOver(run.ref))
        return resolve_interruption(run, self._services)

    def _journal_overtime(self, run: Run) -> None:
        """End the execution for whoever gets the step of a plain function that goes on behind the step's time.

        Nobody knows whether it has asked a provider: another call could pay twice.
        """
        if not self._jobs.outlasts_step(run):
            with contextlib.suppress(ClaimLost):
                self._steps.record_overtime(run.claim, EndingRecord.of(_out_of_time(run).ending).to_json())

    def _give_up(self, run: Run, error: DriverError) -> Run:
        """Ask no more in this step: a transient error delays it, a permanent one fails the execution."""
        if isinstance(error, PutOff):
            return put_off(run, self._services, error)
        described = describe_exception(error)
        cause = error.__cause__
        if cause is not None and type(cause).__name__ == error.kind:  # of a function of the user's
            log.info("the driver of session %s raised %s%s", run.ref.session_id, described.message, place_of(cause))
        if not error.transient:
            return run.failing(described, StopReason.ERROR_FORBADE)
        if isinstance(error, UnusableAnswer):  # each was paid for; an outage costs nothing
            return run.failing(described, StopReason.RETRY_LIMIT_REACHED)
        loaded, settings = run.loaded, self._settings
        waited_ms = loaded.now_ms - (loaded.tried_since_ms or loaded.now_ms)
        if waited_ms >= settings.retry_later_limit_seconds * 1000:
            return run.failing(described, StopReason.RETRY_LIMIT_REACHED)
        seconds = doubled(settings.retry_later_seconds, loaded.delays, settings.retry_later_max_seconds)
        seconds = max(seconds, error.retry_after or 0.0)
        seconds = min(seconds, settings.retry_later_limit_seconds)
        left = time_left(run.execution, moment(self._services.redis_ms(run)))
        seconds = seconds if left is None else min(seconds, left)
        why = f"{error.kind}: {described.message}"
        return delay_step(run, self._services.store, why, seconds)


def _out_of_time(run: Run) -> Run:
    error = ErrorInfo(kind="step_timeout", message="the step reached its deadline during the model call")
    return run.failing(error, StopReason.TIME_LIMIT_REACHED)


def _with_prompt(run: Run) -> AgentState:
    """The state that the driver sees: with the agent's prompt, which is stored only for sessions with their own."""
    agent = run.agent
    if not agent.notice and (run.state.system_prompt or not agent.system_prompt):
        return run.state
    prompt = run.state.system_prompt or agent.system_prompt
    prompt = f"{prompt}\n\n{agent.notice}".strip() if agent.notice else prompt
    return run.state.with_system_prompt(prompt, now=run.state.updated_at)


def _without_answer(run: Run) -> Run:
    journal = replace(run.loaded.journal, answer=None)
    return run.changed(loaded=replace(run.loaded, journal=journal))
