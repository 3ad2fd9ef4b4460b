"""Arrows point one way: tasks → worker.engine, agent → worker.{store,drivers,tools,concurrency} → worker.state → config.

Within the state: codec → agent_state, views → conversation, execution, parts → values.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions, requires

import pytest

import celery_agents

from support.product import PACKAGE, ROOT, Import, imports, modules

# The longest name that fits decides. A module imports from its own height and from below.
HEIGHT = {
    "config": 0,
    "worker.errors": 1,
    "worker.crash_points": 1,
    "worker.unique": 1,
    "worker.moments": 1,
    "worker.state.values": 2,
    "worker.state.conversation": 3,
    "worker.state.execution": 3,
    "worker.state.parts": 3,
    "worker.state.agent_context": 4,
    "worker.state.agent_fields": 4,
    "worker.state.agent_parts": 4,
    "worker.state.agent_state": 4,
    "worker.state.agent_view": 4,
    "worker.state.views": 4,
    "worker.state.codec": 5,
    "worker.state": 6,
    "worker.known_secrets": 7,
    "worker.secret_values": 7,
    "worker.redaction": 7,
    "worker": 8,
    "worker.agent": 9,
    "worker.engine": 9,
    "worker.session": 9,
    "tasks": 10,
    "demo": 10,
    "testing": 10,
    "": 11,
}

# Where a library may be imported at all, and whether only inside functions, so that the product runs without it.
HOME = {
    "celery": ("tasks", "config"),
    "kombu": ("tasks", "config"),
    "billiard": ("tasks",),
    "redis": ("worker.store",),
    "pydantic_ai": ("worker.drivers", "worker.pydantic_agents", "tasks.client.pydantic_runs", "demo"),
    "openai": ("worker.drivers",),
    "anthropic": ("worker.drivers",),
    "google": ("worker.drivers",),
    "genai_prices": ("worker.drivers",),
    "mcp": ("worker.mcp",),
    "mcp_types": ("worker.mcp",),
    "httpx2": ("worker.mcp",),
    "jsonschema": ("worker.drivers", "worker.mcp", "worker.requests"),
    "flower": ("tasks",),
    "tornado": ("tasks",),
    "prometheus_client": ("tasks",),
    "opentelemetry": ("tasks", "worker.capabilities.tracing"),
    "typer": ("tasks", "demo"),
    "click": ("tasks",),
    "rich": ("tasks", "demo"),
    "pytest": ("testing",),
    "hypothesis": ("testing",),
}
OPTIONAL = {
    "anthropic",
    "flower",
    "genai_prices",
    "google",
    "httpx2",
    "hypothesis",
    "mcp",
    "mcp_types",
    "openai",
    "opentelemetry",
    "prometheus_client",
    "pydantic_ai",
    "pytest",
    "tornado",
}

# Libraries that are part of another one's promise.
COMES_WITH = {
    "anthropic": "pydantic-ai-slim",
    "billiard": "celery",
    "click": "typer",
    "google": "pydantic-ai-slim",
    "httpx2": "mcp",
    "mcp_types": "mcp",
    "openai": "pydantic-ai-slim",
    "pydantic_core": "pydantic",
    "referencing": "jsonschema",
    "tornado": "flower",
}

ALL = [(name, imported) for name, path in modules().items() for imported in imports(name, path)]


def part(name: str) -> str:
    """The key of HEIGHT that a module belongs to."""
    inner = name.removeprefix(PACKAGE).lstrip(".")
    return max((key for key in HEIGHT if key in ("", inner) or inner.startswith(f"{key}.")), key=len)


def within(module: str, home: str) -> bool:
    return f"{module}.".startswith(f"{PACKAGE}.{home}.")


def shown(bad: Iterator[Import]) -> list[str]:
    return [f"{imported.module}:{imported.line} imports {imported.target}" for imported in bad]


def test_imports_point_down() -> None:
    own = (imported for _, imported in ALL if imported.own and imported.target != f"{PACKAGE}.__version__")
    assert shown(i for i in own if not i.types_only and HEIGHT[part(i.target)] > HEIGHT[part(i.module)]) == []


def test_config_knows_nothing_of_ours() -> None:
    assert shown(i for name, i in ALL if part(name) == "config" and i.own and part(i.target) != "config") == []


def test_imports_within_the_product_are_relative() -> None:
    absolute = (
        f"{path}: {line.strip()}"
        for path in modules().values()
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.lstrip().startswith((f"from {PACKAGE}", f"import {PACKAGE}"))
    )
    assert [line for line in absolute if ">>>" not in line] == []


def test_a_library_is_imported_in_its_home_only() -> None:
    abroad = (
        imported
        for name, imported in ALL
        if (homes := HOME.get(imported.distribution_root)) and not any(within(name, home) for home in homes)
    )
    assert shown(abroad) == []


def test_an_optional_library_is_imported_inside_functions_only() -> None:
    eager = (i for _, i in ALL if i.distribution_root in OPTIONAL and not i.lazy)
    # The modules of drivers that need a library are themselves imported inside functions only.
    assert shown(i for i in eager if not is_lazy(i.module)) == []


def is_lazy(module: str) -> bool:
    """Nobody imports it outside of a function, but for modules of which that is true."""
    eager = {i.module for _, i in ALL if i.own and not i.lazy and f"{i.target}.".startswith(f"{module}.")}
    return all(is_lazy(each) for each in eager)


def test_every_library_is_a_declared_requirement() -> None:
    declared = {re.split(r"[^A-Za-z0-9-]", requirement)[0].lower() for requirement in requires(PACKAGE) or ()}
    homes = packages_distributions()
    foreign = {i.distribution_root for _, i in ALL if not i.own} - sys.stdlib_module_names
    undeclared = {name for name in foreign if not _declared(name, homes.get(name, ()), declared)}
    assert undeclared == set()


def _declared(name: str, distributions: Iterable[str], declared: set[str]) -> bool:
    owner = COMES_WITH.get(name)
    return any(dist.lower().replace("_", "-") in declared for dist in ([owner] if owner else distributions))


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import celery_agents", ("celery", "kombu", "redis", "pydantic", "rich", "typer")),
        ("import celery_agents.worker.state", ("celery", "kombu", "redis", "pydantic_ai", "rich", "typer")),
        ("from celery_agents import Agent, tool, ExecutionBudget", ("celery", "kombu", "mcp", "pydantic_ai", "openai")),
        ("import celery_agents.config.settings", ("celery", "redis")),
        (
            "from celery_agents import AgentClient, AsyncAgentClient",
            (
                "celery.concurrency",
                "celery.worker",
                "celery_agents.tasks.app",
                "celery_agents.tasks.consumer",
                "celery_agents.tasks.runtime",
                "celery_agents.worker.engine.runner",
                "kombu.asynchronous",
                "kombu.transport.redis",
                "pydantic_ai",
            ),
        ),
    ],
)
def test_what_is_not_needed_is_not_loaded(statement: str, absent: tuple[str, ...]) -> None:
    code = f"import sys; {statement}; print(*(name for name in {absent!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    assert done.stdout.split() == []


@pytest.mark.parametrize("library", ["celery", "kombu"])
def test_undocumented_attributes_of_a_library_are_touched_in_one_module(library: str) -> None:
    """Each library's private modules and names are the business of `tasks/consumer/<library>_internals.py`."""
    private = {
        "celery": ("celery.worker.state", "celery.worker.control", "celery.concurrency.thread"),
        "kombu": ("kombu.transport.redis", "kombu.utils.eventio", "kombu.asynchronous"),
    }[library]
    allowed = f"{PACKAGE}.tasks.consumer.{library}_internals"
    importers = {name for name, i in ALL if any(f"{i.target}.".startswith(f"{each}.") for each in private)}
    # `maybe_shutdown` is what Celery's own bootsteps call while they wait.
    assert importers - {allowed, f"{PACKAGE}.tasks.consumer.bootstep"} == set()


@pytest.mark.parametrize("name", celery_agents.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(celery_agents, name) is not None


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'agnet'"):
        _ = celery_agents.agnet
