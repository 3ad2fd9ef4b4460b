"""kill -9 of workers at every crash point, while answers are waited for at a provider that has a book of its own.

The campaign does it at length, at every crash point, with four agents, and with a Redis that is killed, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fault.real.provider_jobs import kill_jobs

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:no worker has registered"),
]


def test_each_answer_is_paid_once_while_workers_die(tmp_path: Path) -> None:
    verdict = kill_jobs(tmp_path, ("within_8h",), 1, 1, points=("p0", "p1", "p2", "c2"), timeout=90)
    print(verdict)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(("within_8h_jobs", "kills_p0", "kills_p1", "kills_p2", "kills_c2")), str(verdict)
