"""Finds the packages for pyproject.toml: every folder with an `__init__.py`, under the name `celery_agents`.

A plain list in pyproject.toml would do, until somebody adds a folder and the wheel lacks it.
"""

from setuptools import find_packages, setup

NOT_SHIPPED = ("benchmarks*", "build*", "dist*", "docs*", "examples*", "tests*")

setup(
    packages=["celery_agents", *(f"celery_agents.{name}" for name in find_packages(exclude=NOT_SHIPPED))],
    # By this name setuptools knows which module of the root is not one of the package.
    script_name="setup.py",
)
