"""Runs the agents of pydantic-ai's own documentation durably, beside a run of their own; not a part of any test run.

    python tests/walk/documented_agents.py <folder with a checkout of pydantic-ai>/docs [page.md …]

Each example is executed as it is written, but for the line that makes it durable; models with a name are test models.
What an agent was asked there is asked again in two ways: by `agent.run`, and step by step in an engine of ours. The
messages and the usage must be the same. Examples that need other packages, a network or a person are left out, and
those whose own run fails.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import dataclasses
import inspect
import io
import os
import random
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, models
from pydantic_ai.models.test import TestModel

sys.path.insert(0, str(Path(__file__).parents[1]))

from celery_agents.worker.agent import AgentRegistry
from celery_agents.worker.pydantic_agents.conversation import read_conversation
from celery_agents.worker.state import DEFAULT, AgentState, ExecutionStatus

from support.engine import Bench
from support.pydantic_examples import comparable

_BLOCK = re.compile(r"^```(?:python|py)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_ELSEWHERE = re.compile(r"logfire|temporal|dbos|prefect|fastapi|starlette|input\(|Workflow|serve|mcp|MCP|images|audio")
_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "GROQ_API_KEY")
_OUR_LINE = (
    "__import__('celery_agents').CeleryDurability(deps=lambda _: __import__('__main__').DEPS[-1], effect='pure')"
)

DEPS: list[Any] = []
ASKED: dict[int, tuple[Any, Any]] = {}
"""By agent, the first prompt of its example and its dependencies."""


class _WithOurLine(ast.NodeTransformer):
    """Adds the capability, and a name where there is none, to each agent that is made."""

    count = 0

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Add them to this one."""
        self.generic_visit(node)
        made = node.func.value if isinstance(node.func, ast.Subscript) else node.func
        if not isinstance(made, ast.Name) or made.id != "Agent":
            return node
        self.count += 1
        given = {keyword.arg: keyword for keyword in node.keywords}
        if "name" not in given:
            node.keywords.append(ast.keyword("name", ast.Constant(f"agent{self.count}")))
        ours = ast.parse(_OUR_LINE, mode="eval").body
        capabilities = given.get("capabilities")
        if capabilities is not None and isinstance(capabilities.value, ast.List):
            capabilities.value.elts.append(ours)
        else:
            node.keywords.append(ast.keyword("capabilities", ast.List([ours], ast.Load())))
        return node


def prepare() -> None:
    """Let models with a name be test models, and note what each agent is asked."""
    models.ALLOW_MODEL_REQUESTS = False
    os.environ.update(dict.fromkeys(_KEYS, "none"))
    infer = models.infer_model
    models.infer_model = lambda model, *rest, **more: (
        TestModel() if isinstance(model, str) else infer(model, *rest, **more)
    )
    own = Agent.run

    async def run(self: Any, *args: Any, **options: Any) -> Any:
        ASKED.setdefault(id(self), (args[0] if args else options.get("user_prompt"), options.get("deps")))
        return await own(self, *args, **options)

    Agent.run = run


def executed(code: str, place: str) -> Iterator[tuple[str, Any]]:
    """Execute an example; the agents that it has asked."""
    module = types.ModuleType("documented")
    sys.modules[module.__name__] = module
    tree = ast.fix_missing_locations(_WithOurLine().visit(ast.parse(code)))
    ASKED.clear()
    DEPS.append(None)
    with contextlib.suppress(Exception, SystemExit), contextlib.redirect_stdout(io.StringIO()):
        exec(compile(tree, place, "exec"), module.__dict__)
        main = module.__dict__.get("main")
        if inspect.iscoroutinefunction(main) and not ASKED:
            asyncio.run(asyncio.wait_for(main(), 20))
    for name, agent in list(module.__dict__.items()):
        if isinstance(agent, Agent) and isinstance(ASKED.get(id(agent), (None,))[0], str):
            yield name, agent


def verdict(agent: Any) -> str:
    """Compare a durable run with a run of its own: equal, different, waits; or why there is none."""
    prompt, deps = ASKED[id(agent)]
    DEPS.append(deps)
    random.seed(7)
    try:
        expected = agent.run_sync(prompt, deps=deps)
    except Exception as error:
        return f"no run of its own: {type(error).__name__}"
    module = types.ModuleType("durable")
    module.__dict__["agent"] = agent
    sys.modules[module.__name__] = module
    (ours,) = AgentRegistry.from_modules(["durable"])
    bench = Bench(ours)
    try:
        random.seed(7)
        session = bench.submit(prompt, agent=ours, state=AgentState.fresh(now=bench.clock.now))
        bench.run(session)
        execution = bench.execution(session)
        if execution.status is ExecutionStatus.WAITING:
            return "waits for a person or a service"
        messages = bench.state(session).store.section(DEFAULT).messages
        conversation = read_conversation(messages, str(execution.execution_id))
    finally:
        bench.close()
    same = _without_drawn_ids(conversation.history) == _without_drawn_ids(expected.all_messages())
    return (
        "equal"
        if same and dataclasses.asdict(conversation.usage) == dataclasses.asdict(expected.usage)
        else "different"
    )


def _without_drawn_ids(messages: Any) -> str:
    """Messages as text, without the ids that pydantic-ai draws for calls of a function model."""
    return re.sub(r"pyd_ai_[0-9a-f]{32}", "id", repr(comparable(messages)))


def main() -> int:
    """Run the examples of all pages, or of those that are named."""
    folder, *names = sys.argv[1:]
    prepare()
    pages = [Path(folder, name) for name in names] or sorted(Path(folder).rglob("*.md"))
    found: dict[str, list[str]] = {}
    for page in pages:
        for number, code in enumerate(_BLOCK.findall(page.read_text(encoding="utf-8"))):
            if "Agent(" not in code or _ELSEWHERE.search(code):
                continue
            place = f"{page.relative_to(folder)} {number}"
            for name, agent in executed(code, place):
                with contextlib.redirect_stdout(io.StringIO()):
                    said = verdict(agent)
                found.setdefault(said, []).append(f"{place} {name}")
    for said, places in sorted(found.items()):
        print(
            f"{len(places)} {said}: {', '.join(places) if said != 'equal' else len({p.rsplit(' ', 1)[0] for p in places})}"
        )
    return 1 if "different" in found else 0


if __name__ == "__main__":
    sys.exit(main())
