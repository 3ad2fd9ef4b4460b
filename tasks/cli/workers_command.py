"""The command `workers`: which workers live, and which queues and agents they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .options import AsJson, RedisUrl, client_for
from .views import as_json, clean, table

_HEAD: Final = ("WORKER", "VERSION", "POOL", "BUSY", "QUEUES", "AGENTS")


def workers(json: AsJson = False, redis_url: RedisUrl = None) -> None:
    """List the live workers with their version, slots, queues and agents.

    With --json each worker is an object on a line.

    \b
    Examples:
      celery-agents workers
      celery-agents workers --json | jq .queues
    """
    found = client_for(redis_url).workers()
    if json:
        lines = [as_json({"name": name, **facts}) for name, facts in sorted(found.items())]
    else:
        lines = table(_HEAD, [_row(name, facts) for name, facts in sorted(found.items())])
    for line in lines:
        print(line)


def _row(name: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    from ..observability.queue_names import shown_queues

    busy = f"{facts['running']} of {facts['slots']}{', drains' if facts['draining'] else ''}"
    queues, agents = ", ".join(shown_queues(facts)), ", ".join(sorted(facts["agents"]))
    cells = (name, facts["version"], facts["pool"], busy, queues, agents)
    return tuple(clean(str(cell)) or "-" for cell in cells)
