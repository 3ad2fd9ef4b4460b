"""Every command and every line of Python of docs/http.md, against a real `serve` and a real worker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from support.lab import Lab
from support.product import ROOT
from support.serve_process import ServeProcess

TOKEN = "token-of-admin-0123456789"
ENV = {"CELERY_AGENTS_TOKEN_SECRET": "not-a-secret-but-long-enough"}
SECRET = "whsec_bm90IGEgc2VjcmV0LCBidXQgbG9uZw=="
PAGE = (ROOT / "docs" / "http.md").read_text()

pytestmark = pytest.mark.timeout(180)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    with Lab(tmp_path_factory.mktemp("page") / "lab", agents="support.page_agents", env=ENV) as lab:
        lab.worker()
        env = {
            **ENV,
            "CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{TOKEN}:admin",
            "CELERY_AGENTS_PROVIDER_WEBHOOK_SECRETS": f"openai={SECRET}",
        }
        process = ServeProcess(lab.directory / "serve", lab.store_url, env)
        process.start()
        yield process
        process.end()


def run(served: ServeProcess, *command: str, given: str) -> str:
    environment = {
        **os.environ,
        "API": served.url,
        "TOKEN": TOKEN,
        "WEBHOOK_SECRET": SECRET,
        "NO_PROXY": "*",
        "no_proxy": "*",
    }
    done = subprocess.run(
        command, input=given, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl, which the page's commands call")
def test_the_commands_of_the_page_do_what_it_says(served: ServeProcess) -> None:
    script = [block for block in blocks("sh") if "celery-agents serve" not in block]
    assert len(script) == 20
    told = run(served, "sh", "-eu", given="set -x\n" + "\n".join(script))
    assert '"final_response": "How can I help?"' in told
    assert "event: execution_completed" in told
    assert "1250 cents of order 17 were paid back" in told or "step_committed" in told
    assert '"stopped": true' in told
    with served.http(TOKEN) as http:
        session = http.get("/v1/sessions/order-17/state").json()
        said = [each["content"] for each in http.get("/v1/sessions/order-17/messages").json()["messages"]]
        paths = http.get("/openapi.json").json()["paths"]
    assert session["status"] in ("stopped", "completed"), "retried, and stopped once more if it still ran"
    assert session["state"]["context"]["metadata"] == {"priority": "high"}
    assert "1250 cents of order 17 were paid back" in said
    assert any("duplicate" in each for each in said)

    called = {re.sub(r"[?\"].*", "", path) for path in re.findall(r"\$API(/[^\s]*)", "\n".join(script))}
    named = {
        re.sub(
            r"order-\d+|(?<=steps/)\d+|nightly|(?<=webhooks/)openai", "{}", re.sub(r"\$\w+|priority", "{}", path)
        ).replace("/agents/support/", "/agents/{}/")
        for path in called
    }
    known = {re.sub(r"{\w+}", "{}", path) for path in paths}
    assert named <= known
    assert known - named == {
        "/v1/sessions/{}/executions/{}",
        "/v1/sessions/{}/grants/{}",
        "/v1/completions/{}",
        "/agui/{}",
    }


def test_the_python_of_the_page_gets_an_answer_and_the_events(served: ServeProcess) -> None:
    told = run(served, sys.executable, "-", given="\n".join(blocks("python"))).splitlines()
    assert told[0] == "completed How can I help?"
    assert told[-1] == "execution_completed"
