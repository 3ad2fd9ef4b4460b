"""The demo's ledger, its lines for people, and its closing table."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

from celery_agents.demo.ledger import URL_VARIABLE, Entry, Kind, Ledger, Side
from celery_agents.demo.ledger import serve as serve_ledger
from celery_agents.demo.narrator import Narrator
from celery_agents.demo.report import Report, SideReport
from celery_agents.demo.shop import ToolRequest, decide_next, look_up_order, pay_refund
from celery_agents.tasks.local.embedded_redis import free_port

from support.wait import wait_until


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    port = free_port()
    Thread(target=serve_ledger, args=(port, tmp_path / "ledger.jsonl"), daemon=True).start()
    made = Ledger(f"http://127.0.0.1:{port}/")
    wait_until(made.answers, "the ledger answers", timeout=5)
    monkeypatch.setenv(URL_VARIABLE, made.url)
    return made


def test_a_refund_under_a_known_key_pays_nothing(ledger: Ledger, tmp_path: Path) -> None:
    for key in ("a", "a", "b"):
        assert pay_refund(Side.AGENTS, key, "17", 2400) == "refunded 24.00 for order 17"
    assert [entry.repeated for entry in ledger.entries()] == [False, True, False]
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 3


def test_only_the_first_refund_of_each_side_is_held(ledger: Ledger) -> None:
    for side in Side:
        with pytest.raises(TimeoutError):
            ledger.write(side, Kind.REFUND, key="a", hold=5, timeout_seconds=0.2)
        assert ledger.write(side, Kind.REFUND, key="b", hold=5, timeout_seconds=2).key == "b"


def test_the_job_is_looked_up_refunded_and_answered() -> None:
    assert decide_next("hello", []) == "Which order is it about? Please give its number."
    assert decide_next("Order 17", []) == ToolRequest("find_order", {"number": "17"})
    order = look_up_order("17")
    assert decide_next("Order 17", [order]) == ToolRequest("refund", {"number": "17", "cents": 2400})
    answer = decide_next("Order 17", [order, "refunded 24.00 for order 17"])
    assert answer == "I am sorry that your teapot arrived broken. I refunded 24.00 for order 17."
    assert decide_next("Order 5", ["there is no order 5"]) == "I could not help: there is no order 5"


def entry(side: Side, kind: Kind, **values: object) -> Entry:
    return Entry(side=side, kind=kind, at=12.5, pid=1, worker="worker 1", **values)  # type: ignore[arg-type]


def test_lines_tell_who_pays_again_and_who_does_not() -> None:
    narrator = Narrator(began_at=10.0)
    lines = [
        narrator.describe(entry(Side.AGENTS, Kind.REFUND, key="a", cents=2400)),
        narrator.describe(entry(Side.AGENTS, Kind.REFUND, key="a", cents=2400, repeated=True)),
        narrator.describe(entry(Side.PLAIN, Kind.REFUND, key="b", cents=2400)),
        narrator.describe(entry(Side.PLAIN, Kind.REFUND, key="c", cents=2400)),
    ]
    assert lines[0] == "   2.5 s  celery-agents  worker 1 calls refund: the ledger pays 24.00"
    assert "under the same key: the ledger knows it and pays nothing" in lines[1]
    assert lines[2].endswith("the ledger pays 24.00")
    assert lines[3].endswith("the ledger pays 24.00 AGAIN, under a new key")


def test_the_table_counts_refunds_that_were_paid_out() -> None:
    lines = [
        entry(Side.AGENTS, Kind.ANSWER),
        entry(Side.AGENTS, Kind.REFUND, key="a", cents=2400),
        entry(Side.AGENTS, Kind.REFUND, key="a", cents=2400, repeated=True),
        entry(Side.PLAIN, Kind.REFUND, key="b", cents=2400),
        entry(Side.PLAIN, Kind.REFUND, key="c", cents=2400),
    ]
    sides = [SideReport.count(side, lines, seconds=1.0, answer="") for side in Side]
    report = Report(agents=sides[0], plain=sides[1], steps=1)
    assert report.holds
    assert "refunds in the ledger  1  (24.00 paid out)  2  (48.00 paid out)" in "\n".join(report.lines())
    assert not Report(agents=sides[1], plain=sides[1], steps=1).holds, "two refunds break the promise"
    assert not Report(agents=sides[0], plain=sides[1], steps=2).holds, "a step without a paid answer is odd"
