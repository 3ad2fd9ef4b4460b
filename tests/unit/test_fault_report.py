from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fault.campaign import SCENARIOS
from fault.report import CRASHES, PAGE, PARTS, POINTS, PROCESSES, SIMULATION, SOAK, main, markers

BEFORE, AFTER = "# Guarantees\n\nPromised by hand.\n\n", "\n\n## By hand too\n"
OLD_ROW = "| stops | a stop | 7 stops | **0** | – | 12.5 | 2030-01-01 | `again` |"


def scenario(counts: dict[str, int], **other: Any) -> dict[str, Any]:
    held = {"holds": True, "runs": 1, "date": "2031-02-02", "seconds": 1234.5, "violations": [], "never_happened": []}
    return {**held, "recoveries": {"n": 0}, "counts": counts, **other}


def whole() -> dict[str, Any]:
    """The verdict of a campaign in which all held; kills at c1 by both kinds of messages, at c8 by one."""
    scenarios = {name: scenario({}) for name in SCENARIOS}
    recoveries = {"n": 1234, "p50": 6.5, "p99": 7.25, "max": 7.5}
    kills = {"killed_c1_keyed": 3, "killed_c1_unsafe": 4, "killed_c8_pure": 5, "kills": 12}
    scenarios["kills-fused"] = scenario(kills, recoveries=recoveries)
    scenarios["kills-separate"] = scenario({"killed_c1_pure": 2, "killed_c9_pure": 6})
    scenarios["redis-always"] = scenario({"fault_kill": 1000, "fault_stall": 1, "jobs_completed": 15})
    simulation = {
        "ok": True, "seeds": 65_000, "seeds_by_kind": {"seeds": 60_000, "holding": 5000}, "seconds": 100.0, "seeds_per_second_and_core": 12.5, "failures": [],
        "never_happened": [], "without_a_place_in_the_fault_plan": [],
        "points": {point: 1000 + number for number, point in enumerate(POINTS)},
        "faults": {"crash": 11, "pause": 12, "swallow": 13}, "answers": {"claim lost": 14},
    }  # fmt: skip
    environment = {
        "date": "2031-02-03", "cores": 3, "system": "Linux", "python": "3.14.1", "celery": "5.7.9", "redis": "8.1 (on PATH)",
        "load": [1.25, 2, 3],
    }  # fmt: skip
    return {"scenarios": scenarios, "simulation": simulation, "holds": True, "environment": environment}


def part(page: str, name: str) -> str:
    """What stands between the markers of this part."""
    begin, end = markers(name)
    return page.partition(begin)[2].partition(end)[0]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    file = tmp_path / "page.md"
    parts = [f"By hand.\n\n{begin}\n\n{OLD_ROW}\n\n{end}" for begin, end in map(markers, PARTS)]
    file.write_text(BEFORE + "\n\n".join(parts) + AFTER)
    return file


def report(page: Path, verdict: dict[str, Any], *options: str) -> int:
    """The command, with a folder that holds this verdict."""
    (page.parent / "verdict.json").write_text(json.dumps(verdict))
    return main(["--folder", str(page.parent), "--page", str(page), *options])


