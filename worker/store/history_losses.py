"""The losses of history that workers find: Redis came back with an older version of a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

LOST: Final = "lost"
"""The field of a session's hash with the loss of history that was found last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryLoss:
    """The end of a session's history that Redis has lost, as far as the worker knows it that has found it.

    Attributes:
        known_version: The version that the worker had seen.
        found_version: The version that it found.
        common_version: The newest version of both histories; None: it is too long ago to tell.
        mark: The mark of the common version, by which a loss is told once.
        at_ms: Redis time when it was found.
        steps: Numbers of the lost steps.
        calls: Their calls of tools that are not pure, each with `step`, `tool` and `outcome`.
    """

    known_version: int
    found_version: int
    common_version: int | None
    mark: str
    at_ms: int
    steps: tuple[int, ...]
    calls: tuple[Mapping[str, Any], ...]
    worker: str

    def to_json(self) -> dict[str, Any]:
        """Its fields as JSON."""
        return asdict(self)

    @classmethod
    def read(cls, stored: bytes | None) -> HistoryLoss | None:
        """Parse what is stored; None where nothing is, or it is damaged."""
        try:
            return _ADAPTER.validate_json(stored) if stored else None
        except ValidationError:
            return None

    def describe(self) -> str:
        """Say what was lost, as a sentence without its full stop."""
        return describe_loss(self.to_json())


_ADAPTER: Final = TypeAdapter(HistoryLoss)


def describe_loss(data: Mapping[str, Any]) -> str:
    """Say what was lost, by the data of a loss or of its event, as a sentence without its full stop."""
    calls = ", ".join(f"{call['tool']} in step {call['step']}" for call in data.get("calls") or ())
    steps = ", ".join(map(str, data.get("steps") or ()))
    return (
        f"Redis lost version {data.get('known_version')} and came back with {data.get('found_version')}"
        + (f"; lost steps: {steps}" if steps else "")
        + (f"; their effects have happened, and may happen again: {calls}" if calls else "")
    )
