"""The version of this build: its release, and the commit or the files that it was built from.

`0.2.0.dev202611250318+g1214b0157cd4` is the commit 1214b0157cd4, of that minute. `.d` and eight digits follow where
files were changed after it. Without git, as in the build of an image, `0.2.0.dev0+files.5f0c1d7e9a3b` holds a digest of
the product's files. setup.py executes this file for the version of the wheel, so it imports nothing of ours.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import subprocess
from pathlib import Path
from typing import Final

RELEASE: Final = "0.2.0"
_FOLDERS: Final = ("config", "demo", "deploy", "tasks", "testing", "worker")
_SUFFIXES: Final = (".py", ".lua")
_GIT_SECONDS: Final = 10.0


def read_version(root: Path) -> str:
    """Return the version of the code in a folder.

    Args:
        root: The folder of the package: a clone, an unpacked source archive, or the installed package.
    """
    if (root / ".git").exists():
        return describe_sources(root)
    if (root / "setup.py").exists():
        return _read_archive(root) or describe_sources(root)
    try:
        return importlib.metadata.version("celery-agents")
    except importlib.metadata.PackageNotFoundError:  # the files were copied, and nothing was installed
        return describe_sources(root)


def describe_sources(root: Path) -> str:
    """Return the version of a source tree by its commit; where git cannot tell it, by a digest of its files."""
    commit = _ask_git(root, "show", "--no-patch", "--format=%cd %h", "--date=format-local:%Y%m%d%H%M", "--abbrev=12")
    if not re.fullmatch(r"\d{12} [0-9a-f]{12,}", commit or ""):
        return f"{RELEASE}.dev0+files.{_digest(root)[:12]}"
    minute, _, digits = str(commit).partition(" ")
    changed = f".d{_digest(root)[:8]}" if _ask_git(root, "status", "--porcelain", "--", *_FOLDERS, "*.py") else ""
    return f"{RELEASE}.dev{minute}+g{digits}{changed}"


def _read_archive(root: Path) -> str | None:
    """Return the version in the metadata of an unpacked source archive; None in any other folder."""
    try:
        found = re.search(r"^Version: (\S+)$", (root / "PKG-INFO").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return found[1] if found else None


def _ask_git(root: Path, *arguments: str) -> str | None:
    """Return what git prints about the repository of exactly this folder; None when there is no git or it refuses."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", f"--git-dir={root / '.git'}", f"--work-tree={root}", *arguments]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, check=False, timeout=_GIT_SECONDS,
            env={**environment, "TZ": "UTC", "GIT_OPTIONAL_LOCKS": "0"},
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _digest(root: Path) -> str:
    """Hash the names and contents of the product's files, in whatever order the file system lists them."""
    found = hashlib.sha256()
    for path in sorted((*root.glob("*.py"), *(path for name in _FOLDERS for path in (root / name).rglob("*")))):
        if path.suffix not in _SUFFIXES or path.name == "setup.py":
            continue
        found.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()


__version__: Final = read_version(Path(__file__).resolve().parent.parent)
"""The version of the code that this process has loaded."""
