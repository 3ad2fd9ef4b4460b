"""Type checks of code that users write: mypy and pyright, both strict, with the package of this clone."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from .product import PACKAGE, ROOT

_MYPY = ("--strict", "--no-error-summary", "--follow-imports=silent")


def check_with_mypy(folder: Path, *paths: str) -> None:
    """Run mypy --strict on files of a folder, or on what its own configuration names.

    Raises:
        AssertionError: It finds something; the message holds what.
    """
    packages = _link_package()
    cache = packages / "mypy-cache"  # what the package imports is looked at once for all tests
    _run([sys.executable, "-m", "mypy", *_MYPY, f"--cache-dir={cache}", *paths], folder, {"MYPYPATH": str(packages)})


def check_with_pyright(folder: Path, *paths: str) -> None:
    """Run pyright in strict mode on files of a folder; without paths, on all of it.

    Raises:
        AssertionError: It finds something; the message holds what.
    """
    settings = {
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "include": list(paths) or ["."],
        "extraPaths": [str(_link_package()), "."],
    }
    configuration = folder / "pyrightconfig.json"
    configuration.write_text(json.dumps(settings))
    try:
        _run([sys.executable, "-m", "pyright", "--pythonpath", sys.executable], folder, {})
    finally:
        configuration.unlink()


@cache
def _link_package() -> Path:
    """A folder in which a type checker finds the package by its name; it follows no editable installation."""
    folder = Path(tempfile.mkdtemp(prefix="celery-agents-types-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / PACKAGE).symlink_to(ROOT, target_is_directory=True)
    return folder


def _run(command: list[str], folder: Path, environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
