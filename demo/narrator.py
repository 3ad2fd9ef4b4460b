"""Lines that tell what each worker does and what is waited for. Pure: values in, text out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .ledger import Entry, Kind, Side

if TYPE_CHECKING:
    from ..worker.store import Event

_WIDTH: Final = max(len(side) for side in Side)


class Narrator:
    """Turns lines of the ledger and events of the job into lines for people.

    Args:
        began_at: When the jobs were submitted, in seconds since the epoch.
    """

    def __init__(self, began_at: float) -> None:
        self._began_at = began_at
        self._answers = dict.fromkeys(Side, 0)
        self._refunds = dict.fromkeys(Side, 0)
        self._starts = dict.fromkeys(Side, 0)

    def line(self, side: Side, at: float, text: str) -> str:
        """Write a line with the seconds since the beginning and the side it speaks of."""
        return f"{max(0.0, at - self._began_at):6.1f} s  {side:{_WIDTH}}  {text}"

    def describe(self, entry: Entry) -> str:
        """Describe a line of the ledger."""
        texts = {
            Kind.STARTED: self._describe_start,
            Kind.ANSWER: self._describe_answer,
            Kind.REFUND: self._describe_refund,
            Kind.ENDED: _describe_end,
        }
        return self.line(entry.side, entry.at, texts[entry.kind](entry))

    def describe_event(self, event: Event) -> str | None:
        """Describe an event of the job on celery-agents; None for events that the ledger tells better."""
        match event.type:
            case "execution_started":
                text = "a worker takes the job"
            case "step_recovered":
                text = f"the lease has run out: the other worker carries on with step {event.step}"
            case "execution_completed":
                text = f"done after {event.data.get('steps')} steps"
            case "execution_failed" | "execution_stopped":
                text = f"{event.data.get('status')}: {event.data.get('error') or event.data.get('reason')}"
            case "step_retried":
                text = f"step {event.step} is tried again: {event.data.get('reason', '')}"
            case _:
                return None
        return self.line(Side.AGENTS, event.at_ms / 1000, text)

    def _describe_start(self, entry: Entry) -> str:
        self._starts[entry.side] += 1
        again = "" if self._starts[entry.side] == 1 else " again, and begins from the start"
        return f"{entry.worker} takes the task{again}"

    def _describe_answer(self, entry: Entry) -> str:
        self._answers[entry.side] += 1
        asked = f"call {entry.tool}" if entry.tool else "answer the customer"
        return f"{entry.worker} asks the model: {asked}  (paid answer {self._answers[entry.side]})"

    def _describe_refund(self, entry: Entry) -> str:
        if entry.repeated:
            return f"{entry.worker} calls refund again under the same key: the ledger knows it and pays nothing"
        self._refunds[entry.side] += 1
        again = " AGAIN, under a new key" if self._refunds[entry.side] > 1 else ""
        return f"{entry.worker} calls refund: the ledger pays {entry.cents / 100:.2f}{again}"


def _describe_end(entry: Entry) -> str:
    return f"{entry.worker} is done"
