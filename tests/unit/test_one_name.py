from __future__ import annotations

import sys
from pathlib import Path

import celery_agents
import celery_agents.worker.state  # something below the root

from support.product import PACKAGE, ROOT


def test_the_tests_run_against_this_clone() -> None:
    assert Path(celery_agents.__file__).parent.samefile(ROOT)


def test_the_product_is_loaded_under_one_name_only() -> None:
    names = [name for name, module in list(sys.modules.items()) if _is_product(getattr(module, "__file__", None))]
    assert f"{PACKAGE}.worker.state" in names
    assert [name for name in names if name != PACKAGE and not name.startswith(f"{PACKAGE}.")] == []


def _is_product(file: str | None) -> bool:
    if file is None or not Path(file).is_relative_to(ROOT):
        return False
    return Path(file).relative_to(ROOT).parts[0] not in (".venv", "tests", "examples", "benchmarks", "docs")
