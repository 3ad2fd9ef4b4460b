"""What a newcomer types, from the installation to an existing project, as the pages say it and without PYTHONPATH."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from support.documents import ROOT
from support.hostile import hostile_environment
from support.redis_server import RedisServer
from support.wait import wait_until

if TYPE_CHECKING:
    from conftest import Newcomer
else:
    Newcomer = Any

# Without the installation, which the first test waits for.
pytestmark = pytest.mark.timeout(600, func_only=True)

SLOW_AGENTS = '''
import time
from pathlib import Path

from celery_agents import Agent, AgentState, ToolCall, tool


@tool(effect="pure")
def look_long(seconds: float) -> str:
    """Look for a while."""
    time.sleep(seconds)
    return "seen"


def decide(state: AgentState) -> str | ToolCall:
    if not state.steps:
        return ToolCall(id="1", name="look_long", args={"seconds": 12})
    return "looked"


def fail_first(state: AgentState) -> str:
    if not Path("mended").exists():
        raise RuntimeError("there is no file mended")
    return "mended"


slow = Agent("slow", driver=decide, tools=[look_long])
fragile = Agent("fragile", driver=fail_first)
'''

HELPING_AGENTS = """
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from celery_agents import Agent, AgentState, CeleryDurability, ToolCall, tool


def ask_for_refund(messages, info):
    if len(messages) == 1:
        return ModelResponse([ToolCallPart("refund", {"cents": 900}, "1")])
    return ModelResponse([TextPart(f"done: {messages[-1].parts[-1].content}")])


refunds = PydanticAgent(FunctionModel(ask_for_refund), name="refunds", capabilities=[CeleryDurability()])


@refunds.tool_plain(requires_approval=True)
def refund(cents: int) -> str:
    return f"refunded {cents}"


@tool(effect="pure")
def look_up(order: int) -> str:
    \"\"\"Look an order up.\"\"\"
    raise ConnectionError(f"the shop is closed for order {order}")


def decide(state: AgentState) -> str | ToolCall:
    if not state.steps:
        return ToolCall(id="1", name="look_up", args={"order": 7})
    return f"I was told: {state.messages[-1].content}"


orders = Agent("orders", driver=decide, tools=[look_up])
"""

NEIGHBOUR = """
from celery import Celery

app = Celery("neighbour")
app.conf.update(task_serializer="pickle", event_serializer="pickle", accept_content=["pickle"])


@app.task
def add(a, b):
    return a + b
"""

OTHER_AGENTS = """
from celery_agents import Agent

other = Agent("other", driver=lambda state: "from the second service")
"""


SEVEN_STEPS = """
from celery_agents import Agent
from celery_agents.worker.state import InferenceResponse, ToolCall
from celery_agents.worker.tools import tool


@tool(effect="pure")
def look(place: int) -> str:
    \"\"\"Look somewhere.\"\"\"
    return "nothing"


def search(state):
    step = state.execution.step_count + 1
    if step > 7:
        return "found"
    call = ToolCall.from_text("call_x" if step == 7 else f"call_{step}", "look", '{"place": %d}' % step)
    return InferenceResponse(tool_calls=(call,))


searcher = Agent("searcher", driver=search, tools=[look])
"""


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "own-redis") as server:
        yield server


def ready_block(newcomer: Newcomer, up: Any) -> str:
    """Do what the block of `up` says, and return it."""
    text: str = up.text()
    for line in re.findall(r"^  (export \S+)$", text, re.MULTILINE):
        newcomer.export(line)
    return text


def leave_the_other_service(newcomer: Newcomer) -> None:
    """Take its variables away: `celery -A` is Celery's own command, which reads them before our code is imported."""
    for name in hostile_environment(""):
        newcomer.environment.pop(name, None)


def test_from_the_demo_to_a_project_whose_worker_is_killed(newcomer: Newcomer) -> None:
    assert newcomer.type("celery-agents --version").startswith("celery-agents ")
    assert re.search(r"refunds in the ledger +1 .*2 ", newcomer.type("celery-agents demo"))

    newcomer.type("celery-agents new my_shop")
    project = newcomer.home / "my_shop"
    newcomer.type("python -m pytest", folder=project)
    (project / "slow_agents.py").write_text(SLOW_AGENTS)
    up = newcomer.open_terminal(
        "celery-agents up --agents my_shop.agents,slow_agents", folder=project, until="Ctrl-C ends everything"
    )
    block = ready_block(newcomer, up)
    assert "fragile, slow, support" in block
    assert "Page    http://" in block
    said = newcomer.type('celery-agents submit support "Order 17 arrived broken" --wait')
    assert said == "I am sorry about that. I refunded 24.00 for order 17.\n"

    submitted = json.loads(newcomer.type("celery-agents submit slow look --json"))["session_id"]
    started = lambda: "in_progress" in newcomer.type(f"celery-agents show {submitted}")  # noqa: E731
    wait_until(started, "the slow job runs", timeout=20, interval=0.2)
    os.kill(int(re.findall(r"process (\d+)", block)[0]), signal.SIGKILL)
    assert "looked" in newcomer.type(f"celery-agents watch {submitted}")
    up.wait_for_text("the worker is ready again", 30)
    assert submitted in newcomer.type("celery-agents list")

    newcomer.type('celery-agents submit fragile "try it" --wait', expect=1)
    (failed,) = newcomer.type("celery-agents list --status failed --json").splitlines()
    (project / "mended").write_text("")
    session = json.loads(failed)["session_id"]
    assert newcomer.type(f"celery-agents retry {session} --wait") == "mended\n"
    newcomer.type("celery-agents doctor")


