"""Clients in JavaScript against a real `serve` and a real worker; `make test-browser` runs them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser.conftest import Watched
from playwright.sync_api import Route

from support.agents import call, plan
from support.lab import Lab
from support.product import ROOT
from support.serve_process import ServeProcess
from support.wait import wait_until

HERE = Path(__file__).parent
CHAT = ROOT / "examples" / "chat_page" / "chat.html"
TOKEN = "token-of-admin-0123456789"
ENV = {"CELERY_AGENTS_TOKEN_SECRET": "not-a-secret-but-long-enough"}
SECRET = "whsec_bm90IGEgc2VjcmV0LCBidXQgbG9uZw=="
NODE = shutil.which("node")

pytestmark = [pytest.mark.timeout(240), pytest.mark.skipif(NODE is None, reason="there is no Node.js on PATH")]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    agents = "support.agents,support.asking_agents,support.tree_agents"
    with Lab(tmp_path_factory.mktemp("browser") / "lab", agents=agents, env=ENV) as started:
        started.worker()
        yield started


@pytest.fixture(scope="module")
def served(lab: Lab) -> Iterator[ServeProcess]:
    env = {
        **ENV,
        "CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{TOKEN}:admin",
        "CELERY_AGENTS_PROVIDER_WEBHOOK_SECRETS": f"openai={SECRET}",
    }
    process = ServeProcess(lab.directory / "serve", lab.store_url, env)
    process.start()
    yield process
    process.end()


def run_node(script: str, *arguments: str) -> Any:
    assert NODE is not None
    done = subprocess.run([NODE, script, *arguments], cwd=HERE, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_client_in_plain_javascript_uses_every_operation(served: ServeProcess, lab: Lab) -> None:
    used = run_node("every_operation.mjs", served.url, TOKEN, lab.ledger.url, SECRET)
    with served.http(TOKEN) as http:
        paths = http.get("/openapi.json").json()["paths"]
    offered = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert sorted(offered ^ set(used)) == []
    assert len([each for each in lab.ledger.entries() if each.get("work") == "by node"]) == 1


def test_the_official_client_of_ag_ui_talks_and_answers(served: ServeProcess, lab: Lab) -> None:
    if not (HERE / "node_modules").exists():
        pytest.skip("npm install --prefix tests/browser brings the official client")
    found = run_node("agui.mjs", served.url, TOKEN)
    assert found["first"]["outcome"] == {"type": "success"}
    assert [each.get("content") for each in found["messages"] if each["role"] == "assistant"] == [
        None,  # the message that calls the tool
        "it is done",
        "and again",
    ]
    assert found["asked"]["outcome"]["type"] == "interrupt"
    assert found["resumed"]["outcome"] == {"type": "success"}
    assert found["refunded"] == "refunded"
    assert found["failed"]["error"]
    assert len([each for each in lab.ledger.entries() if each.get("work") == "by the official client"]) == 1


class Page:
    """The example's page in a document of its own process."""

    def __init__(self, served: ServeProcess) -> None:
        assert NODE is not None
        command = [NODE, "chat_page.mjs", str(CHAT), served.url, TOKEN, "asking"]
        self.process = subprocess.Popen(command, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def do(self, **command: Any) -> dict[str, Any]:
        """Give a command, and return what is shown after it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def wait_for(self, kind: str, text: str, timeout: float = 30) -> dict[str, Any]:
        """Wait until a message is shown."""
        wait_until(lambda: [kind, text] in self.do(look=True)["messages"], f"{text!r} is shown", timeout)
        return self.do(look=True)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)


def test_the_example_page_talks_asks_and_comes_back(served: ServeProcess) -> None:
    if not (HERE / "node_modules" / "jsdom").exists():
        pytest.skip("npm install --prefix tests/browser brings a document for Node.js")
    page = Page(served)
    try:
        page.do(say=plan([call("refund", work="by the page")], answer="refunded"))
        wait_until(lambda: page.do(look=True)["buttons"] == ["Approve", "Deny"], "it asks", 30)
        page.do(click="Approve")
        shown = page.wait_for("assistant", "refunded")
        assert shown["buttons"] == []

        served.kill()
        page.do(say=plan(answer="sent while nobody listened"))
        served.start()
        page.wait_for("assistant", "sent while nobody listened")

        again = page.do(reload=True)
        assert again["session"] == shown["session"]
        assert len(page.wait_for("assistant", "refunded")["messages"]) == len(shown["messages"]) + 2
    finally:
        page.end()


def test_a_dialog_of_the_example_page_that_is_cancelled_answers_nothing(watched: Watched) -> None:
    page, sent = watched.page, list[Any]()
    requests = [{"id": "a", "kind": "approval", "text": "Refund?"}, {"id": "q", "kind": "question", "text": "Which?"}]
    replies = {"messages": {"messages": []}, "s": {"status": "waiting"}, "requests": {"requests": requests}}

    def answer(route: Route) -> None:
        name = route.request.url.partition("?")[0].rpartition("/")[2]
        if name == "chat.html":
            return route.fulfill(body=CHAT.read_text(), content_type="text/html")
        if name == "answers":
            sent.append(route.request.post_data_json)
        return route.fulfill(status=404, json={}) if name == "events" else route.fulfill(json=replies.get(name, {}))

    page.route("http://localhost/**", answer)
    page.goto("http://localhost/chat.html?api=http://localhost#s")
    for name in ("Deny", "Answer"):
        page.get_by_role("button", name=name).click()  # its dialog is dismissed
    page.once("dialog", lambda dialog: dialog.accept("Too late."))
    with page.expect_request("**/answers"):
        page.get_by_role("button", name="Deny").click()
    assert sent == [{"answers": {"a": {"deny": "Too late."}}}]


def test_the_javascript_of_the_page_gets_an_answer_and_the_events(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "http.md").read_text()
    blocks = [each for each in re.findall(r"```js\n(.*?)```", text, re.DOTALL) if "import " not in each]
    assert len(blocks) == 2
    (tmp_path / "page.mjs").write_text("\n".join(blocks))
    with Lab(tmp_path / "lab", agents="support.page_agents", env=ENV) as own:
        own.worker()
        process = ServeProcess(
            tmp_path / "serve", own.store_url, {"CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{TOKEN}:admin"}
        )
        process.start()
        try:
            assert NODE is not None
            env = {**os.environ, "API": process.url, "TOKEN": TOKEN}
            command = [NODE, str(tmp_path / "page.mjs")]
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        finally:
            process.end()
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("completed How can I help?", "execution_completed")
