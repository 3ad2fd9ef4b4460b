"""Writes the reference pages from the code: settings, results, events, errors, guards, hooks, the command line.

    python docs/reference.py            writes what is between the marks of each page
    python docs/reference.py --check    names the pages that are not as the code says, and ends with 1

The text around the marks is written by hand and stays.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import typer

from celery_agents.config.settings import PREFIX, Settings
from celery_agents.tasks.cli.program import program
from celery_agents.worker import errors, guards, hooks
from celery_agents.worker.state import PRIORITIES, ExecutionBudget, FinishReason, StopReason
from celery_agents.worker.store import Event, EventType, Result, SessionState

DOCS: Final = Path(__file__).parent
_MARKS: Final = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_WIDTH: Final = 100
Rows = Iterator[tuple[str, ...]]


def attributes(documented: type) -> dict[str, str]:
    """The entries of a class docstring's `Attributes`, by name."""
    text = inspect.getdoc(documented) or ""
    _, _, section = text.partition("Attributes:\n")
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        entry = re.match(r" {4}(\w+): (.*)", line)
        if entry:
            name = entry[1]
            found[name] = entry[2]
        elif name and line.startswith(" " * 8):
            found[name] += f" {line.strip()}"
        else:
            name = ""
    return found


def table(head: tuple[str, ...], rows: Rows) -> str:
    """A Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(_escape(cell) for cell in line)} |\n" for line in lines)


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|")


def settings() -> str:
    """Every setting with its default and its meaning."""
    rows = (
        (f"`{PREFIX}{name.upper()}`", _default(field.default), field.description or "")
        for name, field in Settings.model_fields.items()
    )
    return table(("variable", "default", "meaning"), rows)


def _default(value: Any) -> str:
    return "–" if value is None else "empty" if value == "" else f"`{value}`"


def result() -> str:
    """The fields of a result."""
    described = attributes(Result)
    kinds = inspect.get_annotations(Result)
    rows = ((f"`{name}`", f"`{kind}`", described.get(name, _PLAIN.get(name, ""))) for name, kind in kinds.items())
    return table(("field", "type", "meaning"), rows)


_PLAIN: Final = {
    "session_id": "The session.",
    "execution_id": "The execution.",
    "step_count": "Steps that the execution has.",
}


def reasons() -> str:
    """The stop reasons by rank."""
    rows = (
        (f"`{reason.value}`", str(PRIORITIES[reason]), _KIND_OF_END[_ends_as(reason)])
        for reason in sorted(StopReason, key=lambda reason: PRIORITIES[reason])
    )
    return table(("reason", "rank", "ends the execution as"), rows)


def _ends_as(reason: StopReason) -> str:
    if reason in (StopReason.ERROR_FORBADE, StopReason.RETRY_LIMIT_REACHED):
        return "failed"
    if reason is StopReason.TIME_LIMIT_REACHED:
        return "timed out"
    if reason is StopReason.FINISH_REASON_RECEIVED:
        return "cut"
    return "stopped" if reason.was_force_stopped() else "completed"


_KIND_OF_END: Final = {
    "failed": "failed",
    "stopped": "stopped",
    "timed out": "stopped; failed where it was a step's own time that ran out",
    "completed": "completed",
    "cut": "stopped where the answer is cut short, completed otherwise",
}


def finish() -> str:
    """The finish reasons of a model."""
    rows = ((f"`{reason.value}`", "yes" if reason.is_cut_short() else "no") for reason in FinishReason)
    return table(("finish reason", "the answer is cut short"), rows)


def budget() -> str:
    """The limits of a budget."""
    described = attributes(ExecutionBudget)
    return table(("limit", "meaning"), ((f"`{name}`", described[name]) for name in ExecutionBudget.model_fields))


def statuses() -> str:
    """The statuses that a listing shows."""
    described = attributes(SessionState)
    rows = ((f"`{each.value}`", described.get(each.name, _OF_EXECUTION)) for each in SessionState)
    return table(("status", "meaning"), rows)


_OF_EXECUTION: Final = "The status of its execution; see [its lifecycle](lifecycle.md)."


def events() -> str:
    """The types of events and their data."""
    described = attributes(EventType)
    return table(("type", "meaning and data"), ((f"`{each.value}`", described[each.name]) for each in EventType))


def event() -> str:
    """The fields of an event."""
    described = {**_EVENT, **attributes(Event)}
    return table(("field", "meaning"), ((f"`{name}`", described[name]) for name in inspect.get_annotations(Event)))


_EVENT: Final = {
    "session_id": "The session.",
    "execution_id": "The execution that it belongs to.",
    "step": "The step that it is about, or the number of steps that the execution has.",
    "data": "Facts by type of event, see below.",
}


def tree() -> str:
    """The errors as a tree with what each says."""
    lines = list(_error_lines(errors.CeleryAgentsError, 0))
    return "".join(f"{line}\n" for line in lines)


def _error_lines(kind: type[Exception], depth: int) -> Iterator[str]:
    first = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
    fields = attributes(kind)
    data = f" Data: {', '.join(f'`{name}`' for name in fields)}." if fields else ""
    yield f"{'  ' * depth}- `{kind.__name__}`: {first}{data}"
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _error_lines(child, depth + 1)


def hook_points() -> str:
    """The hook points, and what a hook may change there."""
    described = attributes(hooks.HookPoint)
    rows = (
        (f"`{point.name}`", described[point.name], ", ".join(f"`{name}`" for name in sorted(hooks.CHANGES[point])))
        for point in hooks.HookPoint
    )
    return table(("point", "when", "may change"), rows)


def context() -> str:
    """The fields of a hook's context."""
    described = {"session_id": "The session.", "execution_id": "The execution.", "step": "The step, from 1."}
    described |= attributes(hooks.HookContext)
    names = inspect.get_annotations(hooks.HookContext)
    return table(("field", "meaning"), ((f"`{name}`", described[name]) for name in names))