def test_a_second_service_on_the_same_redis(newcomer: Newcomer, own_redis: RedisServer) -> None:
    newcomer.export(f"export CELERY_AGENTS_REDIS_URL={own_redis.url()}")
    (newcomer.home / "slow_agents.py").write_text(SLOW_AGENTS)
    (newcomer.home / "other_agents.py").write_text(OTHER_AGENTS)
    newcomer.open_terminal("celery-agents worker --agents slow_agents --name first@%h", until="ready.")
    newcomer.open_terminal("celery-agents worker --agents other_agents --name second@%h", until="ready.")
    assert newcomer.type("celery-agents submit other hello --wait") == "from the second service\n"
    assert newcomer.type("celery-agents submit slow look --wait") == "looked\n"


def test_agents_beside_a_neighbour_with_pickle_on_the_same_database(newcomer: Newcomer, own_redis: RedisServer) -> None:
    """Its workers send their events there, and it commands whoever listens."""
    newcomer.export(f"export CELERY_AGENTS_REDIS_URL={own_redis.url()}")
    newcomer.export("export CELERY_AGENTS_AGENTS=helping_agents")
    (newcomer.home / "helping_agents.py").write_text(HELPING_AGENTS)
    (newcomer.home / "neighbour.py").write_text(NEIGHBOUR)
    celery = f"env -i C_FORCE_ROOT=1 PATH={newcomer.environment['PATH']} CELERY_BROKER_URL={own_redis.url()} celery -A neighbour"
    neighbour = newcomer.open_terminal(
        f"{celery} worker --pool=solo --task-events -n neighbour@%h -l INFO", until="ready."
    )
    worker = newcomer.open_terminal("celery-agents worker", until="ready.")

    said = newcomer.type('celery-agents submit orders "Where is order 7?" --wait')
    assert "the shop is closed for order 7" in said
    session = json.loads(newcomer.type("celery-agents submit refunds 'My refund?' --json"))["session_id"]
    asked = lambda: "refund" in newcomer.type("celery-agents requests")  # noqa: E731
    wait_until(asked, "the refund waits for an approval", timeout=30, interval=0.5)
    newcomer.type(f"{celery} control shutdown || true")  # whoever shuts down does not answer
    neighbour.wait_for_text("Got shutdown from remote", 30)
    newcomer.type(f"celery-agents approve {session}")
    newcomer.type(f"celery-agents watch {session}")
    assert "done: refunded 900" in newcomer.type(f"celery-agents show {session}")
    doctor = newcomer.type("celery-agents doctor")
    assert not re.search(r"refused|quarantined message|library attribute", doctor), doctor
    assert "pickle" not in worker.text()


@pytest.mark.parametrize("pool", ["threads", "solo", "prefork", "custom"])
def test_agents_join_an_existing_project(newcomer: Newcomer, own_redis: RedisServer, pool: str) -> None:
    """The variables of Celery are the project's own here, so they name its Redis."""
    project = newcomer.home / "existing_project"
    shutil.copytree(ROOT / "examples" / "existing_project", project)
    leave_the_other_service(newcomer)
    newcomer.environment["BROKER_URL"] = own_redis.url()
    newcomer.environment["CELERY_AGENTS_AGENTS"] = "shop_agents"
    newcomer.environment["CELERY_AGENTS_REDIS_URL"] = own_redis.url()
    if pool == "custom":
        newcomer.environment["CELERY_CUSTOM_WORKER_POOL"] = "celery_agents.tasks.consumer.pool:TaskPool"
    queues = "celery,celery_agents.steps,celery_agents.control"
    worker = newcomer.open_terminal(
        f"celery -A shop worker --pool={pool} --concurrency=2 -Q {queues} -l INFO", folder=project, until="ready."
    )
    said = newcomer.type('celery-agents submit greeter "good morning" --wait', folder=project)
    assert said == "Hello, you said: good morning\n"
    newcomer.type("python -c 'from shop import order_paid; order_paid.delay(5)'", folder=project)
    worker.wait_for_text("order 5 is paid", 20)


