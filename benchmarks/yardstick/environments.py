"""Python environments: our own, and one per peer, made when it is first needed and kept below `.bench-runs`."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .engine import NotMeasuredError

BENCHMARKS = Path(__file__).resolve().parent.parent
RESTATE = "@restatedev/restate-server"
RUNS = BENCHMARKS.parent / ".bench-runs"


def own_python() -> str:
    return sys.executable


def peer_python(name: str, requirements: Sequence[str]) -> str:
    """The interpreter of the peer's environment.

    Raises:
        NotMeasuredError: It cannot be made; the message says why.
    """
    home = RUNS / "environments" / name
    stamp = home / hashlib.sha256("\n".join(requirements).encode()).hexdigest()[:16]
    python = home / "bin" / "python"
    if not stamp.exists():
        print(f"making the environment of {name}: {', '.join(requirements)}", file=sys.stderr, flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(home)])
        _run([str(python), "-m", "pip", "install", "--quiet", *requirements])
        stamp.touch()
    return str(python)


def restate_binary() -> Path:
    """Restate's server, from its npm package.

    Raises:
        NotMeasuredError: It cannot be had; the message says why.
    """
    home = RUNS / "environments" / "restate-node"
    if shutil.which("npm") is None:
        raise NotMeasuredError("Restate's server comes as an npm package, and there is no npm on this machine")
    if not (home / "node_modules" / RESTATE).is_dir():
        home.mkdir(parents=True, exist_ok=True)
        _run(["npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(home), f"{RESTATE}@1.7.12"])
    found = sorted((home / "node_modules" / "@restatedev").glob("restate-server-*/bin/restate-server"))
    if not found:
        raise NotMeasuredError("Restate has no server for this machine")
    return found[0]


def _run(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise NotMeasuredError(f"{' '.join(argv)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
