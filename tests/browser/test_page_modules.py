"""What the page computes without a browser, run by Node.js: axis, rows, sums, conversation, live text, forms, reads that overlap."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.product import ROOT

HERE = Path(__file__).parent
NODE = shutil.which("node")


@pytest.mark.parametrize("tests", ["page_modules.mjs", "page_forms.mjs", "page_feed.mjs"])
@pytest.mark.skipif(NODE is None, reason="there is no Node.js on PATH")
def test_the_modules_of_the_page_compute_what_is_drawn(tmp_path: Path, tests: str) -> None:
    assert NODE is not None
    shutil.copytree(ROOT / "tasks" / "http" / "page", tmp_path / "page")
    (tmp_path / "package.json").write_text('{"type": "module"}')  # as a browser takes them
    env = {**os.environ, "PAGE_MODULES": str(tmp_path)}
    command = [NODE, "--test", "--test-reporter=tap", tests]
    done = subprocess.run(command, cwd=HERE, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n# fail 0" in done.stdout, done.stdout
    assert "\n# pass 0" not in done.stdout, done.stdout
