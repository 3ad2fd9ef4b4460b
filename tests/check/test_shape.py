"""The shape of the code: short functions, few arguments, no cycles, docstrings that open plainly, private means private.

`python tests/check/test_shape.py` lists every place; a rule's name after it lists those of this rule.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when it is run by itself

from support.product import PACKAGE, ROOT, imports, modules, tracked_files

LONGEST_FUNCTION: Final = 40
MOST_PARAMETERS: Final = 6
MOST_POSITIONAL: Final = 3
LONGEST_FILE: Final = 600
# Told apart by whoever calls them, and each with a default: what a service writes, and options of the command line.
# A name with a dot is that of one class's method.
MANY_PARAMETERS: Final = frozenset(
    {
        "act_on_many",
        "fork",
        "list",
        "submit",
        "submit_many",
        "send_message",
        "run",
        "assert_survives",
        "tool",
        "script",
        "AgentState.fresh",
        "Agent.as_tool",
        "ToolContext.spawn",
        "RequestVerbs.requests",
        "RequestVerbs.answer",
        "ProviderVerbs.pause",
        "DriverError.__init__",
        "NeedsApproval.__init__",
        "NeedsAnswer.__init__",
        "Schedule.__init__",
        "SpendCap.__init__",
    }
)
COMMAND_LINE: Final = ("tasks/cli/", "demo/")
# A first line that opens so needs another word before one knows what it speaks of.
OPENINGS: Final = ("Who", "Whom", "Whose", "What", "Of", "Those", "Such", "Where")
# Libraries whose private attributes are touched in one place each.
FOREIGN: Final = ("celery", "kombu", "redis", "pydantic", "billiard", "vine")
HOMES_OF_INTERNALS: Final = ("worker/state/values/",)
# Functions that match values from outside, or of which any may come: each other value has an answer of its own.
OPEN_MATCHES: Final = frozenset(
    {
        "demo/narrator.py:describe_event",
        "tasks/cli/request_commands.py:_ask_person",
        "tasks/http/agui_events.py:_message",
        "tasks/http/agui_run.py:_translate",
        "tasks/observability/doctor/workers.py:_examine_entry",
        "testing/databases.py:_read_reply",
        "testing/databases.py:_translate",
        "testing/world.py:at",
        "worker/engine/request_opening.py:_needed_request",
        "worker/guards.py:ask_guards",
        "worker/mcp/session.py:_as_text",
        "worker/requests/schemas.py:_wish",
        "worker/session/redis_store.py:_operation",
        "worker/run_state/view.py:reason",
        "worker/tools/approval.py:stored_rule",
    }
)


@dataclass(frozen=True)
class Source:
    """A module of the product, parsed."""

    module: str
    path: str
    tree: ast.Module = field(repr=False)


@cache
def sources() -> tuple[Source, ...]:
    """All of the product's modules."""
    return tuple(
        Source(name, str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8")))
        for name, path in modules().items()
    )


Functions = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Functions]:
    for node in ast.walk(tree):
        if isinstance(node, Functions):
            yield node


def is_command_line(source: Source) -> bool:
    return source.path.startswith(COMMAND_LINE)


# --- rules: each gives its violations, as file:line and a sentence ----------------------------------------------------


def long_functions() -> Iterator[str]:
    """Functions of more lines than fit on a screen.

    A docstring does not count: it is the contract, which is read without the code, and a rule against long functions
    must not make a contract shorter.
    """
    for source in sources():
        for node in functions(source.tree):
            lines = _line_count(node) - _docstring_lines(node)
            if lines > LONGEST_FUNCTION and not is_command_line(source):
                yield f"{source.path}:{node.lineno} {node.name} has {lines} lines"


