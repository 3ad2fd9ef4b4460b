"""The verbs of a client for schedules, and how the message of a slot is submitted."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from ...worker.errors import InvalidInput
from ...worker.flow.schedules import Schedule, ScheduleStatus, TakenSlot
from ...worker.flow.slots import take
from .inputs import check_caller, check_text, derive_id
from .job import Job
from .provider_notes import find_unknown_agent
from .verbs import BY, Scope, verb

if TYPE_CHECKING:
    from .client import AgentClient

log = logging.getLogger(__name__)

LABEL: Final = "schedule"
"""The label of a session that a schedule has begun; its value is the schedule's name."""
_NAME: Final[Any] = Field(max_length=64)


class Schedules:
    """Schedules that the workers keep without another process, and that change while they run: `client.schedules`."""

    def __init__(self, client: AgentClient) -> None:
        self._client = client

    @verb(
        "PUT", "/v1/schedules", "set_schedule", reads_session=False, part="schedules",
        body=("NewSchedule", "A schedule, in place of the one with its name."),
        http={"schedule": Field(), "by": BY},
    )  # fmt: skip
    def set(self, schedule: Schedule, *, by: str | None = None) -> tuple[str, ...]:
        """Set a schedule, in place of the one with its name. Its next slot stays, unless cron or zone change.

        A slot whose message is being submitted at this moment is submitted as it was before.

        Args:
            by: Who asks; shown with the schedule.
        Returns:
            Sentences about what may not be meant, such as an agent that no worker has; none when all is well.
        Raises:
            InvalidInput: It is no `Schedule`, or names no agent.
        """
        given: Any = schedule
        if not isinstance(given, Schedule):
            raise InvalidInput("schedule", given, "give a Schedule(name, cron=…, agent=…, message=…).")
        if not schedule.agent:
            raise InvalidInput("Schedule.agent", schedule.agent, "name the agent that gets the message.")
        check_caller(by)
        check_text("Schedule.message", schedule.message, self._client.settings.max_message_bytes)
        self._client.store.flow.set_schedule(schedule, by=by or "")
        log.info("schedule %s was set by %s", schedule.name, by)
        return find_unknown_agent(schedule.agent, self._client.store.registry)

    def get(self, name: str) -> ScheduleStatus | None:
        """Read a schedule, with its next slot and what became of those before; None: there is none."""
        return self._client.store.flow.schedule(name)

    @verb("GET", "/v1/schedules", "list_schedules", scope=Scope.READ, reads_session=False, part="schedules")
    def list(self) -> tuple[ScheduleStatus, ...]:
        """List the schedules by name, with their next slots and what became of those before."""
        return tuple(self._client.store.flow.schedules())

    @verb("DELETE", "/v1/schedules", "remove_schedule", reads_session=False, part="schedules", http={"name": _NAME})
    def remove(self, name: str) -> bool:
        """Remove a schedule; False when there was none. What it has submitted goes on.

        One of `Agent(schedules=…)` comes back with the next start of a worker that has it: remove it there, too.
        """
        removed = self._client.store.flow.remove_schedule(name)
        log.info("schedule %s was removed", name)
        return removed

    @verb(
        "POST", "/v1/schedules/{name}/run", "run_schedule", reads_session=False, part="schedules",
        headers=("idempotency_key",),
    )  # fmt: skip
    def run_now(self, name: str, *, idempotency_key: str | None = None) -> Job:
        """Submit the message of a schedule now, besides its slots, whatever runs; a time in it is this second.

        Args:
            idempotency_key: The same key makes one execution, however often it comes; of a schedule with a time in its
                message or its session within a day.
        Raises:
            InvalidInput: There is no schedule of this name.
            ActionRefused: The session takes no message, or belongs to another agent.
        """
        status = self.get(name)
        if status is None:
            raise InvalidInput("name", name, "there is no such schedule; a list of them has their names.")
        now_ms = self._client.store.housekeeping.now_ms()
        if idempotency_key is not None:
            flow, operation = self._client.store.flow, derive_id(idempotency_key, "run")
            if not flow.note_in_burst(f"run {name}", operation, str(now_ms), instead_of=""):
                now_ms = int(flow.burst(f"run {name}", operation)[1] or now_ms)  # so that its message is the same
        slot = take(status.schedule, now_ms - now_ms % 1000)
        return submit_slot(self._client, name, slot, idempotency_key)


def slot_key(name: str, slot_ms: int) -> str:
    """The idempotency key of a slot: it is submitted once, however often workers that were killed repeat it."""
    return f"schedule {name} {datetime.fromtimestamp(slot_ms / 1000, UTC).isoformat()}"


def submit_slot(client: AgentClient, name: str, slot: TakenSlot, key: str | None) -> Job:
    """Submit the message of a slot: to a new session, or as the last of the queue of one that exists.

    Args:
        key: Idempotency key.
    """

    def submit(labels: dict[str, str] | None) -> Job:
        return client.submit(
            slot.agent, slot.message, session_id=slot.session, idempotency_key=key, labels=labels, when="queue"
        )

    try:
        return submit({LABEL: name})
    except InvalidInput as error:
        if error.field != "labels":
            raise
        return submit(None)  # the session exists
