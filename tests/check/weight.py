"""The weight of the product in figures, as one table: `python tests/check/weight.py`.

Lines are those of Python files with blank lines and comments; JavaScript is not counted. A *hop* is a call from one file of
the product into another one: `hops` counts them, `files` the files that were entered. A step is the second one of a session
with one call of a keyed tool, in memory; suspend is `POST /v1/sessions/{id}/suspend` against a real Redis.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tempfile
import threading
import tokenize
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when it is run by itself

from support.product import ROOT, tracked_files

PRODUCT: Final = ("worker", "tasks", "config")
INSTRUCTION: Final = re.compile(r"#\s*(noqa|type:|pyright:|fmt:|pragma:)")  # for tools, not for readers


@dataclass
class Weight:
    """Counts over a set of files."""

    files: int = 0
    lines: int = 0
    classes: int = 0
    functions: int = 0
    comments: int = 0

    @classmethod
    def of(cls, *folders: str) -> Weight:
        """Count the tracked Python files of these folders."""
        weight = cls()
        for path in tracked_files():
            if path.suffix == ".py" and path.parts[0] in folders:
                weight.add((ROOT / path).read_text(encoding="utf-8"))
        return weight

    def add(self, source: str) -> None:
        """Count one file."""
        nodes = list(ast.walk(ast.parse(source)))
        self.files += 1
        self.lines += len(source.splitlines())
        self.classes += sum(isinstance(node, ast.ClassDef) for node in nodes)
        self.functions += sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes)
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        self.comments += sum(token.type == tokenize.COMMENT and not INSTRUCTION.match(token.string) for token in tokens)


@dataclass
class Hops:
    """Calls that went from one file of the product into another one."""

    count: int = 0
    entered: set[str] = field(default_factory=set[str])

    def see(self, frame: FrameType, event: str, _: object) -> None:
        """The profile function of a thread."""
        if event != "call" or not is_product(frame.f_code.co_filename):
            return
        caller = frame.f_back
        while caller is not None and not is_product(caller.f_code.co_filename):
            caller = caller.f_back  # a library, or Python, calls back
        self.entered.add(frame.f_code.co_filename)
        self.count += caller is None or caller.f_code.co_filename != frame.f_code.co_filename


def is_product(filename: str) -> bool:
    """Whether a code object is one of the product's files."""
    return filename.startswith(tuple(f"{ROOT / folder}/" for folder in PRODUCT))


def step_hops() -> Hops:
    """Hops of a step with one call of a keyed tool."""
    from celery_agents import Agent, tool
    from celery_agents.testing import CallTool, script

    from support.engine import Bench

    @tool(effect="keyed")
    def pay(amount: int) -> str:
        """Pay."""
        return str(amount)

    agent = Agent("payer", driver=script(CallTool("pay", amount=1), CallTool("pay", amount=2), "done"), tools=[pay])
    with threads_counted_from_the_start() as count:
        bench = Bench(agent)
        session = bench.submit()
        bench.step(session)
        hops = count(lambda: bench.step(session))
        bench.close()
    return hops


def suspend_hops() -> Hops:
    """Hops of a request that suspends a session."""
    from starlette.testclient import TestClient

    from celery_agents import AgentClient, Settings
    from celery_agents.tasks.http.app import create_http_app

    from support.redis_server import RedisServer

    with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder)) as server:
        settings = Settings.build(redis_url=server.url())
        with (
            threads_counted_from_the_start() as count,
            AgentClient(settings=settings) as client,
            TestClient(create_http_app(client), base_url="http://127.0.0.1", client=("127.0.0.1", 1)) as http,
        ):
            session = client.submit("absent", "hello").session_id
            url = f"/v1/sessions/{session}"
            for verb, body in (
                ("suspend", {"reason": "first"}),
                ("resume", {}),
            ):  # imports and connections are made once
                http.post(f"{url}/{verb}", json=body).raise_for_status()
            return count(lambda: http.post(f"{url}/suspend", json={"reason": "counted"}).raise_for_status())


@contextmanager
def threads_counted_from_the_start() -> Iterator[Callable[[Callable[[], object]], Hops]]:
    """Give a function that counts the hops of a call in all threads that began inside of this block."""
    seen: list[Hops] = []

    def see(frame: FrameType, event: str, argument: object) -> None:
        for hops in seen:
            hops.see(frame, event, argument)

    def count(call: Callable[[], object]) -> Hops:
        seen.append(Hops())
        try:
            call()
        finally:
            hops = seen.pop()
        return hops

    threading.setprofile(see)
    sys.setprofile(see)
    try:
        yield count
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def rows() -> Iterator[tuple[str, str]]:
    """The table."""
    import celery_agents

    product, tests = Weight.of(*PRODUCT), Weight.of("tests")
    yield "files", f"{product.files}"
    yield "lines", f"{product.lines}"
    yield "classes", f"{product.classes}"
    yield "functions", f"{product.functions}"
    yield "names at the root", f"{len(celery_agents.__all__)}"
    yield "comments in 100 lines", f"{100 * product.comments / product.lines:.1f}"
    yield "lines of tests for one of the product", f"{tests.lines / product.lines:.2f}"
    for name, measure in (("keyed step", step_hops), ("suspend over HTTP", suspend_hops)):
        hops = measure()
        yield f"{name}: files entered", f"{len(hops.entered)}"
        yield f"{name}: hops between files", f"{hops.count}"


def main() -> None:
    """Print the table."""
    for name, value in rows():
        print(f"{name:<40} {value:>8}")


if __name__ == "__main__":
    main()