def _line_count(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _docstring_lines(node: Functions) -> int:
    return _line_count(node.body[0]) if ast.get_docstring(node) is not None else 0


def many_parameters() -> Iterator[str]:
    """Functions with more parameters than a call can be read with; such a list is a value that has no name yet."""
    for source in sources():
        if is_command_line(source):
            continue
        methods = _methods(source.tree)
        for node in functions(source.tree):
            names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            count = len([name for name in names if name not in ("self", "cls")])
            if count > MOST_PARAMETERS and not {node.name, methods.get(node, node.name)} & MANY_PARAMETERS:
                yield f"{source.path}:{node.lineno} {node.name} has {count} parameters"


def _methods(tree: ast.AST) -> dict[Functions, str]:
    """The methods of a module's classes, with `Class.method`."""
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {each: f"{cls.name}.{each.name}" for cls in classes for each in cls.body if isinstance(each, Functions)}


def positional_constructors() -> Iterator[str]:
    """Constructor calls in which one has to count to know what a value is for."""
    ours = {node.name for s in sources() for node in ast.walk(s.tree) if isinstance(node, ast.ClassDef)}
    for source in sources():
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.Call) or len(node.args) <= MOST_POSITIONAL:
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            own_class = {cls.name for cls in ast.walk(source.tree) if isinstance(cls, ast.ClassDef)}
            is_cls = name == "cls" and own_class
            if name in ours or is_cls:
                yield f"{source.path}:{node.lineno} {name}(…) with {len(node.args)} positional arguments"


def missing_docstrings() -> Iterator[str]:
    """Public modules, classes, functions and methods that say nothing of themselves.

    Protocol stubs count. Special methods, overloads and functions within functions do not, and neither does a method whose
    base class or Protocol says what it does.
    """
    said = _documented_methods()
    for source in sources():
        if ast.get_docstring(source.tree) is None:
            yield f"{source.path}:1 the module has no docstring"
        yield from _undocumented(source, source.tree, said, inherited=frozenset())


def _documented_methods() -> dict[str, set[str]]:
    """The documented methods of each class; those of all Protocols stand under "Protocol"."""
    said: dict[str, set[str]] = {}
    for source in sources():
        for cls in ast.walk(source.tree):
            if isinstance(cls, ast.ClassDef):
                methods = {m.name for m in cls.body if isinstance(m, Functions) and ast.get_docstring(m)}
                said.setdefault(cls.name, set()).update(methods)
                if "Protocol" in _bases(cls):
                    said.setdefault("Protocol", set()).update(methods)
    return said


def _bases(cls: ast.ClassDef) -> set[str]:
    """Names of the base classes, without their type arguments."""
    return {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in cls.bases}


def _undocumented(
    source: Source, parent: ast.AST, said: Mapping[str, set[str]], *, inherited: frozenset[str]
) -> Iterator[str]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.If | ast.Try):
            yield from _undocumented(source, node, said, inherited=inherited)
        if not isinstance(node, Functions | ast.ClassDef) or node.name.startswith("_") or _is_overload(node):
            continue
        if ast.get_docstring(node) is None and node.name not in inherited:
            yield f"{source.path}:{node.lineno} {node.name} has no docstring"
        if isinstance(node, ast.ClassDef):
            promised = [said.get(base, set()) for base in _bases(node)]
            if "Protocol" not in _bases(node):  # it may implement one without naming it
                promised.append(said.get("Protocol", set()))
            yield from _undocumented(source, node, said, inherited=frozenset().union(*promised))


def _is_overload(node: Functions | ast.ClassDef) -> bool:
    """An overload, or the setter of a property."""
    words = [ast.unparse(each) for each in node.decorator_list]
    return any(word.endswith(("overload", ".setter")) for word in words)


def import_cycles() -> Iterator[str]:
    """Modules that import each other; an import inside a function is one all the same, one for types alone is none."""
    named = modules()
    graph: dict[str, dict[str, int]] = {name: {} for name in named}
    for name, path in named.items():
        for imported in imports(name, path):
            if not imported.own or imported.types_only:
                continue
            target = imported.target if imported.target in named else imported.target.rpartition(".")[0]
            # A package's __init__ gathers its modules, which is no dependency of a module on its own package.
            if target in named and not name.startswith(f"{target}.") and target != name:
                graph[name].setdefault(target, imported.line)
    for cycle in _cycles(graph):
        first = named[cycle[0]].relative_to(ROOT)
        shown = " → ".join(name.removeprefix(f"{PACKAGE}.") for name in cycle)
        yield f"{first}:{graph[cycle[0]][cycle[1]]} {shown}"


