"""The parts of the crash demo."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from celery_agents.demo.crash import CrashReport, is_ready
from celery_agents.demo.ledger import DRIVER_CALL, EFFECT, Ledger, serve
from celery_agents.tasks.local.embedded_redis import free_port

from support.wait import wait_until


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    port = free_port()
    Thread(target=serve, args=(port, tmp_path / "ledger.jsonl"), daemon=True).start()
    made = Ledger(f"http://127.0.0.1:{port}/")
    wait_until(lambda: is_ready(made), "the ledger answers", timeout=5)
    return made


def test_the_ledger_has_each_line_on_the_disk_before_it_answers(ledger: Ledger, tmp_path: Path) -> None:
    assert ledger.write(EFFECT, "a", step=2)["repeated"] is False
    assert ledger.write(EFFECT, "a", step=2)["repeated"] is True
    ledger.write(DRIVER_CALL, "step 1")
    assert [entry["key"] for entry in ledger.entries()] == ["a", "a", "step 1"]
    assert [entry["n"] for entry in ledger.entries(EFFECT)] == [1, 2]
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 3


def test_only_the_first_delivery_is_held(ledger: Ledger) -> None:
    with pytest.raises(TimeoutError):
        ledger.write(EFFECT, "a", hold=5, timeout_seconds=0.2)
    assert ledger.write(EFFECT, "a", hold=5, timeout_seconds=2)["repeated"] is True


def report(calls: dict[str, int], deliveries: list[tuple[str, float]], killed_at: float | None = 10.0) -> CrashReport:
    seen: set[str] = set()
    entries: list[dict[str, Any]] = []
    for key, at in deliveries:
        entries.append({"key": key, "at": at, "repeated": key in seen})
        seen.add(key)
    result: Any = SimpleNamespace(status="completed", step_count=2)
    return CrashReport(result, Counter(calls), entries, killed_at)


def test_one_effect_under_one_key_and_one_call_a_step_is_what_was_promised() -> None:
    good = report({"step 1": 1, "step 2": 1}, [("k", 9.0), ("k", 16.5)])
    assert good.holds
    assert good.recovery_seconds == 6.5
    assert "recovered after     6.5 s" in "\n".join(good.lines())


@pytest.mark.parametrize(
    "bad",
    [
        report({"step 1": 1, "step 2": 2}, [("k", 9.0), ("k", 16.5)]),
        report({"step 1": 1}, [("k", 9.0), ("k", 16.5)]),
        report({"step 1": 1, "step 2": 1}, [("k", 9.0), ("other", 16.5)]),
        report({"step 1": 1, "step 2": 1}, [("k", 9.0)]),
        report({"step 1": 1, "step 2": 1}, [("k", 9.0), ("k", 16.5)], killed_at=None),
    ],
    ids=["asked twice", "a step without a call", "two effects", "never recovered", "nobody was killed"],
)
def test_anything_else_is_not(bad: CrashReport) -> None:
    assert not bad.holds