NOT_TYPED: Final = {
    "pip install 'celery-agents": "the fresh environment has the wheel, installed by pip with the same extras",
    "python3 -m venv .venv": "the fresh environment is one",
    "docker": "needs Docker; tests/integration/test_deploy.py runs the same files as processes",
    "kubectl": "needs a cluster; tests/check/test_deploy.py validates the same files",
    "useradd": "needs root and systemd; tests/integration/test_deploy.py starts what the units start",
    "python3 -m venv /opt": "see useradd",
    "install -": "see useradd",
    "echo CELERY_AGENTS_AGENTS": "see useradd",
    "systemctl": "see useradd",
    "sh deploy/make-secrets": "tests/integration/test_deploy.py runs it, with the users that it makes",
    "$ ": "a contributor's command in a clone; tests/model runs it",
}
"""Commands that a machine for tests cannot execute as they are written, by their beginning, with the reason."""

_SHELL_BLOCK: Final = re.compile(r"^```(?:sh|bash|shell|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

WITH_COMMANDS: Final = tuple(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if _SHELL_BLOCK.search(path.read_text(encoding="utf-8"))
)


HTTP_PAGE: Final = "docs/http.md"
SESSIONS_PAGE: Final = "docs/sessions.md"
WEBHOOK_SECRET: Final = "whsec_bm90IGEgc2VjcmV0LCBidXQgbG9uZw=="


def make_session(newcomer: Newcomer) -> None:
    """Carry out the session that the page of sessions looks at; its worker stays."""
    (newcomer.home / "seven_steps.py").write_text(SEVEN_STEPS)
    newcomer.open_terminal("celery-agents worker --agents seven_steps", until="ready.")
    assert newcomer.type("celery-agents submit searcher look --session order-17 --wait") == "found\n"


def read_blocks(page: str) -> list[str]:
    return _SHELL_BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


def read_lines(page: str) -> list[str]:
    return [line for block in read_blocks(page) for line in block.splitlines() if line.strip()]


def write_python_blocks(page: str, folder: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        name = re.match(r"# (\w+\.py)\n", block)
        if name is not None:
            (folder / name[1]).write_text(block)


@pytest.mark.parametrize("page", [page for page in WITH_COMMANDS if page != HTTP_PAGE])
def test_every_command_of_a_page_works_as_it_is_written(page: str, newcomer: Newcomer, own_redis: RedisServer) -> None:
    if any(" | jq " in line for line in read_lines(page)) and shutil.which("jq") is None:
        pytest.skip("there is no jq, which the page's commands call")
    (newcomer.home / "my_agents.py").write_text(OTHER_AGENTS)  # some pages name the reader's own module
    write_python_blocks(page, newcomer.home)
    newcomer.export(f"export CELERY_AGENTS_REDIS_URL={own_redis.url()}")
    if page == SESSIONS_PAGE:
        make_session(newcomer)
    for line in read_lines(page):
        if any(line.startswith(beginning) for beginning in NOT_TYPED):
            continue
        command = line.split("  #")[0].rstrip()
        if command.startswith("celery-agents up"):
            ready_block(newcomer, newcomer.open_terminal(command, until="Ctrl-C ends everything"))
        elif command.startswith("celery-agents worker"):
            newcomer.open_terminal(command, until="ready.")
        elif " celery -A " in f" {command}":
            leave_the_other_service(newcomer)
            newcomer.open_terminal(f"env {command}", until="[queues]")  # Celery's own level shows no more than this
        else:
            newcomer.type(command)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl, which the page's commands call")
def test_the_http_page_works_as_it_is_written(newcomer: Newcomer, own_redis: RedisServer) -> None:
    """Its commands are one script, which asks the server that its first block starts."""
    shutil.copy(ROOT / "tests" / "support" / "page_agents.py", newcomer.home)
    newcomer.export(f"export CELERY_AGENTS_REDIS_URL={own_redis.url()}")
    newcomer.export("export CELERY_AGENTS_AGENTS=page_agents")
    newcomer.export("export CELERY_AGENTS_TOKEN_SECRET=not-a-secret-but-long-enough")
    newcomer.export(f"export CELERY_AGENTS_PROVIDER_WEBHOOK_SECRETS=openai={WEBHOOK_SECRET}")
    newcomer.export(f"export WEBHOOK_SECRET={WEBHOOK_SECRET}")
    newcomer.open_terminal("celery-agents worker", until="ready.")
    (install, with_tokens), script = read_blocks(HTTP_PAGE)[:2], read_blocks(HTTP_PAGE)[2:]
    script = [block for block in script if "celery-agents serve" not in block]  # it is served already
    assert install.splitlines() == ["pip install 'celery-agents[http]'", "celery-agents serve"]
    server = newcomer.open_terminal("celery-agents serve", until="celery-agents serves")
    told = newcomer.type("set -eu\nTOKEN=\n" + "\n".join(script))
    assert '"final_response": "How can I help?"' in told
    assert "event: execution_completed" in told
    server.end()
    (newcomer.home / "with_tokens.sh").write_text(with_tokens)
    newcomer.open_terminal("bash -eu with_tokens.sh", until="celery-agents serves http://0.0.0.0:8080")


def test_a_reason_stands_for_a_command_that_exists() -> None:
    lines = [line for page in WITH_COMMANDS for line in read_lines(page)]
    assert [beginning for beginning in NOT_TYPED if not any(line.startswith(beginning) for line in lines)] == []
