"""Write a small project with an agent, its test and its settings, for `celery-agents new`."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ...worker.errors import ConfigurationError

_TEMPLATES: Final = Path(__file__).parent / "project_template"
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*([_-][A-Za-z0-9]+)*")
_LONGEST_NAME: Final = 50

# Where each template goes; {package} is the name of the Python package.
_FILES: Final[Mapping[str, str]] = {
    "README.md.template": "README.md",
    "pyproject.toml.template": "pyproject.toml",
    "init.py.template": "{package}/__init__.py",
    "agents.py.template": "{package}/agents.py",
    "test_agents.py.template": "tests/test_agents.py",
    "env.template": ".env.example",
    "compose.yaml.template": "compose.yaml",
    "Dockerfile.template": "Dockerfile",
    "gitignore.template": ".gitignore",
}


def write_project(name: str, parent: Path) -> tuple[Path, list[str]]:
    """Write the project into a new folder of its name.

    Args:
        name: Letters, digits, `-` and `_`; the Python package has `_` for `-`.
        parent: The folder in which the project's folder is made.

    Returns:
        The new folder, and the files in it.

    Raises:
        ConfigurationError: The name cannot be a package's, the folder exists, or it cannot be written.
    """
    package = check_project_name(name)
    folder = parent / name
    values = {"{{name}}": name, "{{package}}": package}
    try:
        folder.mkdir()
    except FileExistsError:
        raise ConfigurationError(
            f"{str(folder)!r} exists, and nothing in it was changed; choose another name or remove it"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{str(folder)!r} cannot be made: {error.strerror}") from error
    written: list[str] = []
    for template, target in _FILES.items():
        path = folder / target.format(package=package)
        path.parent.mkdir(exist_ok=True)
        path.write_text(_fill((_TEMPLATES / template).read_text(encoding="utf-8"), values), encoding="utf-8")
        written.append(str(path.relative_to(folder)))
    return folder, written


def check_project_name(name: str) -> str:
    """Return the name of the Python package of a project.

    Raises:
        ConfigurationError: It would be no package name, or would hide another package.
    """
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise ConfigurationError(
            f"{name!r} cannot be a project's name: write up to {_LONGEST_NAME} letters and digits, beginning with a "
            "letter, with single '-' or '_' between them, like my_shop"
        )
    package = name.replace("-", "_").lower()
    if keyword.iskeyword(package) or package == "tests":
        raise ConfigurationError(f"{name!r} cannot be a project's name: Python or its tests use it; take another one")
    if package in sys.stdlib_module_names or _is_importable(package):
        raise ConfigurationError(
            f"{name!r} cannot be a project's name: there is a Python package {package!r}, which it would hide; take "
            "another one, like my_" + package
        )
    return package


def _is_importable(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _fill(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text
