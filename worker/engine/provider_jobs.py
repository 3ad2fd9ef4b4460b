"""Asks a provider that answers within a window: a job is created, and the step is put off until its answer is there.

A leg of the step looks for the answer, as any claim of it runs: its slot and its lease are free meanwhile.
docs/protocol.md, "Jobs at a provider", tells what a crash at each place costs.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from .. import crash_points
from ..drivers.protocol import AnswersLater, CreatedJob, InferenceRequest, JobOrder, SentRequest
from ..drivers.windows import WINDOWS
from ..errors import ConfigurationError, DriverError, JobEnded, NotYetKnown, PutOff, UnusableAnswer
from ..flow.values import AT_PROVIDER, BACKGROUND
from ..moments import moment, unix_ms
from ..redaction import describe_exception
from ..store.journal import ANSWERED, CHARGED, LOST, NOT_CREATED, JournaledJob
from ..store.steps.provider_jobs import JobEntry
from .asked import describe_question
from .driver_calls import Admission, DriverCaller, Owed, admit, finish_call, read_paid, run_verb
from .flow_texts import describe_job
from .leases import CallInterrupted
from .run import Run, milliseconds
from .run_values import Question
from .spending_gate import Spending

if TYPE_CHECKING:
    from .services import EngineServices

_MOST_FAILURES: Final = 2
"""Jobs of a step that are asked again; behind one more the agent's `window_failed` decides."""
_LATE_MS: Final = 3_600_000
"""How long behind its window a job is waited for that its provider does not end."""
_GROWTH: Final = 1.0
"""Of the age of a job: so long until it is looked at again."""
_KEY_DIGITS: Final = 40
_MAY_BE_PAID: Final = (LOST, "forgotten", CHARGED, "unreadable")
"""Ends of jobs of which nobody can tell whether they had answered, or whoever cancelled them has told it."""
_REFUSED: Final = "window_refused"
_SERVER_ERROR: Final = 500
"""The least HTTP status behind which a provider, or a gateway before it, may have carried a request out."""
_STILL_CARRIED_OUT_MS: Final = 60_000
"""So long behind such an answer."""
_LAST_SECONDS: Final = 5.0
"""Of the creation of a job when its step has to end: no step can cancel a job whose id it does not know."""
_LATE: Final = "late"


def window_of(run: Run, request: InferenceRequest) -> str | None:
    """The window within which the model of a run may answer; None: it is asked at once.

    A child has the window of its parent only where its model is sold with it.

    Raises:
        DriverError: The model is not sold with the window that its agent or its session was given.
    """
    given, driver = run.execution.completion_window, cast("Any", run.agent.answering)
    window = given or run.agent.completion_window
    if window is None or run.memory.jobs:
        return window
    is_inherited = given is not None and run.parent is not None and run.agent.completion_window is None
    try:
        if not hasattr(driver, "check_window"):
            raise ConfigurationError(f"completion_window {window!r}: {driver.name} is not sold with it")
        driver.check_window(window, request.settings)
        if len(run.agent.models) > 1 and request.own_model is None:
            raise ConfigurationError(f"completion_window {window!r} is for one model, and the agent lists several")
    except ConfigurationError as error:
        if is_inherited:
            return None
        raise DriverError("configuration", str(error), transient=False) from error
    return window


