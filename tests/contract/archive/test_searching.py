"""Finding sessions: every filter, alone and together, a page at a time; and what costs add up to."""

from __future__ import annotations

import contextlib
import random

import pytest

from celery_agents.worker.archive.rows import CostBy, CostSum, Cursor, Search
from celery_agents.worker.archive.sql_archive import Archive
from celery_agents.worker.errors import InvalidInput

from support.archives import DAY_MS, cost, entry, key


def names(archive: Archive, **wanted: object) -> list[str]:
    return [each.name for each in archive.search(Search(**wanted)).sessions]  # type: ignore[arg-type]


@pytest.fixture
def filled(archive: Archive) -> Archive:
    """Three sessions, `c` the newest."""
    archive.store(
        entry(
            "a",
            agent="sales",
            status="failed",
            updated_ms=10,
            error="ReadTimeout at 10.0.0.1",
            labels={"customer": "42"},
        ),
        seen=0,
    )
    archive.store(
        entry(
            "b", agent="sales", updated_ms=20, text="The teapot is broken", labels={"customer": "42", "tier": "gold"}
        ),
        seen=0,
    )
    archive.store(
        entry("c", agent="support", updated_ms=30, text="A Teapot für Élise", labels={"customer": "7"}), seen=0
    )
    return archive


def test_sessions_come_by_their_last_update_newest_first(filled: Archive) -> None:
    assert names(filled) == ["c", "b", "a"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"status": "failed"}, ["a"]),
        ({"status": "stopped"}, []),
        ({"agent": "sales"}, ["b", "a"]),
        ({"agent": "sal"}, []),
        ({"agent": "%"}, []),
        ({"labels": {"customer": "42"}}, ["b", "a"]),
        ({"labels": {"customer": "42", "tier": "gold"}}, ["b"]),
        ({"labels": {"customer": "4"}}, []),
        ({"labels": {"tier": "42"}}, []),
        ({"since_ms": 20}, ["c", "b"]),
        ({"until_ms": 20}, ["b", "a"]),
        ({"since_ms": 21, "until_ms": 29}, []),
        ({"text": "teapot"}, ["c", "b"]),
        ({"text": "TEAP"}, ["c", "b"]),
        ({"text": "teapot broken"}, ["b"]),
        ({"text": "broken, the teapot!"}, ["b"]),
        ({"text": "pot"}, []),
        ({"text": "elise"}, ["c"]),
        ({"text": "FÜR"}, ["c"]),
        ({"text": "ReadTimeout"}, []),
        ({"error": "readtimeout"}, ["a"]),
        ({"error": "10.0.0.1"}, ["a"]),
        ({"error": "teapot"}, []),
        ({"text": "teapot", "agent": "sales", "labels": {"customer": "42"}, "since_ms": 5}, ["b"]),
        ({"text": "teapot", "error": "timeout"}, []),
    ],
    ids=str,
)  # fmt: skip
def test_a_filter_finds_what_it_says(filled: Archive, wanted: dict[str, object], found: list[str]) -> None:
    assert names(filled, **wanted) == found


