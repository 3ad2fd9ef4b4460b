"""Lanes: the lists in which steps wait for their turn, beside the list of their queue.

A step with a lane is published as three commands of one transaction: the step into the list of its lane, its share into
the sorted set of the shares of which steps wait, and a *turn* into the queue. A turn is a step message like any other;
the worker that takes it takes the step whose share is next. So a queue has as many messages as steps wait, and whoever
knows nothing of lanes runs the step that the turn names.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ..errors import StateUnreadable
from ..flow.shares import PRIORITIES, lane_of, share_of
from . import fields
from .database import Command
from .records import StepRef

NEW_SHARE: Final = -1
"""The score of a share whose steps have waited for nothing yet; the script that takes a turn gives it its place."""


def lane_key(queue_key: str, lane: str) -> str:
    """Return the list of the steps that wait in a lane of a queue, the oldest one last."""
    return f"{queue_key}:lane:{lane}"


def lanes_key(queue_key: str) -> str:
    """Return the sorted set of the shares of which steps wait in a queue."""
    return f"{queue_key}:lanes"


def script_keys(queue_key: str) -> tuple[str, str, str]:
    """Return the keys that the taking of turns changes beside the lists: waiting shares, idle ones, and the clock."""
    lanes = lanes_key(queue_key)
    return lanes, f"{lanes}:idle", f"{lanes}:state"


def lanes_of(share: str) -> list[str]:
    """The lanes of a share, in the order of `PRIORITIES`."""
    return [lane_of(share, each) for each in PRIORITIES]


def queue_types(queue_keys: Collection[str]) -> dict[str, str]:
    """The keys of queues, each with the type that Redis's TYPE names: their lists, and the shares that wait in them."""
    return {**dict.fromkeys(queue_keys, "list"), **dict.fromkeys(map(lanes_key, queue_keys), "zset")}


def wait_commands(queue_key: str, ref: StepRef, published_ms: int) -> list[Command]:
    """Commands that let a step wait in its lane; a turn goes with them."""
    words = (published_ms, ref.session_id, ref.execution_id, ref.step, ref.retries, ref.legs, ref.root_task)
    entry = " ".join(map(str, (*words, ref.parent_task)))
    return [
        ("LPUSH", lane_key(queue_key, ref.lane), entry),
        ("ZADD", lanes_key(queue_key), "NX", NEW_SHARE, share_of(ref.lane)),
    ]


def read_waiting(entry: bytes, *, queue: str, lane: str) -> tuple[StepRef, int]:
    """Read an entry of a lane: the step, and when it was published (Redis ms).

    Raises:
        StateUnreadable: It is damaged.
    """
    words = fields.text(entry).split(" ")
    if len(words) != 8:
        raise StateUnreadable("lane", f"an entry has {len(words)} words in place of 8")
    published, session_id, execution_id, step, retries, legs, root_task, parent_task = words
    try:
        counts = [int(each) for each in (published, step, retries, legs)]
    except ValueError:
        raise StateUnreadable("lane", "a word of an entry is no number") from None
    ref = StepRef(
        session_id, execution_id, counts[1], retries=counts[2], legs=counts[3], queue=queue, lane=lane,
        root_task=root_task, parent_task=parent_task,
    )  # fmt: skip
    return ref, counts[0]


def oldest_waiting_ms(entry: bytes | None) -> int:
    """When the oldest entry of a lane was published (Redis ms); -1: the lane is empty, 0: it cannot be read."""
    if entry is None:
        return -1
    try:
        return read_waiting(entry, queue="", lane="")[1]
    except StateUnreadable:
        return 0
