"""Schedules: a message that is submitted at the times of a cron expression, and what is known of such a schedule."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, Self, get_args

from ..errors import InvalidInput
from ..state.values.field_types import Amount, Count, Text, utcnow
from ..state.values.ids import ID_PATTERN, SessionId
from ..state.values.value import Value, skip_when_reading
from .cron import check_cron, iterate_slots, read_zone, shortest_interval

Overlap = Literal["skip", "queue"]
MOST_MISSED: Final = 100
_MISSED: Final = {"none": 0, "one": 1}
_MOST_CHARS: Final = 100_000
_FIELDS: Final = ("name", "date", "time", "hour", "minute", "second", "slot")
_SAMPLE: Final = datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC)


class Schedule(Value):
    """A message for an agent at the times of a cron expression, which are called its slots.

    `message` and `session` may name `{name}`, `{date}` (2026-01-31), `{time}` (02:00), `{hour}`, `{minute}`,
    `{second}` and `{slot}` (2026-01-31T02:00:00+01:00), all of the slot and in the schedule's zone; a brace is `{{`.

    Attributes:
        name: 1 to 64 letters, digits, `_` or `-`. The sessions that it begins have it as their label `schedule`.
        cron: Minute, hour, day of the month, month, day of the week; with six fields the first is the second.
        zone: A name of the time zone database.
        agent: "" only in `Agent(schedules=…)`, where it is that agent.
        session: Id of the session that gets the message, as the last of its queue. None: a new session for each slot.
        overlap: What becomes of a slot while the session of the slot before is active: "skip" leaves it out, "queue"
            lets it follow.
        missed: Which slots are made up for that are more than a minute late, as no worker was alive: "none", "one" (the
            newest) or a number of them, the newest, up to 100.
        jitter_seconds: A slot begins so much later at most: a time that follows from name and slot.
    """

    name: Text
    cron: Text
    zone: Text = "UTC"
    agent: Text = ""
    message: Text
    session: Text | None = None
    overlap: Overlap = "skip"
    missed: Text | Count = "one"
    jitter_seconds: Amount = 0.0

    @skip_when_reading
    def __init__(
        self,
        name: str,
        *,
        cron: str,
        zone: str = "UTC",
        agent: str = "",
        message: str,
        session: str | None = None,
        overlap: Overlap = "skip",
        missed: str | int = "one",
        jitter: timedelta = timedelta(),
    ) -> None:
        """Raises `InvalidInput`, which names the field, for a value that cannot be used."""
        if not isinstance(jitter, timedelta):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput("Schedule.jitter", jitter, "give a timedelta.")
        _check_choices(overlap, missed)
        super().__init__(
            name=name, cron=cron, zone=zone, agent=agent, message=message, session=session, overlap=overlap,
            missed=missed, jitter_seconds=max(0.0, jitter.total_seconds()),
        )  # fmt: skip
        for field, text in (("name", name), *((("agent", agent),) if agent else ())):
            if not ID_PATTERN.fullmatch(text):
                raise InvalidInput(f"Schedule.{field}", text, "use 1 to 64 letters, digits, '_' or '-'.")
        now = utcnow()
        read_zone(zone)
        check_cron(cron, zone, now)
        self._check_jitter(jitter, now)
        self._check_templates()

    @property
    def jitter(self) -> timedelta:
        """The longest time by which a slot begins later."""
        return timedelta(seconds=self.jitter_seconds)

    @property
    def most_missed(self) -> int:
        """Number of missed slots that are made up for."""
        return self.missed if isinstance(self.missed, int) else _MISSED.get(self.missed, 1)

    @property
    def digest(self) -> str:
        """Changes when the schedule does."""
        return hashlib.sha256(self.to_json()).hexdigest()[:16]

    def of_agent(self, agent: str) -> Self:
        """The schedule as an agent has it.

        Raises:
            InvalidInput: It names another agent.
        """
        if self.agent not in ("", agent):
            raise InvalidInput("Schedule.agent", self.agent, f"it is given to {agent!r}; leave it out, or name that.")
        return self._with(agent=agent)

    def slots_after(self, after_ms: int) -> Iterator[int]:
        """Yield its slots behind a time, all in Unix milliseconds and without jitter."""
        after = datetime.fromtimestamp(after_ms / 1000, UTC)
        return (round(slot.timestamp()) * 1000 for slot in iterate_slots(self.cron, self.zone, after))

    def begin_ms(self, slot_ms: int) -> int:
        """When a slot begins: with its jitter, the same whoever asks."""
        jitter_ms = round(self.jitter_seconds * 1000)
        if not jitter_ms:
            return slot_ms
        drawn = hashlib.sha256(f"{self.name}:{slot_ms}".encode()).digest()
        return slot_ms + int.from_bytes(drawn[:8], "big") % jitter_ms

    def message_of(self, slot_ms: int) -> str:
        """The message of a slot."""
        return self._render("message", self.message, slot_ms)

    def session_of(self, slot_ms: int) -> str | None:
        """Id of the session of a slot; None: a new one."""
        return None if self.session is None else self._render("session", self.session, slot_ms)

    def _render(self, field: str, template: str, slot_ms: int) -> str:
        at = datetime.fromtimestamp(slot_ms / 1000, read_zone(self.zone))
        values = {
            "name": self.name, "date": f"{at:%Y-%m-%d}", "time": f"{at:%H:%M}", "hour": f"{at:%H}",
            "minute": f"{at:%M}", "second": f"{at:%S}", "slot": at.isoformat(),
        }  # fmt: skip
        return "".join(text + values[name] if name else text for text, name in _parts(field, template))

    def _check_jitter(self, jitter: timedelta, now: datetime) -> None:
        if jitter < timedelta():
            raise InvalidInput("Schedule.jitter", str(jitter), "give a timedelta from 0.")
        if jitter and jitter >= (shortest := shortest_interval(self.cron, self.zone, now)):
            advice = f"its times are {shortest} apart, and their order must stay; give less than that."
            raise InvalidInput("Schedule.jitter", str(jitter), advice)

    def _check_templates(self) -> None:
        sample_ms = round(_SAMPLE.timestamp() * 1000)
        if not self.message_of(sample_ms).strip() or len(self.message) > _MOST_CHARS:
            raise InvalidInput("Schedule.message", self.message, f"say something, in up to {_MOST_CHARS} characters.")
        session = self.session_of(sample_ms)
        try:
            if session is not None:
                SessionId(session)
        except InvalidInput as error:
            advice = f"{error.advice} In it {{date}}, {{hour}} and {{minute}} fit, {{time}} and {{slot}} do not."
            raise InvalidInput("Schedule.session", session, advice) from None


class TakenSlot(Value):
    """A slot whose message is being submitted, as it was when the slot was taken: a later edit does not change it.

    Attributes:
        slot_ms: The slot (Unix ms).
        session: None: a new session.
    """

    slot_ms: Count
    agent: Text
    message: Text
    session: Text | None = None


class LastSlot(Value):
    """The slot that was submitted or refused last.

    Attributes:
        slot_ms: The slot (Unix ms).
        at_ms: When it was submitted (Redis ms).
        session_id: The session that has its message; "" where it was refused.
        refused: Why it was refused; "" where it was not.
    """

    slot_ms: Count
    at_ms: Count
    session_id: Text = ""
    refused: Text = ""


class ScheduleStatus(Value):
    """A schedule as it is stored: with its next slot, and what became of those before.

    Attributes:
        revision: How often it was set; 1 at first.
        slot_ms: The next slot that nothing was decided about (Unix ms). None: there is none any more.
        waiting: Slots that follow when the session of the one before has ended, the oldest first (Unix ms).
        taken: The slot whose message is being submitted.
        last: None: no slot was submitted yet.
        submitted, skipped, missed, refused: How many slots were submitted; left out since the one before was active;
            left out since they were late; and refused by their session.
        by: Who has set it.
        since_ms: When it was set (Redis ms).
        deployed: Digest of the schedule of an agent that was set last under this name; "": clients alone have set it.
    """

    schedule: Schedule
    revision: Count = 1
    slot_ms: Count | None = None
    waiting: tuple[Count, ...] = ()
    taken: TakenSlot | None = None
    last: LastSlot | None = None
    submitted: Count = 0
    skipped: Count = 0
    missed: Count = 0
    refused: Count = 0
    by: Text = ""
    since_ms: Count = 0
    deployed: Text = ""

    def changed(self, **changes: Any) -> Self:
        """The same with other fields, as a named step of its life makes it."""
        return self._with(**changes)


def _check_choices(overlap: Any, missed: Any) -> None:
    if overlap not in get_args(Overlap):
        raise InvalidInput("Schedule.overlap", overlap, "give 'skip' or 'queue'.")
    is_number = isinstance(missed, int) and not isinstance(missed, bool) and 0 <= missed <= MOST_MISSED
    if not is_number and missed not in _MISSED:
        raise InvalidInput("Schedule.missed", missed, f"give 'none', 'one', or a number from 0 to {MOST_MISSED}.")


def _parts(field: str, template: str) -> Iterator[tuple[str, str]]:
    """The texts of a template, each with the name of the field behind it; "" at the end.

    Raises:
        InvalidInput: It has a field that is unknown, or a brace alone.
    """
    advice = f"the fields are {', '.join(f'{{{name}}}' for name in _FIELDS)}; write a brace twice to have it once."
    try:
        for text, name, format_spec, conversion in string.Formatter().parse(template):
            if name is not None and (name not in _FIELDS or format_spec or conversion):
                raise InvalidInput(f"Schedule.{field}", template, f"it names {{{name}}}; {advice}")
            yield text, name or ""
    except InvalidInput:
        raise
    except ValueError:
        raise InvalidInput(f"Schedule.{field}", template, advice) from None