def guard_points() -> str:
    """The points at which guards are asked."""
    described = attributes(guards.GuardPoint)
    return table(("point", "when"), ((f"`{each.name}`", described[each.name]) for each in guards.GuardPoint))


def verdicts() -> str:
    """The answers of a guard."""
    kinds = (guards.Proceed, guards.StopWith, guards.Delay)
    return table(("verdict", "meaning"), ((f"`{kind.__name__}{_arguments(kind)}`", _first(kind)) for kind in kinds))


def _arguments(kind: type) -> str:
    """The arguments of a constructor, as they are written in the code."""
    return re.sub(r": '([^']+)'", r": \1", str(inspect.signature(kind)).partition(" -> ")[0])


def built_in() -> str:
    """The guards that come with the package."""
    kinds = (guards.BudgetGuard, guards.FinishReasonGuard)
    return table(("guard", "what it does"), ((f"`{kind.__name__}`", _first(kind)) for kind in kinds))


def _first(documented: Any) -> str:
    text = (inspect.getdoc(documented) or "").partition("Attributes:")[0].strip()
    return re.sub(r"\s+", " ", text)


def commands() -> str:
    """The help of every command."""
    group: Any = typer.main.get_command(program)  # typer's own kind of click
    widths = {"terminal_width": _WIDTH, "max_content_width": _WIDTH}
    parent = group.context_class(group, info_name="celery-agents", **{**group.context_settings, **widths})
    parts = [f"```\n{_help(group, parent)}\n```\n"]
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        own = command.context_class(command, info_name=name, parent=parent, **widths)
        parts.append(f"## {name}\n\n```\n{_help(command, own)}\n```\n")
    return "\n".join(parts)


def _help(command: Any, own: Any) -> str:
    text: str = command.get_help(own).strip()
    return "\n".join(line.rstrip() for line in text.splitlines())


PARTS: Final[Mapping[str, Callable[[], str]]] = {
    part.__name__: part
    for part in (
        settings, result, reasons, finish, budget, statuses, events, event, tree, hook_points, context, guard_points,
        verdicts, built_in, commands,
    )
}  # fmt: skip


def render(text: str) -> str:
    """A page with what the code says between its marks."""
    return _MARKS.sub(lambda match: f"{match[1]}\n{PARTS[match[2]]()}\n{match[3]}", text)


def pages() -> list[Path]:
    """The pages with marks."""
    return sorted(page for page in DOCS.glob("*.md") if _MARKS.search(page.read_text(encoding="utf-8")))


def main() -> int:
    """Write the pages, or name those that are not as the code says."""
    stale = [page for page in pages() if render(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8")]
    for page in stale:
        print(page.name)
        if "--check" not in sys.argv:
            page.write_text(render(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
