"""Which server counts as primary by the answers of several Sentinels, and what is said when none does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis.sentinel import MasterNotFoundError

from celery_agents.worker.store.redis.pools import Sentinels


def state(port: int, epoch: int, **flags: bool | str) -> dict[str, Any]:
    known = {"is_master": True, "is_sdown": False, "is_odown": False, "num-other-sentinels": 2}
    return {**known, "ip": "10.0.0.1", "port": port, "config-epoch": epoch, **flags}


class Answers(Sentinels):
    """Sentinels that answer as a test says."""

    def __init__(self, *answers: dict[str, Any] | str) -> None:
        super().__init__((), {})
        self._answers = answers

    def ask_all(self, *, patient: bool = True) -> Iterator[tuple[str, dict[str, Any] | str]]:
        del patient
        return ((f"s{number}", answer) for number, answer in enumerate(self._answers, 1))


def test_the_newest_configuration_counts_and_not_the_first_answer() -> None:
    lagging, led = {"main": state(6001, 4)}, {"main": state(6002, 5)}
    assert Answers(lagging, "away", led).discover_master("main") == ("10.0.0.1", 6002)


def test_one_server_under_two_names_is_no_disagreement() -> None:
    by_name, by_address = {"main": {**state(6001, 4, runid="a"), "ip": "redis-1"}}, {"main": state(6001, 4, runid="a")}
    assert Answers(by_address, by_name).discover_master("main") == ("10.0.0.1", 6001)


def test_a_primary_that_is_down_does_not_count_however_new() -> None:
    down, former = {"main": state(6002, 5, is_odown=True)}, {"main": state(6001, 4)}
    assert Answers(down, former).discover_master("main") == ("10.0.0.1", 6001)


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        (("TimeoutError: late", "refused"), "no Sentinel answers (s1: TimeoutError: late; s2: refused); start them"),
        (({"other": state(1, 1)}, "refused"), "the Sentinels watch other and no 'main'; correct the name"),
        (
            ({"main": state(1, 1, runid="a")}, {"main": state(2, 1, runid="b")}),
            "name 10.0.0.1:1 and 10.0.0.1:2 as primary of 'main': they watch different servers under this name",
        ),
        (({"main": state(1, 1, is_sdown=True)},), "the Sentinels see no primary of 'main' that is up"),
    ],
)
def test_where_none_names_a_primary_the_reason_is_a_sentence(answers: Any, sentence: str) -> None:
    with pytest.raises(MasterNotFoundError) as refused:
        Answers(*answers).discover_master("main")
    assert sentence in str(refused.value)
