from __future__ import annotations

import json
import os
import signal
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.http_service import ServiceProcess, call
from support.ledger import Ledger, post_effect
from support.wait import wait_until


def test_an_effect_is_on_the_disk_before_it_is_answered(ledger: Ledger) -> None:
    for number in range(20):
        answer = post_effect(ledger.url, f"key-{number}", amount=number)
        # Read past the service: whoever has the answer finds the line, even if the service is killed now.
        assert ledger.records()[-1]["key"] == f"key-{number}"
        assert ledger.records()[-1]["amount"] == number
        assert answer == {"n": number + 1, "repeated": False, "first": number + 1}


def test_at_the_gate_the_effect_is_done_and_not_answered(ledger: Ledger) -> None:
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(post_effect, ledger.url, "k", gate="hold")
        wait_until(lambda: ledger.entries("k"), "the effect is written down")
        assert not answer.done()
        ledger.open("hold")
        assert answer.result(10)["n"] == 1
        assert post_effect(ledger.url, "other", gate="hold")["n"] == 2


def test_a_keyed_service_has_one_effect_for_a_key_and_counts_every_delivery(ledger: Ledger) -> None:
    answers = [post_effect(ledger.url, "k", dedupe=True, attempt=attempt) for attempt in range(3)]
    assert [answer["repeated"] for answer in answers] == [False, True, True]
    assert {answer["first"] for answer in answers} == {1}
    assert ledger.deliveries() == {"k": 3}
    assert ledger.effects() == {"k": 1}


def test_without_dedupe_every_delivery_is_an_effect(ledger: Ledger) -> None:
    for _ in range(3):
        post_effect(ledger.url, "k")
    assert ledger.effects() == {"k": 3}


def test_two_at_once_are_one_first_and_one_repetition(ledger: Ledger) -> None:
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda _: post_effect(ledger.url, "k", dedupe=True), range(64)))
    assert sum(not answer["repeated"] for answer in answers) == 1
    assert ledger.deliveries() == {"k": 64}
    assert ledger.effects() == {"k": 1}
    assert [entry["n"] for entry in ledger.entries()] == list(range(1, 65))


def test_a_lookup_tells_whether_it_happened(ledger: Ledger) -> None:
    assert call(f"{ledger.url}/lookup?key=k") == {"happened": False, "n": None, "entry": None}
    post_effect(ledger.url, "k", title="leak")
    found = call(f"{ledger.url}/lookup?key=k")
    assert (found["happened"], found["n"], found["entry"]["title"]) == (True, 1, "leak")


def test_every_test_has_a_space_of_its_own(ledger: Ledger, ledger_process: ServiceProcess) -> None:
    other = Ledger(ledger_process, "another")
    post_effect(other.url, "k")
    assert ledger.entries() == []


@pytest.mark.parametrize("body", [{}, {"key": 7}, [], "k"])
def test_an_effect_without_a_key_is_refused_and_written_nowhere(ledger: Ledger, body: object) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        call(f"{ledger.url}/effect", body)
    assert refused.value.code == 400
    assert ledger.records() == []


def test_what_a_killed_ledger_answered_is_there_when_it_comes_back(tmp_path: Path) -> None:
    with ServiceProcess("support.ledger", tmp_path) as service:
        post_effect(service.space("s"), "k", dedupe=True)
        service.process.kill()
        (tmp_path / "port").unlink()
        # Killed in the middle of a line: that one was never answered.
        with (tmp_path / "s.jsonl").open("ab") as file:
            file.write(json.dumps({"n": 2, "key": "half"}).encode()[:10])
        service.start()
        assert call(f"{service.space('s')}/lookup?key=k")["happened"]
        assert not call(f"{service.space('s')}/lookup?key=half")["happened"]
        assert post_effect(service.space("s"), "k", dedupe=True)["repeated"]
        assert [entry["key"] for entry in service.records("s")] == ["k", "k"]


def test_a_client_that_leaves_at_the_gate_is_not_an_error(ledger: Ledger, ledger_process: ServiceProcess) -> None:
    with pytest.raises(OSError, match="timed out"):
        post_effect(ledger.url, "k", gate="never", timeout=0.2)
    assert ledger.effects() == {"k": 1}
    assert "Traceback" not in ledger_process.process.text()


def test_the_ledger_is_another_process(ledger_process: ServiceProcess) -> None:
    assert ledger_process.process.pid != os.getpid()
    assert os.getpgid(ledger_process.process.pid) != os.getpgid(0)
    os.kill(ledger_process.process.pid, signal.SIGCONT)
