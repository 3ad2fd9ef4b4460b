"""Steps that stay readable when the messages go that they are packed over: what was spent is read from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...errors import StateUnreadable
from ...state.agent_state import AgentState
from ..database import Command, Reply, WatchedTransaction
from ..keys import SessionKeys
from ..packing import pack, read_steps, step_spans
from .watched_sessions import WatchedSession


def write_steps_again(
    found: WatchedSession, before: AgentState, after: AgentState, watched: WatchedTransaction, point: str
) -> Iterator[Command]:
    """Write steps by themselves where they are packed over messages that are not in the state afterwards.

    The commands come before the save, which gives their keys their life. The steps of an execution that stays in the
    state are written by the save itself.

    Args:
        point: The name of the reads.
    """
    kept = after.store.sections
    gone = {
        (name, section.generation)
        for name, section in before.store.sections.items()
        if name not in kept or kept[name].generation != section.generation
    }
    last = after.execution.execution_id if after.execution is not None else ""
    names = [name for name in found.bookkeeping.executions if name != last] if gone else []
    keys = found.scope.keys
    reads: list[Command] = [("LRANGE", keys.steps(name), 0, -1) for name in names]
    for name, entries in zip(names, watched.pipeline(point, reads) if reads else (), strict=True):
        if any((span.section, span.generation) in gone for entry in entries for span in step_spans(entry)):
            steps = _read(keys, entries, watched, point)
            if steps is not None:
                yield ("DEL", keys.steps(name))
                yield ("RPUSH", keys.steps(name), *map(pack, steps))


def _read(keys: SessionKeys, entries: Sequence[bytes], watched: WatchedTransaction, point: str) -> list[bytes] | None:
    """The JSON of steps; None where one of them is packed over messages that are gone already."""

    def read(_: str, commands: Sequence[Command]) -> list[Reply]:
        return watched.pipeline(point, commands)

    try:
        return read_steps(read, keys, entries)
    except StateUnreadable:
        return None