def _cycles(graph: Mapping[str, Mapping[str, int]]) -> Iterator[list[str]]:
    """One cycle for each module from which a walk comes back to itself."""
    finished: set[str] = set()

    def walk(name: str, path: list[str]) -> Iterator[list[str]]:
        if name in path:
            yield [*path[path.index(name) :], name]
        elif name not in finished:
            for target in sorted(graph[name]):
                yield from walk(target, [*path, name])
            finished.add(name)

    for name in sorted(graph):
        yield from walk(name, [])


def long_files() -> Iterator[str]:
    """Files in which one does not find what one looks for."""
    for path in tracked_files():
        if path.suffix == ".py":
            lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
            if lines > LONGEST_FILE:
                yield f"{path}:{lines} the file has {lines} lines"


def puzzling_openings() -> Iterator[str]:
    """First docstring lines that begin with a relative clause or a fragment."""
    for source in sources():
        documented = (ast.Module, ast.ClassDef, *Functions.__args__)
        for node in ast.walk(source.tree):
            text = ast.get_docstring(node) if isinstance(node, documented) else None
            word = (text or "").split(maxsplit=1)[0].rstrip(",:;") if text and text.strip() else ""
            if word in OPENINGS:
                line = 1 if isinstance(node, ast.Module) else node.lineno  # type: ignore[union-attr]
                yield f"{source.path}:{line} begins with {word!r}: {(text or '').splitlines()[0]}"


def foreign_internals() -> Iterator[str]:
    """Private names of other libraries, outside of the modules that look for them when a worker starts.

    What can be said of the text alone: an attribute `_x` of a name that was imported from such a library, or one imported
    by name, or pydantic's `__pydantic_…__`.
    """
    for source in sources():
        if _may_touch_internals(source):
            continue
        foreign = set(_foreign_names(source))
        for node in ast.walk(source.tree):
            if (isinstance(node, ast.Attribute) and _is_private(node.attr) and _root(node) in foreign) or (
                isinstance(node, ast.Attribute) and node.attr.startswith("__pydantic_")
            ):
                yield f"{source.path}:{node.lineno} {ast.unparse(node)}"
            elif isinstance(node, ast.ImportFrom) and _is_foreign(node.module):
                for alias in node.names:
                    if _is_private(alias.name):
                        yield f"{source.path}:{node.lineno} {node.module}.{alias.name}"


def _may_touch_internals(source: Source) -> bool:
    in_consumer = source.path.startswith("tasks/consumer/") and source.path.endswith("_internals.py")
    return in_consumer or source.path.startswith(HOMES_OF_INTERNALS)


def _foreign_names(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and _is_foreign(node.module):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((a.asname or a.name).partition(".")[0] for a in node.names if _is_foreign(a.name))


def _is_foreign(module: str | None) -> bool:
    return (module or "").partition(".")[0] in FOREIGN


def _is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def _root(node: ast.expr) -> str:
    """The name that a chain of attributes begins with."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def unfinished_matches() -> Iterator[str]:
    """Matches that a new member of a closed set falls through, or that treat it like another one."""
    for source in sources():
        for function in functions(source.tree):
            place = f"{source.path}:{function.name}"
            for node in ast.walk(function):
                if isinstance(node, ast.Match) and place not in OPEN_MATCHES and not _asserts_never(node.cases[-1]):
                    yield f"{source.path}:{node.lineno} {function.name}: the last case asserts nothing"


def _asserts_never(case: ast.match_case) -> bool:
    return ast.unparse(case) == "case _ as never:\n    assert_never(never)"


RULES: Final[Sequence[Callable[[], Iterator[str]]]] = (
    long_functions,
    many_parameters,
    positional_constructors,
    missing_docstrings,
    import_cycles,
    long_files,
    puzzling_openings,
    foreign_internals,
    unfinished_matches,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_code_has_its_shape(rule: Callable[[], Iterator[str]]) -> None:
    found = list(rule())
    assert not found, f"{rule.__doc__}\n" + "\n".join(found)


def main(names: Sequence[str]) -> int:
    """Print every violation of the named rules, or of all."""
    count = 0
    for rule in RULES:
        if names and rule.__name__ not in names:
            continue
        found = list(rule())
        count += len(found)
        print(f"{rule.__name__}: {len(found)}", *(f"  {line}" for line in found), sep="\n")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
