"""Reading a step message: it may be forged, so every part is checked before anything is done with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..worker.errors import InvalidInput
from ..worker.state.values.ids import ID_PATTERN, read_session_id
from ..worker.store.records import LAST_STEP, StepRef


class MalformedStep(ValueError):
    """The arguments are not those of a step."""


def read_step(args: Sequence[Any], kwargs: Mapping[str, Any]) -> StepRef:
    """The step that a message names.

    Raises:
        MalformedStep: An argument is missing, superfluous or of the wrong form; the text names it.
    """
    if args:
        raise MalformedStep(f"{len(args)} positional arguments; a step is named by keywords")
    if set(kwargs) != {"session_id", "execution_id", "step"}:
        raise MalformedStep(f"keywords {sorted(map(str, kwargs))[:10]}, expected session_id, execution_id, step")
    step = kwargs["step"]
    if not isinstance(step, int) or isinstance(step, bool) or not 1 <= step < LAST_STEP:
        raise MalformedStep(f"step={step!r:.100} is not a step number")
    return StepRef(_session_id(kwargs), _id(kwargs, "execution_id"), step)


def _session_id(kwargs: Mapping[str, Any]) -> str:
    try:
        return str(read_session_id(kwargs["session_id"]))
    except InvalidInput:
        raise MalformedStep(f"session_id={kwargs['session_id']!r:.100} is not an id") from None


def _id(kwargs: Mapping[str, Any], name: str) -> str:
    value = kwargs[name]
    if not isinstance(value, str) or not ID_PATTERN.fullmatch(value):
        raise MalformedStep(f"{name}={value!r:.100} is not an id")
    return value
