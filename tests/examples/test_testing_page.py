"""docs/testing.md: its test passes, and the mistake it speaks of is found as the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from support.documents import read_document


def run_pytest(folder: Path, name: str = "test_my_agent.py") -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", name)
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_page_s_test_passes(tmp_path: Path) -> None:
    read_document("docs/testing.md").write(tmp_path)
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "Counter({'kill':" in done.stdout


def test_the_page_s_test_of_a_pydantic_ai_agent_passes_and_finds_a_missing_key(tmp_path: Path) -> None:
    name = "test_my_pydantic_agent.py"
    read_document("docs/testing.md").write(tmp_path)
    done = run_pytest(tmp_path, name)
    assert done.returncode == 0, done.stdout
    right = (tmp_path / name).read_text()
    wrong = right.replace(', key=metadata["celery"]["idempotency_key"]', "")
    assert wrong != right
    (tmp_path / name).write_text(wrong)
    done = run_pytest(tmp_path, name)
    assert done.returncode == 1
    assert "refund (declared keyed) in step 1, call 0: the effect 'refund' happened 2 times" in done.stdout


def test_the_page_s_mistake_is_found_as_it_says(tmp_path: Path) -> None:
    page = read_document("docs/testing.md")
    right = page.files["test_my_agent.py"]
    wrong = right.replace('"keyed"', '"pure"').replace('"payment", key=ctx.idempotency_key', '"payment"')
    (tmp_path / "test_my_agent.py").write_text(wrong)
    done = run_pytest(tmp_path)
    assert done.returncode == 1
    # Which seed comes first, and with which faults, may change with the product; what it says may not.
    shown, printed = (re.sub(r"seed(s=\[| )\d+", "seed", text) for text in (page.outputs[0], done.stdout))
    wanted = [line for line in shown.splitlines() if "shop" in line or "declared" in line or "what happened" in line]
    assert len(wanted) == 4
    assert [line for line in wanted if line not in printed] == [], done.stdout
