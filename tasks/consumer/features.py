"""Features of a worker that use undocumented attributes of libraries, and the attributes that are missing."""

from __future__ import annotations

from functools import cache
from typing import Final

from . import celery_internals, kombu_internals, redis_internals
from .probes import Feature, find_missing, missing_from_objects

SAFE_DECODING: Final = Feature(
    kombu_internals.DECODING, "ANY MALFORMED ELEMENT IN A QUEUE MAY END THIS WORKER; install a version that is known"
)
NO_ACK_MARK: Final = Feature(kombu_internals.NO_ACK_MARK, "messages are acknowledged although nobody waits for it")
BATCH_FETCH: Final = Feature((*kombu_internals.FETCHING, *celery_internals.RESERVED), "messages are fetched one by one")
LOCAL_DELIVERY: Final = Feature(
    (*kombu_internals.CALLBACKS, *celery_internals.RESERVED), "every step goes through the queue"
)
ONE_LOOP: Final = Feature(
    (*kombu_internals.HUB, *kombu_internals.POLLER), "Celery's loop and the steps run in two threads"
)
FREE_SLOTS: Final = Feature(
    (*celery_internals.RESERVED, "kombu.asynchronous:Hub.call_soon"),
    "a full worker notices free slots with its next timer",
)
REVOKE_STOPS: Final = Feature(celery_internals.REVOKING, "a revoked step does not stop its session")
COMMAND_LIMITS: Final = Feature(celery_internals.COMMANDS, "remote control may let this worker consume any queue")
SAFE_REDELIVERY: Final = Feature(
    kombu_internals.REDELIVERY, "A MALFORMED UNACKNOWLEDGED ENTRY MAY END THIS WORKER; install a version that is known"
)
SAFE_FETCH: Final = Feature(kombu_internals.READING, "a queue key of another type ends this worker")
TEMPLATE_CHECK: Final = Feature(
    kombu_internals.PUBLISHING, "messages are not compared with those of kombu's Redis transport"
)
MULTIPLEXING: Final = Feature(redis_internals.PROBES, "steps do not share a connection to Redis")
APPLY_TARGET: Final = Feature(celery_internals.POOL, "a task that ends its process is not reported as a lost worker")


def missing_internals() -> list[str]:
    """Return the undocumented attributes of libraries that this worker looked for and did not find."""
    return sorted({*_missing_at_start(), *missing_from_objects()})


@cache
def _missing_at_start() -> tuple[str, ...]:
    return find_missing((*celery_internals.PROBES, *kombu_internals.PROBES, *redis_internals.PROBES))