@pytest.mark.parametrize("field", ["text", "error"])
@pytest.mark.parametrize("given", ["?!", "__", " \0 "])
def test_a_text_without_a_word_is_refused(filled: Archive, field: str, given: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{field}: it has no word"):
        names(filled, **{field: given})


@pytest.mark.parametrize(
    "given",
    [
        '"',
        "'",
        "a' OR 1=1 --",
        'a" OR words : "b',
        "NEAR(a b)",
        "a* AND NOT b",
        "\\'x",
        "*",
        "words:a",
        "^pot",
        "a|b:*",
    ],
)
def test_no_text_is_taken_for_a_query_language(filled: Archive, given: str) -> None:
    with contextlib.suppress(InvalidInput):
        assert names(filled, text=given) == []
    assert names(filled, agent=given) == names(filled, labels={given: given}) == []


def test_pages_follow_each_other_without_gap_or_repetition(archive: Archive) -> None:
    randomly = random.Random(5)
    for number in range(57):
        archive.store(entry(f"s{number}", updated_ms=randomly.randrange(9), agent=randomly.choice("xy")), seen=0)
    for wanted in ({}, {"agent": "x"}):
        everything = names(archive, limit=100, **wanted)
        found: list[str] = []
        cursor: Cursor | None = None
        for _ in range(20):
            page = archive.search(Search(limit=7, after=cursor, **wanted))
            found += [each.name for each in page.sessions]
            cursor = page.after
            if cursor is None:
                break
        assert found == everything
        assert len(set(found)) == len(found)
    middle = names(archive, after=Cursor(4), limit=100)
    assert middle == [each.name for each in archive.search(Search(limit=100)).sessions if each.session.updated_ms < 4]


def test_a_page_that_ends_with_the_last_session_has_no_next_one(filled: Archive) -> None:
    assert filled.search(Search(limit=3)).after is None
    assert filled.search(Search(limit=2)).after == Cursor(20, 2)


def test_words_of_scripts_without_blanks_are_found_by_their_beginning(archive: Archive) -> None:
    archive.store(entry("a", text="東京タワー は高い. Ещё раз: Ёлка"), seen=0)
    assert names(archive, text="東京") == names(archive, text="елка") == ["a"]
    assert names(archive, text="タワー") == []


def test_a_long_text_is_searched_by_its_beginning(archive: Archive) -> None:
    text = " ".join(f"word{number}" for number in range(50_000))
    archive.store(entry("a", text=text), seen=0)
    archive.store(entry("b", text="x" * 1_000_000), seen=0)
    archive.store(entry("c", text=" ".join("ab" * 600 + str(number) for number in range(9_000))), seen=0)
    assert names(archive, text="word3999") == ["a"]
    assert names(archive, text="word49999") == []
    assert names(archive, text="x" * 200) == ["b"]


# --- costs ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def billed(archive: Archive) -> Archive:
    """Two sessions: one of two executions, of which the second has asked two models, and one whose price is not known."""
    first = (
        cost("e1"),
        cost("e2", ended_ms=2 * DAY_MS),
        cost("e2", model="test:large", ended_ms=2 * DAY_MS, steps=1, tokens=10, cost=2.0),
    )
    archive.store(entry("a", labels={"customer": "42"}, costs=first), seen=0)
    archive.store(
        entry(
            "b",
            labels={"customer": "7"},
            costs=(cost("e3", agent="sales", ended_ms=3 * DAY_MS - 1, cost=0.0, is_priced=False),),
        ),
        seen=0,
    )
    archive.store(entry("c"), seen=0)
    return archive


def test_costs_by_agent(billed: Archive) -> None:
    assert billed.costs(CostBy.AGENT) == [
        CostSum(name="helpdesk", executions=2, steps=5, tokens=210, cost=3.0, unpriced=0),
        CostSum(name="sales", executions=1, steps=2, tokens=100, cost=0.0, unpriced=1),
    ]


def test_costs_by_model(billed: Archive) -> None:
    assert [(each.name, each.executions, each.cost, each.unpriced) for each in billed.costs(CostBy.MODEL)] == [
        ("test:large", 1, 2.0, 0), ("test:small", 3, 1.0, 1),
    ]  # fmt: skip


def test_costs_by_day_of_utc(billed: Archive) -> None:
    assert [(each.name, each.executions, each.cost) for each in billed.costs(CostBy.DAY)] == [
        ("1970-01-03", 2, 2.5), ("1970-01-02", 1, 0.5),
    ]  # fmt: skip


def test_costs_by_a_label_name_sessions_without_it_by_nothing(billed: Archive) -> None:
    assert [(each.name, each.executions) for each in billed.costs(CostBy.LABEL, label="customer")] == [
        ("42", 2),
        ("7", 1),
    ]
    (sum_of_all,) = billed.costs(CostBy.LABEL, label="tier")
    assert (sum_of_all.name, sum_of_all.executions) == ("", 3)


def test_costs_by_a_label_are_those_of_the_root_for_sessions_below(archive: Archive) -> None:
    archive.store(entry("a", labels={"customer": "42"}, costs=(cost("e1"),)), seen=0)
    archive.store(entry(f"a.{'0' * 32}", parent_id="a", costs=(cost("e2"),)), seen=0)
    archive.store(entry(f"a.{'1' * 32}", forked_from="a", costs=(cost("e3"),)), seen=0)
    archive.store(entry(f"a.{'2' * 32}", forked_from="a", labels={"customer": "7"}, costs=(cost("e4"),)), seen=0)
    archive.store(entry(f"a.{'3' * 32}", parent_id=f"a.{'2' * 32}", costs=(cost("e5"),)), seen=0)
    archive.store(entry(f"a.{'4' * 32}", parent_id=f"a.{'3' * 32}", costs=(cost("e6"),)), seen=0)
    sums = {each.name: (each.executions, each.cost) for each in archive.costs(CostBy.LABEL, label="customer")}
    assert sums == {"42": (2, 1.0), "": (1, 0.5), "7": (3, 1.5)}, "a fork is a root"


def test_costs_by_a_label_are_a_sessions_own_before_those_of_the_root(archive: Archive) -> None:
    archive.store(entry("a", labels={"customer": "42"}, costs=(cost("e1"),)), seen=0)
    archive.store(entry(f"a.{'0' * 32}", parent_id="a", labels={"note": "x"}, costs=(cost("e2"),)), seen=0)
    archive.store(entry(f"a.{'1' * 32}", parent_id="a", labels={"customer": "7"}, costs=(cost("e3"),)), seen=0)
    sums = {each.name: each.executions for each in archive.costs(CostBy.LABEL, label="customer")}
    assert sums == {"42": 2, "7": 1}


def test_costs_leave_out_what_is_in_redis_again(billed: Archive) -> None:
    found = billed.search(Search(labels={"customer": "42"})).sessions
    assert [each.name for each in billed.costs(CostBy.AGENT, without=[each.place for each in found])] == ["sales"]


def test_costs_leave_out_any_number_of_sessions_and_those_that_were_added_later(billed: Archive) -> None:
    found = [each.place for each in billed.search(Search(labels={"customer": "42"})).sessions]
    many = [*range(1_000_000, 1_070_000), *found]
    assert [each.name for each in billed.costs(CostBy.AGENT, without=many)] == ["sales"]
    newest = billed.newest_place()
    assert newest == max(each.place for each in billed.search(Search()).sessions)
    before = billed.costs(CostBy.AGENT)
    billed.store(entry("later", costs=(cost(),)), seen=0)
    assert billed.costs(CostBy.AGENT, up_to=newest) == before != billed.costs(CostBy.AGENT)


def test_costs_of_a_time(billed: Archive) -> None:
    assert [each.executions for each in billed.costs(CostBy.AGENT, since_ms=2 * DAY_MS)] == [1, 1]
    assert [each.name for each in billed.costs(CostBy.AGENT, until_ms=2 * DAY_MS)] == ["helpdesk"]
    assert billed.costs(CostBy.DAY, since_ms=4 * DAY_MS) == []


def test_an_execution_between_two_times_costs_in_the_later_one(billed: Archive) -> None:
    (whole,) = [each for each in billed.costs(CostBy.AGENT) if each.name == "helpdesk"]
    (before,) = billed.costs(CostBy.AGENT, until_ms=2 * DAY_MS)
    after = {each.name: each for each in billed.costs(CostBy.AGENT, since_ms=2 * DAY_MS)}["helpdesk"]
    assert (before.executions, after.executions) == (1, 1)
    assert before.cost + after.cost == whole.cost


def test_costs_of_a_deleted_session_are_gone(billed: Archive) -> None:
    billed.bury(key("a"), expires_ms=1)
    assert [each.name for each in billed.costs(CostBy.AGENT)] == ["sales"]


def test_costs_of_many_tokens_are_added_up(archive: Archive) -> None:
    archive.store(entry(costs=tuple(cost(f"e{number}", tokens=2**53) for number in range(2_000))), seen=0)
    assert archive.costs(CostBy.AGENT)[0].tokens == 2_000 * 2**53