class ProviderJobs:
    """The jobs of runs at providers."""

    def __init__(self, services: EngineServices, caller: DriverCaller) -> None:
        self._services = services
        self._steps = services.store.steps
        self._caller = caller

    def ask(self, run: Run, request: InferenceRequest, window: str) -> bytes | None:
        """Ask within a window: create a job, or look for the answer of the one that there is.

        Returns:
            The answer, which is journaled. None: the window has failed, and the model is to be asked at once.
        Raises:
            PutOff: There is no answer yet.
            DriverError: There will be none, or the provider does not answer.
            CallInterrupted: The run was interrupted meanwhile.
            ClaimLost: Another worker has the step.
        """
        driver = cast("AnswersLater", run.agent.answering)
        self.settle_again(run)
        if _open_job(run) is None and run.agent.window_failed == "live" and _has_failed(run):
            return None  # an earlier leg has given the window up, and the model has not answered yet
        while True:
            job = _open_job(run)
            try:
                if job is None:
                    job = self._create(run, request, driver, self._next_job(run, window))
                elif not job.id:
                    job = self._find(run, request, driver, job)
                else:
                    return self._collect(run, request, driver, job)
                raise self._put_off(run, job, is_told=True)
            except JobEnded as ended:
                if self._gives_up(run, request, ended):
                    return None

    def _gives_up(self, run: Run, request: InferenceRequest, ended: JobEnded) -> bool:
        """Note that a job gives no answer; True where the window is given up, and the model is asked at once.

        Raises:
            JobEnded: It is given up, and the execution fails by it.
            PutOff: Another worker has journaled its end, which the next leg reads.
        """
        jobs = run.memory.jobs
        if jobs[-1].ended_ms is None and not self._end(run, jobs[-1], ended.kind):
            raise PutOff("another worker has journaled the end of the job", 0.0, AT_PROVIDER)
        is_last = ended.kind == _REFUSED or _has_failed(run)
        if is_last and run.agent.window_failed == "fail":
            ended.transient = False
            raise ended
        self._caller.journal_failure(run, request, ended, 0.0)
        return is_last

    def _end(self, run: Run, job: JournaledJob, why: str) -> bool:
        """Journal that a job gives no answer, and settle it.

        Returns:
            False: It has an end already.
        """
        services, now_ms = self._services, self._services.redis_ms(run)
        is_first = services.ask_store(
            run, lambda: self._steps.end_job(run.claim, job.number, why, now_ms), "the end of a job"
        )
        if is_first:
            run.memory.jobs[job.number] = job.ended(now_ms, why)
            self._settle_end(run, run.memory.jobs[job.number])
        return is_first

    def _settle_end(self, run: Run, job: JournaledJob) -> None:
        """Settle a job that has given no answer. Of one that may have been created, what was reserved counts as spent.

        One that is late may answer still: who cancels it settles it.
        """
        if job.why != _LATE:
            self._services.spending.settle_job(_entry(run, job), None if job.why in _MAY_BE_PAID else 0.0)

    def settle_again(self, run: Run) -> None:
        """Settle the last job of the journal where it has ended: whoever has journaled its end may have died then."""
        job = run.memory.jobs[-1] if run.memory.jobs else None
        answer = run.loaded.journal.answer
        if job is None or job.ended_ms is None:
            return
        if job.why != ANSWERED:
            self._settle_end(run, job)
        elif answer is not None:
            self._services.spending.settle_job(_entry(run, job), read_paid(run, answer).cost)

    # --- in the background, at once -----------------------------------------------------------------------------

    def admit(self, run: Run, request: InferenceRequest) -> tuple[InferenceRequest, Admission]:
        """Wait until a model may be asked at once; see `driver_calls.admit`.

        Returns:
            The question, too. That of an agent with `background` attaches to the answer that has begun, whose money is
            reserved, or begins one to which others attach.
        """
        services, job = self._services, _open_job(run)
        if not run.agent.background:
            return request, admit(run, services, request)
        self.settle_again(run)
        if job is not None:
            keep = partial(self._keep_begun, run, request, job, None)
            return replace(request, keep=keep, attach=job.handle), Admission(services.gate.begin(run, request), None)
        now_ms = services.redis_ms(run)
        job = _new_job(run, BACKGROUND, now_ms)
        admission = admit(run, services, request, _entry(run, job))
        return replace(request, keep=partial(self._keep_begun, run, request, job, admission.spending)), admission

    def _keep_begun(
        self, run: Run, request: InferenceRequest, job: JournaledJob, spending: Spending | None, created: CreatedJob
    ) -> None:
        """Journal by what an answer is known that has begun to arrive."""
        if _open_job(run) is not None:
            return
        self._keep(run, job, created, Question(request), begun=True)
        if spending is not None:
            spending.is_of_job = True

    def journal_answer(self, run: Run, raw: bytes, owed: Owed) -> bytes:
        """Journal a raw answer, with the end of its job where it is one, and return the stored one."""
        job = _open_job(run)
        if job is None:
            return self._caller.journal_answer(run, raw, owed)
        stored = self._journal(run, job, raw)
        finish_call(run, self._services, raw, owed._replace(spending=None))  # the job's is settled
        return stored

    def note_end(self, run: Run, error: DriverError) -> None:
        """Note that there is nothing to attach to any more, where an error says so."""
        job = _open_job(run)
        if job is not None and isinstance(error, JobEnded):
            self._end(run, job, error.kind)

    def outlasts_step(self, run: Run) -> bool:
        """Whether a later leg of the step may still have the answer that this one has asked for.

        A job of which nobody can tell whether it was created is not waited for: asking again may pay twice.
        """
        job = _open_job(run)
        if job is None or not (job.id or cast("AnswersLater", run.agent.answering).can_find(job.window)):
            return False
        longest_ms = milliseconds(self._services.settings.retry_later_limit_seconds)
        return self._services.redis_ms(run) < _until_ms(job) + longest_ms

    # --- creating ---------------------------------------------------------------------------------------------

    def _next_job(self, run: Run, window: str) -> JournaledJob:
        now_ms, deadline = self._services.redis_ms(run), run.limited_execution.budget.deadline
        if deadline is not None and run.ref.step == 1 and deadline < WINDOWS[window].until(moment(now_ms)):
            said = (
                f"agent {run.agent.name!r}: the deadline {deadline:%Y-%m-%d %H:%M:%S} UTC comes before the completion "
                f"window {window} ends; give a later deadline, or a shorter window"
            )
            raise DriverError("configuration", said, transient=False)
        return _new_job(run, window, now_ms)

    def _create(self, run: Run, request: InferenceRequest, driver: AnswersLater, job: JournaledJob) -> JournaledJob:
        """Create a job; one whose number is journaled already is created under the same key."""
        services, told = self._services, list[SentRequest | None]()
        admission = admit(run, services, request, _entry(run, job))
        may_take = milliseconds(request.timeout + services.settings.lookup_margin_seconds)
        job = replace(job, until_ms=services.redis_ms(run) + may_take)
        try:
            if not services.ask_store(run, lambda: self._steps.intend_job(run.claim, job), "a job"):
                services.spending.settle(admission.spending, 0.0)
                raise CallInterrupted
            run.memory.jobs[job.number :] = [job]
            if not self._caller.may_begin(run):
                raise CallInterrupted
            observe = None if admission.call is None else admission.call.observe
            asked, order = replace(request, tell=told.append, observe=observe), _order(run, job)
            created = run_verb(run, services, request, lambda: driver.create_job(asked, order), _LAST_SECONDS)
        except BaseException as error:
            self._fail(run, job, admission, error)
            raise
        if admission.call is not None:
            services.gate.finish(services.gate.settle(run, admission.call))
        crash_points.at("p1")
        kept = self._keep(run, job, created, Question(request, told[-1] if told else None))
        if run.lease.interruption is not None or run.lease.is_cut:
            raise CallInterrupted
        return kept

    def _fail(self, run: Run, job: JournaledJob, admission: Admission, error: BaseException) -> None:
        """Note a job that was not created, or of which this is not known.

        Raises:
            JobEnded: The provider refuses it, and asking again does not help.
        """
        if admission.call is not None:
            self._services.gate.fail(run, admission.call, error)
        if not isinstance(error, DriverError) or error.status is None:
            return
        if error.status >= _SERVER_ERROR and cast("AnswersLater", run.agent.answering).can_find(job.window):
            soon_ms = self._services.redis_ms(run) + _STILL_CARRIED_OUT_MS
            job = replace(job, until_ms=min(job.until_ms, soon_ms))
            self._services.ask_store(run, lambda: self._steps.intend_job(run.claim, job), "a job")
            run.memory.jobs[job.number :] = [job]
            return
        self._end(run, job, NOT_CREATED)
        if not error.transient:
            raise JobEnded(_REFUSED, describe_exception(error).message) from error

    def _find(self, run: Run, request: InferenceRequest, driver: AnswersLater, job: JournaledJob) -> JournaledJob:
        """Find a job of which nobody knows whether it was created; create it where it was not.

        Raises:
            PutOff: It is not known yet.
            JobEnded: It cannot be told: it counts as one that gives no answer.
        """
        if not driver.can_find(job.window):
            raise JobEnded(LOST, "nobody knows whether the job was created: it is asked again")
        now_ms, order = self._services.redis_ms(run), _order(run, job)
        try:
            found = run_verb(run, self._services, request, lambda: driver.find_job(request, order))
        except NotYetKnown as error:
            if now_ms > _until_ms(job) + _LATE_MS:
                raise JobEnded(LOST, "nobody has found out whether the job was created: it is asked again") from error
            raise self._put_off(run, job, why=describe_exception(error).message) from error
        if found is not None:
            return self._keep(run, job, found, Question(request, is_of_another=True))
        if now_ms < job.until_ms:
            raise self._put_off(run, job, why="whoever was about to create the job may still do so")
        return self._create(run, request, driver, job)

    def _keep(
        self, run: Run, job: JournaledJob, created: CreatedJob, question: Question, *, begun: bool = False
    ) -> JournaledJob:
        """Journal by what a job is known, and where it was not intended, that it is there."""
        asked, entry = describe_question(run, question), _entry(run, job, created)
        intention = job.intention if begun else ""
        stored = self._services.ask_store(
            run, lambda: self._steps.keep_job(run.claim, entry, asked, intention), "a job"
        )
        kept = job.created(stored)
        run.memory.jobs[job.number :] = [kept]
        return kept

    # --- collecting -------------------------------------------------------------------------------------------

    def _collect(self, run: Run, request: InferenceRequest, driver: AnswersLater, job: JournaledJob) -> bytes:
        """Journal the answer of a job.

        Raises:
            PutOff: There is none yet.
            JobEnded: There will be none.
            DriverError: The provider does not answer, and there may be one.
        """
        services, raw, failure = self._services, None, None
        try:
            raw = run_verb(run, services, request, lambda: driver.collect_job(request, job.handle))
        except DriverError as error:
            if isinstance(error, JobEnded) or not error.transient:
                raise
            failure = error
        if raw is None:
            why = "" if failure is None else f"it could not be asked: {describe_exception(failure).message}"
            if services.redis_ms(run) <= _until_ms(job) + _LATE_MS:
                raise self._put_off(run, job, why=why)
            if failure is not None and self._may_pass(run, failure):
                raise failure
            raise JobEnded(_LATE, f"the job has not ended within {job.window} and an hour{why and f'; {why}'}")
        crash_points.at("c2")
        return self._journal(run, job, raw)

    def _may_pass(self, run: Run, failure: DriverError) -> bool:
        """Whether looks at a late job have not failed for so long yet that it is given up: it may have an answer."""
        now_ms = self._services.redis_ms(run)
        since_ms = run.loaded.tried_since_ms or now_ms
        return now_ms - since_ms < _LATE_MS and not isinstance(failure, UnusableAnswer)

    def _journal(self, run: Run, job: JournaledJob, raw: bytes) -> bytes:
        """Journal the answer of a job, count its cost, and give the one that is stored."""
        entry, now_ms = _entry(run, job), self._services.redis_ms(run)
        stored = self._services.ask_store(
            run, lambda: self._steps.record_job_answer(run.claim, job, entry, raw, now_ms), "an answer"
        )
        run.memory.jobs[job.number] = job.ended(now_ms, ANSWERED)
        self._services.spending.settle_job(entry, read_paid(run, stored).cost)
        return stored

    def _put_off(self, run: Run, job: JournaledJob, *, why: str = "", is_told: bool = False) -> PutOff:
        """Put the step off until it looks at its job again."""
        settings, now_ms = self._services.settings, self._services.redis_ms(run)
        age = job.waited_ms(now_ms) / 1000
        seconds = min(max(age * _GROWTH, settings.job_poll_seconds), settings.job_poll_max_seconds)
        deadline = run.limited_execution.budget.deadline
        if deadline is not None:
            seconds = min(seconds, max(0.0, unix_ms(deadline) / 1000 - now_ms / 1000))
        text = describe_job(run.model, job.window, moment(job.intended_ms))
        return PutOff(f"{text}; {why}" if why else text, seconds, AT_PROVIDER, is_told=is_told)


