"""Arrows point one way: tasks → worker.engine, agent → worker.{store,drivers,tools,concurrency} → worker.state → config.

Within the state: codec → agent_state, views → conversation, execution, parts → values.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions, requires
from typing import Final

import pytest

import celery_agents

from support.product import PACKAGE, ROOT, Import, imports, modules

# The longest name that fits decides. A module imports from its own height and from below.
HEIGHT = {
    "config": 0,
    "worker.errors": 1,
    "worker.crash_points": 1,
    "worker.lazy_names": 1,
    "worker.unique": 1,
    "worker.moments": 1,
    "worker.recent": 1,
    "worker.state.values": 2,
    "worker.state.conversation": 3,
    "worker.state.execution": 3,
    "worker.state.parts": 3,
    "worker.state.agent_fields": 4,
    "worker.state.agent_parts": 4,
    "worker.state.agent_state": 4,
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

# The rooms, and the modules beside them, with the rooms that each imports from. A new arrow is written here on purpose.
ARROWS: Final[Mapping[str, str]] = {
    "__main__": "tasks.cli",
    "demo": (
        "tasks.client tasks.local tasks.own_app worker.agent worker.drivers worker.errors worker.state "
        "worker.store worker.tools"
    ),
    "tasks": "config tasks.app",
    "tasks.agent_modules": "config worker.agent",
    "tasks.app": "config tasks.consumer tasks.controls tasks.producer tasks.runtime tasks.step",
    "tasks.broker_connections": "config worker.store",
    "tasks.broker_keys": "config worker.store",
    "tasks.channels": "worker.store",
    "tasks.cli": (
        "config demo tasks.client tasks.http tasks.local tasks.observability tasks.producer worker.engine worker.errors "
        "worker.flow worker.known_secrets worker.moments worker.requests worker.secret_values worker.state worker.store"
    ),
    "tasks.client": (
        "config tasks.housekeeping tasks.observability tasks.producer tasks.publishing worker.archive "
        "worker.capabilities worker.concurrency worker.drivers worker.engine worker.errors worker.flow worker.moments "
        "worker.pydantic_agents worker.redaction worker.requests worker.session worker.state worker.store"
    ),
    "tasks.consumer": (
        "config tasks.agent_modules tasks.broker_connections tasks.broker_keys tasks.channels tasks.housekeeping "
        "tasks.names tasks.observability tasks.own_app tasks.producer tasks.runtime tasks.step_message worker.concurrency worker.errors worker.flow "
        "worker.known_secrets worker.redaction worker.store worker.unique"
    ),
    "tasks.controls": ("config tasks.client tasks.consumer tasks.names worker.errors worker.state worker.store"),
    "tasks.housekeeping": (
        "config tasks.client tasks.observability tasks.publishing tasks.runtime worker.concurrency "
        "worker.crash_points worker.errors "
        "worker.flow worker.redaction worker.state worker.store"
    ),
    "tasks.http": (
        "config tasks.client tasks.observability worker.capabilities worker.drivers worker.errors worker.flow "
        "worker.known_secrets worker.moments worker.requests worker.state worker.store"
    ),
    "tasks.local": (
        "config tasks.agent_modules tasks.app tasks.consumer worker.errors worker.known_secrets worker.store"
    ),
    "tasks.message_template": "config tasks.broker_keys tasks.names worker.store worker.unique",
    "tasks.names": "config",
    "tasks.observability": (
        "config tasks.app tasks.broker_keys tasks.channels tasks.client tasks.consumer tasks.names tasks.own_app "
        "tasks.publishing worker.agent worker.capabilities worker.drivers worker.engine worker.errors worker.flow "
        "worker.known_secrets worker.moments worker.redaction worker.spans worker.state worker.store worker.tools"
    ),
    "tasks.producer": "config tasks.channels tasks.names tasks.own_app worker.errors",
    "tasks.publishing": "config tasks.broker_connections tasks.message_template tasks.names worker.errors worker.store",
    "tasks.runtime": (
        "config tasks.agent_modules tasks.broker_keys tasks.client tasks.consumer tasks.housekeeping "
        "tasks.observability "
        "tasks.publishing worker.concurrency worker.crash_points worker.engine "
        "worker.errors worker.flow worker.known_secrets worker.mcp worker.redaction worker.store"
    ),
    "tasks.step": (
        "config tasks.names tasks.runtime tasks.step_message worker.crash_points "
        "worker.engine worker.errors worker.state worker.store"
    ),
    "tasks.step_message": "worker.errors worker.state worker.store",
    "testing": (
        "config worker.agent worker.concurrency worker.crash_points worker.drivers worker.engine "
        "worker.errors worker.moments worker.requests worker.state worker.store worker.tools"
    ),
    "flow": "worker.flow",
    "worker.agent": (
        "config worker.agent_checks worker.capabilities worker.capability worker.drivers worker.errors worker.flow worker.guards "
        "worker.hooks worker.mcp worker.pydantic_agents worker.state worker.tools"
    ),
    "worker.agent_checks": "config worker.drivers worker.errors worker.state worker.tools",
    "worker.archive": "config worker.errors",
    "worker.capabilities": (
        "config worker.capability worker.concurrency worker.drivers worker.errors worker.guards worker.hooks worker.known_secrets "
        "worker.lazy_names worker.recent worker.redaction worker.requests worker.run_state worker.spans "
        "worker.state worker.tools"
    ),
    "worker.capability": "worker.errors worker.guards worker.hooks worker.state worker.tools",
    "worker.drivers": (
        "config worker.errors worker.flow worker.lazy_names worker.recent worker.redaction worker.state worker.tool_schemas "
        "worker.tools"
    ),
    "worker.engine": (
        "config worker.agent worker.capability worker.concurrency worker.crash_points worker.drivers "
        "worker.errors worker.flow worker.guards worker.hooks worker.known_secrets worker.lazy_names worker.mcp "
        "worker.moments worker.recent worker.redaction worker.requests worker.state worker.store worker.tools worker.unique"
    ),
    "worker.flow": "worker.errors worker.moments worker.state",
    "worker.guards": "worker.concurrency worker.errors worker.state worker.tools",
    "worker.hooks": "worker.concurrency worker.drivers worker.errors worker.redaction worker.state worker.tools",
    "worker.known_secrets": "worker.secret_values",
    "worker.mcp": (
        "config worker.concurrency worker.errors worker.known_secrets worker.lazy_names worker.redaction "
        "worker.requests worker.secret_values worker.state worker.tool_schemas worker.tools"
    ),
    "worker.pydantic_agents": (
        "worker.drivers worker.errors worker.flow worker.guards worker.known_secrets worker.lazy_names worker.recent "
        "worker.redaction worker.requests worker.state worker.tools"
    ),
    "worker.secret_values": "config",
    "worker.redaction": "worker.errors worker.known_secrets worker.state",
    "worker.requests": "worker.errors worker.lazy_names worker.state worker.tool_schemas",
    "worker.run_state": "worker.errors worker.lazy_names worker.state",
    "worker.session": (
        "config worker.agent worker.capability worker.concurrency worker.drivers worker.engine worker.errors "
        "worker.lazy_names worker.moments worker.redaction worker.state worker.store worker.tools "
        "worker.unique"
    ),
    "worker.spans": "worker.state",
    "worker.state": "worker.errors worker.lazy_names",
    "worker.store": (
        "config worker.archive worker.concurrency worker.crash_points worker.errors worker.flow worker.lazy_names "
        "worker.moments "
        "worker.redaction worker.state worker.tools worker.unique"
    ),
    "worker.tool_schemas": "worker.state",
    "worker.tools": (
        "worker.errors worker.flow worker.known_secrets worker.lazy_names worker.redaction worker.requests worker.state"
    ),
}

# What a worker process is made of imports itself in a circle. Nothing else may, and nothing may join.
WORKER_PROCESS: Final = frozenset(
    [
        "tasks.app",
        "tasks.client",
        "tasks.consumer",
        "tasks.controls",
        "tasks.housekeeping",
        "tasks.observability",
        "tasks.runtime",
        "tasks.step",
    ]
)

# Where a library may be imported at all, and whether only inside functions, so that the product runs without it.
HOME = {
    "celery": ("tasks", "config"),
    "kombu": ("tasks", "config"),
    "billiard": ("tasks",),
    "redis": ("worker.store",),
    "backports": ("worker.archive", "worker.store"),
    "compression": ("worker.archive", "worker.store"),
    "sqlalchemy": ("worker.archive",),
    "psycopg": ("worker.archive",),
    "pydantic_ai": ("worker.drivers", "worker.pydantic_agents", "tasks.client.pydantic_runs", "demo"),
    "openai": ("worker.drivers",),
    "anthropic": ("worker.drivers",),
    "google": ("worker.drivers",),
    "genai_prices": ("worker.drivers",),
    "cronsim": ("worker.flow",),
    "mcp": ("worker.mcp",),
    "mcp_types": ("worker.mcp",),
    "httpx2": ("worker.mcp",),
    "jsonschema": ("worker.drivers", "worker.requests", "worker.tool_schemas"),
    "flower": ("tasks",),
    "tornado": ("tasks",),
    "prometheus_client": ("tasks",),
    "opentelemetry": ("tasks", "worker.capabilities.tracing"),
    "requests": ("worker.capabilities.tracing",),
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
    "psycopg",
    "pydantic_ai",
    "pytest",
    "requests",
    "sqlalchemy",
    "tornado",
}

# Libraries that are part of another one's promise.
COMES_WITH = {
    "anthropic": "pydantic-ai-slim",
    "backports": "backports.zstd",
    "billiard": "celery",
    "click": "typer",
    "compression": "backports.zstd",
    "google": "pydantic-ai-slim",
    "httpx2": "mcp",
    "mcp_types": "mcp",
    "openai": "pydantic-ai-slim",
    "pydantic_core": "pydantic",
    "referencing": "jsonschema",
    "requests": "opentelemetry-exporter-otlp-proto-http",
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


def room(name: str) -> str:
    """The room of a module, or the module itself where it is in none; "" for the package."""
    parts = name.removeprefix(PACKAGE).lstrip(".").split(".")
    return ".".join(parts[:2]) if parts[0] in ("worker", "tasks") else parts[0]


def arrows() -> dict[str, set[str]]:
    """The rooms that each room imports from; what is imported for types only does not count."""
    known, found = modules(), dict[str, set[str]]()
    for name, imported in ALL:
        target = imported.target
        while target not in known and "." in target:
            target = target.rpartition(".")[0]
        if imported.own and not imported.types_only and room(name) not in ("", room(target)) and target != PACKAGE:
            found.setdefault(room(name), set()).add(room(target))
    return found


def test_each_room_imports_from_the_rooms_that_are_listed_and_from_no_other() -> None:
    found = {(name, each) for name, targets in arrows().items() for each in targets}
    listed = {(name, each) for name, targets in ARROWS.items() for each in targets.split()}
    assert (sorted(found - listed), sorted(listed - found)) == ([], []), "new, and no longer there"


def test_rooms_import_in_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for name, targets in arrows().items():
        merged = "a worker process" if name in WORKER_PROCESS else name
        mine = {"a worker process" if each in WORKER_PROCESS else each for each in targets} - {merged}
        graph.setdefault(merged, set()).update(mine)
    TopologicalSorter(graph).prepare()  # it raises CycleError, with the circle


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
    declared = {re.split(r"[^A-Za-z0-9.-]", requirement)[0].lower() for requirement in requires(PACKAGE) or ()}
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


def test_undocumented_attributes_of_libraries_are_touched_in_one_module() -> None:
    """Private modules and names of libraries are the business of `tasks/consumer/internals.py`."""
    private = (
        "celery.worker.state", "celery.worker.control", "celery.concurrency.thread",
        "kombu.transport.redis", "kombu.utils.eventio", "kombu.asynchronous",
    )  # fmt: skip
    allowed = f"{PACKAGE}.tasks.consumer.internals"
    importers = {name for name, i in ALL if any(f"{i.target}.".startswith(f"{each}.") for each in private)}
    # `maybe_shutdown` is what Celery's own bootsteps call while they wait.
    assert importers - {allowed, f"{PACKAGE}.tasks.consumer.bootstep"} == set()


@pytest.mark.parametrize("name", celery_agents.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(celery_agents, name) is not None


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="agnet"):
        _ = celery_agents.agnet


MOVED: Final = [
    (package, name, home)
    for package in ("", "worker.state", "worker.run_state")
    for home, names in importlib.import_module(f"{PACKAGE}.{package}".rstrip("."))._MOVED.items()
    for name in names.split()
]


@pytest.mark.parametrize(("package", "name", "home"), MOVED)
def test_a_name_that_left_a_package_is_still_found_with_a_warning_that_says_where_it_is(
    package: str, name: str, home: str
) -> None:
    with pytest.warns(DeprecationWarning, match=rf"import {name} from {re.escape(f'{PACKAGE}.{home}')}$"):
        found = getattr(importlib.import_module(f"{PACKAGE}.{package}".rstrip(".")), name)
    assert found is getattr(importlib.import_module(f"{PACKAGE}.{home}"), name)
