"""Every example, and every Python block of the pages, passes mypy --strict and pyright strict."""

from __future__ import annotations

import importlib
import inspect
import shutil
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

import celery_agents

from support.documents import ROOT, read_document
from support.types import check_with_mypy, check_with_pyright

PAGES = ("README.md", *(f"docs/{name}.md" for name in (
    "quickstart", "agents", "capabilities", "runs", "people", "services", "testing", "replace-your-task", "sessions", "mcp",
    "children", "smart", "live", "guards", "hooks", "results", "events", "operating", "pydantic-ai", "providers",
)))  # fmt: skip


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """All of them, each in a folder of its own as its reader has it, and a service that uses each verb of the async client."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(ROOT / "examples", folder / "examples")
    for page in PAGES:
        target = folder / Path(page).stem
        target.mkdir()
        read_document(page).write(target)
    verbs = [name for name in dir(celery_agents.AsyncAgentClient) if not name.startswith("_")]
    lines = ["from celery_agents import AsyncAgentClient", "def use(client: AsyncAgentClient) -> None:"]
    (folder / "verbs").mkdir()
    (folder / "verbs/service.py").write_text("\n".join([*lines, *(f"    print(client.{verb})" for verb in verbs)]))
    return folder, [str(path.relative_to(folder)) for path in sorted(folder.iterdir())]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pyright_finds_nothing(examples: tuple[Path, list[str]]) -> None:
    folder, paths = examples
    check_with_pyright(folder, *paths)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_mypy_finds_nothing(examples: tuple[Path, list[str]]) -> None:
    folder, paths = examples
    for path in paths:
        for project in sorted((folder / path).iterdir()) if path == "examples" else [folder / path]:
            if any(project.rglob("*.py")):  # one is a page alone
                check_with_mypy(project, ".")


def named_classes(annotation: object) -> Iterator[type]:
    """The classes that an annotation names, also within its arguments."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        yield annotation
    for argument in typing.get_args(annotation):
        if isinstance(argument, list):
            for each in argument:
                yield from named_classes(each)
        else:
            yield from named_classes(argument)


# Signatures that a service or an agent's module writes against; the values' own methods have names of the state.
FRONT = (
    "Agent", "AgentClient", "AsyncAgentClient", "Guard", "Hook", "HookContext", "Job", "StopWith", "GuardView",
    "ToolContext", "Capability", "install", "tool",
)  # fmt: skip
# Described by Protocols that users implement rarely, in the pages on tools and drivers.
NOT_EXPORTED = frozenset({
    "AgentRegistry", "Driver", "FunctionTool", "HookStack", "MessageCompiler", "Store", "Tool", "ToolSet", "Effect",
    "ExecutionState", "TokenPurpose",
})  # fmt: skip


def test_the_root_or_a_package_that_it_names_exports_what_its_signatures_name() -> None:
    homes = [
        importlib.import_module(f"celery_agents.{each}")
        for each in (
            *celery_agents._MOVED,
            "tasks.client.archiving",
            "tasks.client.bulk",
            "tasks.client.erasing",
            "tasks.client.forking",
            "tasks.client.messages",
            "tasks.client.pending",
            "tasks.client.spending",
            "flow",
        )
    ]
    exported = {name for home in homes for name in dir(home)} | set(celery_agents.__all__)
    missing: set[str] = set()
    for name in FRONT:
        value = getattr(celery_agents, name)
        members = [value] if inspect.isfunction(value) else [
            member for key, member in inspect.getmembers(value) if not key.startswith("_") or key == "__init__"
        ]  # fmt: skip
        for member in members:
            if not inspect.isfunction(member):
                continue
            try:
                hints = typing.get_type_hints(member)
            except NameError:  # named for type checkers only
                continue
            for hint in hints.values():
                missing |= {
                    each.__name__ for each in named_classes(hint) if each.__module__.startswith("celery_agents.")
                }
    assert sorted(missing - exported - NOT_EXPORTED) == []


def test_every_root_name_can_be_imported_and_the_root_stays_light() -> None:
    code = (
        "import sys, celery_agents\n"
        "assert not {'celery', 'kombu', 'redis', 'pydantic', 'pydantic_ai'} & set(sys.modules)\n"
        "from celery_agents import AgentState, Message, StopReason, StopSignal, ErrorInfo, ExecutionStatus, AgentStep\n"
        "from celery_agents import LLMConfig\n"
        "assert not {'celery', 'kombu', 'redis', 'pydantic_ai'} & set(sys.modules)\n"
        "for name in celery_agents.__all__: getattr(celery_agents, name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
