"""Finds the packages for pyproject.toml, every folder with an `__init__.py`, and the version, which names the commit.

A plain list in pyproject.toml would do, until somebody adds a folder and the wheel lacks it.
"""

import runpy
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent

NOT_SHIPPED = ("benchmarks*", "build*", "dist*", "docs*", "examples*", "tests*")

setup(
    version=runpy.run_path(str(ROOT / "config" / "version.py"))["__version__"],
    packages=["celery_agents", *(f"celery_agents.{name}" for name in find_packages(exclude=NOT_SHIPPED))],
    # By this name setuptools knows which module of the root is not one of the package.
    script_name="setup.py",
)
