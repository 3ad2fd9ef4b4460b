"""The output of `show --tree` and `watch --tree`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ..client.json_values import tree_event_value, tree_value
from .event_lines import EventLines
from .tree_views import tree_event_label, tree_lines
from .views import as_json

if TYPE_CHECKING:
    from ...worker.store import Result
    from ..client.client import AgentClient
    from ..client.job import Job


def show_tree(client: AgentClient, session_id: str, *, json: bool) -> None:
    """Print a session with the sessions below it, what they have used, and why they have not ended."""
    from ..observability.waiting_reasons import waiting_reason

    found, workers = client.tree(session_id), client.store.registry.workers()
    reasons = {node.session_id: waiting_reason(client.store, node.header, workers) for node in found.walk()}
    print(as_json(tree_value(found, reasons)) if json else "\n".join(tree_lines(found, reasons)))


def follow_tree(client: AgentClient, job: Job, timeout_seconds: float | None, *, json: bool) -> Result:
    """Print the events of a tree until its root ends; give the root's result.

    Raises:
        TimeoutError: It has not ended in time; it goes on.
        KeyboardInterrupt: Ctrl-C was pressed; it goes on, and the terminal says how to look again.
    """
    lines = EventLines()
    try:
        for found in client.tree_events(job.session_id, timeout=timeout_seconds):
            line = as_json(tree_event_value(found)) if json else lines.line(found.event, tree_event_label(found))
            if line is not None:
                print(line, flush=True)
        return job.result(timeout=timeout_seconds)
    except (KeyboardInterrupt, TimeoutError):
        print(f"the job goes on; look again with: celery-agents watch {job.session_id} --tree", file=sys.stderr)
        raise
