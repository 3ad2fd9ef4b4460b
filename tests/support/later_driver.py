"""A driver whose provider answers later, with a ledger: its jobs end when the test says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from celery_agents.worker.drivers import InferenceRequest
from celery_agents.worker.drivers.protocol import CreatedJob, JobOrder
from celery_agents.worker.drivers.windows import WINDOWS
from celery_agents.worker.errors import ConfigurationError, DriverError, JobEnded, NotYetKnown
from celery_agents.worker.flow.values import BACKGROUND
from celery_agents.worker.state import InferenceResponse, InferenceUsage, LLMConfig

USAGE = InferenceUsage(input=100, output=20, requests=1)


@dataclass
class Job:
    """A job at the provider; `said` is its answer, an error, or None while it is open."""

    order: JobOrder
    messages: int
    said: Any = None
    is_cancelled: bool = False
    is_deleted: bool = False


@dataclass
class LaterDriver:
    """Asks nothing; see the module.

    Attributes:
        jobs: All that were created, in order; `job-<n>` is the id of the nth.
        answers: What is said at once, where it is asked without a window.
        creating: Called before a job is created; what it raises comes in its place.
        created: Called when one was created, before its id is known to anybody.
        keeping: Called when an answer in the background has begun, before its id is kept.
        attached: Called when one is attached to that was begun before.
        windows: What is sold.
        is_listed: Jobs can be found by their keys.
    """

    jobs: list[Job] = field(default_factory=list[Job])
    answers: list[Any] = field(default_factory=lambda: ["at once"])
    creating: Callable[[], object] = lambda: None
    created: Callable[[], object] = lambda: None
    keeping: Callable[[], object] = lambda: None
    attached: Callable[[], object] = lambda: None
    looking: Callable[[], object] = lambda: None
    windows: tuple[str, ...] = ("2h", "8h", "24h")
    is_listed: bool = False
    is_searchable: bool = True
    asked_at_once: int = 0
    name = "later"
    is_async = False

    # --- what the test does ---------------------------------------------------------------------------------------

    def finish(self, said: Any = "done", number: int = -1) -> None:
        """End a job with an answer: a text, a response, or an error."""
        self.jobs[number].said = said

    # --- the driver -----------------------------------------------------------------------------------------------

    def infer(self, request: InferenceRequest) -> bytes:
        self.asked_at_once += 1
        if request.keep is None:
            return _response(self.answers.pop(0), 1.0)
        if request.attach is None:
            self.jobs.append(
                Job(
                    JobOrder("", "", BACKGROUND, datetime.now(UTC), datetime.now(UTC)),
                    len(request.messages),
                    self.answers.pop(0),
                )
            )
            self.keeping()
            request.keep(self._job(len(self.jobs) - 1))
            self.created()
        else:
            self.attached()
        job = self.jobs[json.loads(request.attach)["number"] if request.attach else -1]
        return _response(job.said, 1.0)

    def check_background(self) -> None: ...

    def parse(self, raw: bytes) -> InferenceResponse:
        return InferenceResponse.from_json(raw)

    def check(self) -> None: ...

    def knows_price(self, settings: LLMConfig | None = None) -> bool:
        del settings
        return True

    async def aclose(self) -> None: ...

    def check_window(self, window: str, settings: LLMConfig | None = None) -> None:
        del settings
        if window not in self.windows:
            raise ConfigurationError(f"completion_window {window!r} is not sold")

    def can_find(self, window: str) -> bool:
        del window
        return self.is_listed

    def create_job(self, request: InferenceRequest, order: JobOrder) -> CreatedJob:
        self.creating()
        self.jobs.append(Job(order, len(request.messages)))
        self.created()
        return self._job(len(self.jobs) - 1)

    def find_job(self, request: InferenceRequest, order: JobOrder) -> CreatedJob | None:
        del request
        if not self.is_searchable:
            raise NotYetKnown("the list is long")
        found = (number for number, job in enumerate(self.jobs) if job.order.key == order.key)
        return next((self._job(number) for number in found), None)

    def collect_job(self, request: InferenceRequest, handle: str) -> bytes | None:
        del request
        self.looking()
        job = self.jobs[json.loads(handle)["number"]]
        if job.is_deleted:
            raise JobEnded("forgotten", "the provider does not know the job")
        if job.is_cancelled:
            raise JobEnded("cancelled", "the job was cancelled")
        if isinstance(job.said, BaseException):
            raise job.said
        return None if job.said is None else _response(job.said, _factor(job))

    def clean_job(self, handle: str, *, is_open: bool) -> InferenceResponse | None:
        job = self.jobs[json.loads(handle)["number"]]
        if job.is_deleted:
            return None
        if not is_open:
            job.is_deleted = True
            return None
        job.is_cancelled |= job.said is None
        has_answered = job.said is not None and not isinstance(job.said, BaseException)
        if not has_answered:
            return InferenceResponse(cost=0.0)
        return InferenceResponse.from_json(_response(job.said, _factor(job)))

    def _job(self, number: int) -> CreatedJob:
        return CreatedJob(f"job-{number}", json.dumps({"number": number}))


def _factor(job: Job) -> float:
    return 1.0 if job.order.window == BACKGROUND else WINDOWS[job.order.window].factor


def _response(said: Any, factor: float) -> bytes:
    if isinstance(said, BaseException):
        raise said
    if isinstance(said, InferenceResponse):
        return said.to_json()
    return InferenceResponse(content=said, usage=USAGE, cost=0.1 * factor, model="later").to_json()


def refused(status: int = 400, *, transient: bool = False) -> DriverError:
    """What a provider answers that creates nothing."""
    return DriverError("http_error", f"the provider refuses it (HTTP {status})", transient=transient, status=status)


LOST_REPLY = DriverError("connection", "the connection broke", transient=True)