def row(page: Path, name: str) -> list[str]:
    """The cells of the table row that begins with this name, without it."""
    (line,) = [line for line in page.read_text().splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def broken(verdict: dict[str, Any], name: str, *violations: str) -> dict[str, Any]:
    verdict["scenarios"][name] |= {"holds": False, "violations": list(violations)}
    return {**verdict, "holds": False}


def test_only_what_stands_between_the_markers_is_written(page: Path) -> None:
    assert report(page, whole()) == 0
    text = page.read_text()
    assert text.startswith(BEFORE)
    assert text.endswith(AFTER)
    assert text.count("\n\nBy hand.\n\n") == len(PARTS)
    assert text.count(OLD_ROW) == 1, "there was no soak"
    assert report(page, whole()) == 0
    assert page.read_text() == text


def test_the_counts_are_those_of_the_run(page: Path) -> None:
    report(page, whole())
    text = page.read_text()
    assert text.count("2031-02-03: 3 cores, Linux, Python 3.14.1, Celery 5.7.9, Redis 8.1 (on PATH); ") == 2
    assert "load average at its end 1.2, 2.0, 3.0" in text
    assert row(page, "c1")[-2:] == ["9", "**0**"]
    assert row(page, "c8")[-2:] == ["5", "**0**"]
    assert row(page, "c3")[-2:] == ["–", "–"]
    assert "Seeds by kind of the simulation: plain 60 000, holding 5 000.\n" in text
    assert row(page, "violations") == ["**0**"]
    assert row(page, "crashes, pauses, lost replies, refused connections") == ["11 · 12 · 13 · –"]
    assert row(page, "kills-fused")[2:] == [
        "**0**", "6.5 · 7.25 · 7.5 of 1 234", "1 234.5", "2031-02-02", "`python tests/fault/campaign.py --run kills-fused 0`",
    ]  # fmt: skip
    assert row(page, "redis-always")[1:3] == ["1 001 faults, 15 jobs completed", "**0**"]
    assert row(page, "drains")[1] == "–"


def test_every_scenario_and_every_crash_point_has_its_row(page: Path) -> None:
    report(page, whole())
    text = page.read_text()
    for table, names in ((CRASHES, POINTS), (PROCESSES, SCENARIOS)):
        assert [part(text, table).count(f"\n| {name} |") for name in names] == [1] * len(names)


def test_a_part_of_the_campaign_replaces_its_rows_and_leaves_the_others(page: Path) -> None:
    verdict = whole()
    verdict["scenarios"] = {"kills-fused": verdict["scenarios"]["kills-fused"], "drains": scenario({"drains": 40})}
    report(page, {**verdict, "simulation": None})
    text = page.read_text()
    assert row(page, "drains")[1:3] == ["40 drains", "**0**"]
    assert OLD_ROW in part(text, PROCESSES)
    assert (
        part(text, PROCESSES).index("| kills-fused |") < part(text, PROCESSES).index(OLD_ROW) < text.index("| drains |")
    )
    assert "| poison |" not in text, "it has never been run"
    for untouched in (CRASHES, SIMULATION, SOAK):
        assert part(text, untouched) == f"\n\n{OLD_ROW}\n\n"


def test_what_did_not_hold_changes_nothing_on_the_page(page: Path) -> None:
    verdict = broken(broken(whole(), "stops", "I6: late"), "kills-separate", "I1: job 7 committed {2: 2}")
    verdict["simulation"] |= {"ok": False, "never_happened": ["crash"]}
    (page.parent / "soak.json").write_text(json.dumps({"holds": False}))
    report(page, verdict)
    text = page.read_text()
    assert OLD_ROW in part(text, PROCESSES)
    assert "| kills-separate |" not in text
    assert "| kills-fused |" in text
    for untouched in (CRASHES, SIMULATION, SOAK):
        assert part(text, untouched) == f"\n\n{OLD_ROW}\n\n"


def test_a_soak_has_its_table(page: Path) -> None:
    found = {
        "date": "2027-01-31", "holds": True, "minutes": 30.0, "jobs": 54_321, "before": {"rss_mb": 90.5, "fds": 20},
        "after": {"rss_mb": 200.5, "fds": 20}, "grown": {"rss_mb": 110.0, "fds": 0}, "too_much": [],
        "rss_mb_per_hour": 3.5, "due": 0, "samples": [],
    }  # fmt: skip
    (page.parent / "soak.json").write_text(json.dumps(found))
    assert main(["--folder", str(page.parent), "--page", str(page)]) == 0
    text = page.read_text()
    assert "Ended on 2027-01-31: 30 minutes of load, 54 321 jobs" in text
    assert row(page, "rss_mb") == ["90.5", "200.5", "110.0"]
    assert row(page, "fds") == ["20", "20", "0"]
    assert text.count(OLD_ROW) == len(PARTS) - 1


def test_check_is_1_when_the_page_is_out_of_date_and_writes_nothing(page: Path) -> None:
    before = page.read_text()
    assert report(page, whole(), "--check") == 1
    assert page.read_text() == before
    assert report(page, whole()) == report(page, whole(), "--check") == 0
    verdict = whole()
    verdict["scenarios"]["drains"]["counts"] = {"drains": 1}
    assert report(page, verdict, "--check") == 1


BEGIN, END = markers(PROCESSES)


@pytest.mark.parametrize("text", ["", BEGIN, END + BEGIN, BEGIN + END + BEGIN + END])
def test_a_page_without_its_markers_is_refused(page: Path, text: str) -> None:
    page.write_text(text)
    with pytest.raises(ValueError, match="the page must have one line"):
        report(page, whole())
    assert page.read_text() == text


def test_the_page_of_this_clone_has_its_markers() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(text.count(marker) == 1 for name in PARTS for marker in markers(name))