def _open_job(run: Run) -> JournaledJob | None:
    """The job whose answer is waited for or attached to, as the agent is asked now; None without one.

    Of an agent that was asked otherwise before, the housekeeping cancels it.
    """
    jobs = run.memory.jobs
    is_open = bool(jobs) and jobs[-1].ended_ms is None
    return jobs[-1] if is_open and (jobs[-1].window == BACKGROUND) == run.agent.background else None


def _new_job(run: Run, window: str, now_ms: int) -> JournaledJob:
    """The next job of a step, about to be intended."""
    retries = run.execution.retries
    return JournaledJob(len(run.memory.jobs), window, intended_ms=now_ms, until_ms=now_ms, retries=retries)


def _has_failed(run: Run) -> bool:
    """Whether so many jobs have given no answer that the window is given up."""
    return sum(job.counts_as_failed for job in run.memory.jobs) > _MOST_FAILURES


def _key(run: Run, job: JournaledJob) -> str:
    """The key of a job, the same for every worker, and behind a retry that goes on with it.

    An answer in the background that is asked for again before its id was kept is another job.
    """
    facts = (run.ref.session_id, run.ref.execution_id, run.ref.step, job.retries, job.number)
    return _named(*facts, job.intended_ms) if job.window == BACKGROUND else _named(*facts)


def _named(*facts: object) -> str:
    return f"ca-{hashlib.sha256(repr(facts).encode()).hexdigest()[:_KEY_DIGITS]}"


def _order(run: Run, job: JournaledJob) -> JobOrder:
    at, until = moment(job.intended_ms), moment(job.until_ms)
    return JobOrder(_key(run, job), _named(run.ref.execution_id), job.window, intended_at=at, until=until)


def _until_ms(job: JournaledJob) -> int:
    window = WINDOWS.get(job.window)
    return job.until_ms if window is None else unix_ms(window.until(moment(job.intended_ms)))


def _entry(run: Run, job: JournaledJob, created: CreatedJob | None = None) -> JobEntry:
    """The entry of a job in the index; by what it is known now, where nobody has `created` it this moment."""
    ref = run.ref
    return JobEntry(
        id=job.id if created is None else created.id,
        handle=job.handle if created is None else created.handle,
        key=_key(run, job),
        session_id=ref.session_id,
        execution_id=ref.execution_id,
        step=ref.step,
        job=job.number,
        agent=run.agent.name,
        model=run.model,
        window=job.window,
        since_ms=job.intended_ms,
        due_ms=_until_ms(job),
    )
