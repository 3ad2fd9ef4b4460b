"""Features of a worker that use undocumented attributes of libraries, and the attributes that are missing."""

from __future__ import annotations

from functools import cache
from typing import Final

from . import celery_internals, kombu_internals, redis_internals
from .probes import Feature, find_missing, missing_from_objects

SAFE_DECODING: Final = Feature(
    kombu_internals.DECODING, "ANY MALFORMED ELEMENT IN A QUEUE MAY END THIS WORKER; install a version that is known"
)
REVOKE_STOPS: Final = Feature(celery_internals.REVOKING, "a revoked step does not stop its session")
COMMAND_LIMITS: Final = Feature(celery_internals.COMMANDS, "remote control may let this worker consume any queue")
OTHER_TASKS: Final = Feature(celery_internals.RESERVED, "steps are fetched for slots that other tasks have taken")
STEP_QUEUES: Final = Feature(
    celery_internals.COMMANDS,
    "remote control does not know the queues of steps",
)
SAFE_REDELIVERY: Final = Feature(
    kombu_internals.REDELIVERY, "A MALFORMED UNACKNOWLEDGED ENTRY MAY END THIS WORKER; install a version that is known"
)
SAFE_FETCH: Final = Feature(kombu_internals.READING, "a queue key of another type ends this worker")
MULTIPLEXING: Final = Feature(redis_internals.PROBES, "steps do not share a connection to Redis")


def missing_internals() -> list[str]:
    """Return the undocumented attributes of libraries that this worker looked for and did not find."""
    return sorted({*_missing_at_start(), *missing_from_objects()})


@cache
def _missing_at_start() -> tuple[str, ...]:
    return find_missing((*celery_internals.PROBES, *kombu_internals.PROBES, *redis_internals.PROBES))
