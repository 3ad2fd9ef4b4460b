"""Inputs by hypothesis at four borders: what is stored, what a model answers, what tools get and give, what is submitted.

Every example is judged and none ends the run, so that one finding does not hide the next: a violation names its example
and the seed. Extreme values are drawn again and again, and counted where they are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from .answers import answer
from .arguments import tools
from .extremes import EXTREMES
from .stored import control, control_on_redis, state, state_on_redis
from .submits import notify, submit
from support.verdict import Verdict

BORDERS: Final[Mapping[str, Callable[[Path, int, int], Verdict]]] = {
    "state": state,
    "state_on_redis": state_on_redis,
    "control": control,
    "control_on_redis": control_on_redis,
    "answer": answer,
    "tool": tools,
    "submit": submit,
    "notify": notify,
}
_SHARES: Final = {
    "state": 0.42, "state_on_redis": 0.03, "control": 0.23, "control_on_redis": 0.02, "answer": 0.12, "tool": 0.08,
    "submit": 0.08, "notify": 0.02,
}  # fmt: skip

WANTED: Final = (
    *(f"extreme_{name}" for name in EXTREMES),
    *(f"examples_{name}" for name in _SHARES),
    *("damaged_head", "damaged_message", "damaged_step", "state_Parked", "state_Done", "job_failed", "job_completed"),
    *("call_ok", "call_error", "submit_accepted", "submit_refused"),
)
"""Counts without which a run has shown nothing."""


def everything(directory: Path, examples: int, seed: int) -> Verdict:
    """So many examples in all, divided among the borders."""
    verdict = Verdict()
    for name, share in _SHARES.items():
        verdict.add(BORDERS[name](directory / name, max(1, round(examples * share)), seed))
    return verdict
