"""A tree of sessions as lines for people, and its events with the place they come from. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from .views import one_line, plural, table

if TYPE_CHECKING:
    from ...worker.store import TreeNode
    from ..client.trees import TreeEvent

_HEAD = ("SESSION", "AGENT", "STATUS", "STEPS", "TOKENS", "COST", "WAITS FOR")
_REASON_CHARS = 100


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
