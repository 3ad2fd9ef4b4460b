"""Values work with the documented pydantic alone, when a version lacks what is not documented."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from celery_agents.worker.state.values.value import MISSING, Documented, Internals

TESTS = Path(__file__).parents[2]


def test_the_installed_pydantic_has_all_that_is_used() -> None:
    assert MISSING == ()


@pytest.mark.parametrize("models", [Internals, Documented])
def test_json_of_any_model_is_read_strictly(models: type[Internals] | type[Documented]) -> None:
    class Point(BaseModel):
        x: int

    read = models.strict_json_reader(Point)
    assert read(b'{"x": 1}') == Point(x=1)
    with pytest.raises(ValidationError):
        read(b'{"x": "1"}')


def test_values_are_built_read_and_written_by_documented_methods_where_the_others_are_missing() -> None:
    probe = "from celery_agents.worker.state.values.value import MISSING; assert MISSING, MISSING; "
    tests = ["unit/state/test_agent_state.py", "unit/state/test_steps.py", "unit/state/test_values_by_hand.py"]
    code = (
        "import support.unmarked_pydantic; "
        f"{probe}"
        "import pytest, sys; "
        f"sys.exit(pytest.main(['-q', '-x', '-p', 'no:cacheprovider', '-p', 'no:xdist', *{tests!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=TESTS, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
