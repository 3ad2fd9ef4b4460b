"""The closing table: what the ledger holds after both jobs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .ledger import Entry, Kind, Side


@dataclass(frozen=True)
class SideReport:
    """The counts of one side, by the ledger.

    Attributes:
        refunds: Number of refunds that were paid out.
        cents: Amount that was paid out.
        answers: Number of model answers that have to be paid.
        seconds: Time from the submit to the end; None when it has not ended.
        answer: The answer to the customer; "" without one.
    """

    refunds: int
    cents: int
    answers: int
    seconds: float | None
    answer: str

    @classmethod
    def count(cls, side: Side, entries: Sequence[Entry], *, seconds: float | None, answer: str) -> SideReport:
        """Count the lines of one side."""
        paid = [each for each in entries if each.side is side and each.kind is Kind.REFUND and not each.repeated]
        answers = [each for each in entries if each.side is side and each.kind is Kind.ANSWER]
        return cls(
            refunds=len(paid),
            cents=sum(each.cents for each in paid),
            answers=len(answers),
            seconds=seconds,
            answer=answer,
        )


@dataclass(frozen=True)
class Report:
    """Both sides, side by side.

    Attributes:
        steps: Steps that the job on celery-agents has committed; each is one answer of the model.
    """

    agents: SideReport
    plain: SideReport
    steps: int

    @property
    def holds(self) -> bool:
        """Whether celery-agents has kept its promise: one refund, and each step's answer paid once."""
        return self.agents.refunds == 1 and self.agents.answers == self.steps > 0

    def lines(self) -> list[str]:
        """Write the table."""
        rows = [
            ("", str(Side.AGENTS), str(Side.PLAIN)),
            ("refunds in the ledger", *(f"{s.refunds}  ({s.cents / 100:.2f} paid out)" for s in self._sides)),
            ("model answers paid", *(str(side.answers) for side in self._sides)),
            ("time", *("not done" if s.seconds is None else f"{s.seconds:.1f} s" for s in self._sides)),
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]

    @property
    def _sides(self) -> tuple[SideReport, SideReport]:
        return self.agents, self.plain
