"""A tree of sessions for people: the output of `show --tree` and `watch --tree`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..client.json_values import tree_event_value, tree_value
from .event_lines import EventLines
from .views import as_json, one_line, plural, table

if TYPE_CHECKING:
    from ...worker.store.children.trees import TreeNode
    from ...worker.store.session_records import Result
    from ..client.client import AgentClient
    from ..client.job import Job
    from ..client.trees import TreeEvent

_HEAD = ("SESSION", "AGENT", "STATUS", "STEPS", "TOKENS", "COST", "WAITS FOR")
_REASON_CHARS = 100


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


def tree_lines(tree: TreeNode, reasons: Mapping[str, str]) -> list[str]:
    """A tree for people: a line for each session, those below another one indented.

    Args:
        reasons: Why sessions have not ended yet, by id.
    """
    count = sum(1 for _ in tree.walk())
    cost = "" if tree.cost is None else f", ${tree.cost:.4f}"
    total = f"{plural(count, 'session')}, {plural(tree.steps, 'step')}, {plural(tree.tokens, 'token')}{cost}"
    return [*table(_HEAD, _rows(tree, reasons, 0)), total]


def tree_event_label(found: TreeEvent) -> str:
    """The agent whose event it is, indented by its depth."""
    return f"{'  ' * (len(found.path) - 1)}{one_line(found.agent)}: "


def _rows(node: TreeNode, reasons: Mapping[str, str], depth: int) -> Iterator[tuple[str, ...]]:
    header = node.header
    cost = "" if node.cost is None else f"${node.cost:.4f}"
    reason = one_line(reasons.get(header.session_id, ""), _REASON_CHARS)
    mark = f"{'  ' * (depth - 1)}└ " if depth else ""
    # A table puts a cell on one line and drops what stands before it, so the mark keeps the place.
    name = f"{mark}{header.session_id}".replace("  ", "· ")
    yield (name, header.agent, str(header.status), str(node.steps), str(node.tokens), cost, reason)
    for child in node.children:
        yield from _rows(child, reasons, depth + 1)
