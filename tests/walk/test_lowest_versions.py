"""The lowest versions that the package asks for have all that it imports, and carry a job through."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from support.product import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_USERS = ("all", "bench", "mutants", "dev")
"""The first has the others by their names; the rest is for who works on the package."""

# Prints what modules of a package import from libraries that are installed and do not have it.
SCAN = """
import ast, importlib, json, pathlib, sys

LATER = {"compression"}  # of the standard library, since Python 3.14
found = set()
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {(each.name, "") for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {(node.module, each.name) for each in node.names}
missing = []
for module, name in sorted(found):
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in LATER or "project_template" in module:
        continue
    try:
        if name and not hasattr(importlib.import_module(module), name):
            importlib.import_module(f"{module}.{name}")
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] == top:
            missing.append(f"{module}: {name}")
    except ImportError:
        pass  # a library of a provider that no extra brings
print(json.dumps([len(found), missing]))
"""


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the lowest versions have no wheels for this Python")
@pytest.mark.timeout(900)
def test_the_lowest_versions_have_all_that_is_imported_and_carry_a_job_through(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "environment"
    venv.create(home)
    python = home / "bin" / "python"
    install = [Path(sys.executable).with_name("uv"), "pip", "install", "--quiet", "--python", python]
    extras = {name: asked for name, asked in PROJECT["optional-dependencies"].items() if name not in NOT_USERS}
    asked = itertools.chain(PROJECT["dependencies"], *extras.values())
    subprocess.run([*install, "--resolution", "lowest-direct", *asked], check=True, timeout=600)
    subprocess.run([*install, "--no-deps", wheel], check=True)
    (package,) = home.glob("lib/python*/site-packages/celery_agents")
    rooms = {"worker", "tasks", "config", "testing", "demo"}
    assert rooms <= {each.name for each in package.iterdir()}
    done = subprocess.run([python, "-I", "-c", SCAN, package], capture_output=True, text=True, check=True, cwd=tmp_path)
    imported, missing = json.loads(done.stdout)
    assert (imported > 100, missing) == (True, [])
    told = subprocess.run(
        [home / "bin" / "celery-agents", "demo"], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=180
    )
    assert told.returncode == 0, told.stdout + told.stderr
