from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fault.campaign import SCENARIOS
from fault.report import PAGE, POINTS, REAL, SIMULATION, main, markers, refresh

BEFORE, AFTER = "# Guarantees\n\nPromised by hand.\n\n", "\n\n## By hand too\n"
BEGIN, END = markers(REAL)
BEGIN_SIMULATION, END_SIMULATION = markers(SIMULATION)


def scenario(counts: dict[str, int], **other: Any) -> dict[str, Any]:
    held = {"holds": True, "runs": 1, "seconds": 1234.5, "violations": [], "never_happened": []}
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


@pytest.fixture
def page(tmp_path: Path) -> Path:
    file = tmp_path / "page.md"
    simulation = f"{BEGIN_SIMULATION}\n\nwhat was simulated before\n\n{END_SIMULATION}"
    file.write_text(f"{BEFORE}{BEGIN}\n\nwhat was counted before\n\n{END}\n\nBy hand.\n\n{simulation}{AFTER}")
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
    assert text.startswith(BEFORE + BEGIN)
    assert f"{END}\n\nBy hand.\n\n{BEGIN_SIMULATION}" in text
    assert text.endswith(END_SIMULATION + AFTER)
    assert "before\n" not in text
    assert report(page, whole()) == 0
    assert page.read_text() == text


def test_the_counts_are_those_of_the_run(page: Path) -> None:
    report(page, whole())
    text = page.read_text()
    assert "2031-02-03: 3 cores, Linux, Python 3.14.1, Celery 5.7.9, Redis 8.1 (on PATH); " in text
    assert "load average at the end 1.2, 2.0, 3.0" in text
    assert "did not hold" not in text
    assert row(page, "c1")[-2:] == ["9", "**0**"]
    assert row(page, "c8")[-2:] == ["5", "**0**"]
    assert row(page, "c3")[-2:] == ["–", "–"]
    assert "Seeds by kind of the simulation: plain 60 000, holding 5 000.\n" in text
    assert row(page, "violations") == ["**0**"]
    assert row(page, "crashes, pauses, lost replies, refused connections") == ["11 · 12 · 13 · –"]
    assert row(page, "kills-fused")[3:] == [
        "6.5 · 7.25 · 7.5 of 1 234", "1 234.5", "1", "`python tests/fault/campaign.py --run kills-fused 0`",
    ]  # fmt: skip
    assert row(page, "redis-always")[1:3] == ["1 001 faults, 15 jobs completed", "**0**"]
    assert row(page, "drains")[1] == "–"


def test_every_scenario_and_every_crash_point_has_its_row(page: Path) -> None:
    report(page, whole())
    for name in (*SCENARIOS, *POINTS):
        assert all(row(page, name))


def test_a_violation_is_shown_and_the_page_says_that_the_run_did_not_hold(page: Path) -> None:
    report(page, broken(whole(), "kills-fused", "I1: job 7 committed {2: 2}", "workers: ended with -6"))
    text = page.read_text()
    assert "**This run did not hold.**" in text
    assert "- `kills-fused`: I1: job 7 committed {2: 2}\n" in text
    assert row(page, "kills-fused")[2] == "2"
    assert row(page, "c1")[-1] == row(page, "c8")[-1] == "1"
    assert row(page, "c9")[-1] == "**0**", "nobody was killed there in the run that is broken"


def test_a_run_that_broke_off_has_not_shown_that_nothing_is_lost(page: Path) -> None:
    report(page, broken(whole(), "kills-fused", "broken off: Traceback\n  somewhere\nOSError: no room"))
    assert "- `kills-fused`: broken off: Traceback … OSError: no room\n" in page.read_text()
    assert row(page, "c1")[-1] == "–"


def test_a_seed_that_fails_is_shown_with_its_replay(page: Path) -> None:
    verdict = whole()
    violations = [{"invariant": "I2", "text": "I2: stuck"}, {"invariant": "I4", "text": "I4: paid twice"}]
    failure = {"seed": 17, "violations": violations, "replay": "python -m fault.sim.run --seed 17"}
    verdict["simulation"] |= {"ok": False, "failures": [failure]}
    report(page, {**verdict, "holds": False})
    assert "**This simulation did not hold.**" in page.read_text()
    assert "- seed 17: I2: stuck (`python -m fault.sim.run --seed 17`)" in page.read_text()
    assert row(page, "violations") == ["2"]


def test_what_was_not_run_and_what_never_happened_is_said(page: Path) -> None:
    verdict = whole()
    del verdict["scenarios"]["drains"], verdict["simulation"], verdict["environment"]
    verdict["scenarios"]["poison"] |= {"holds": False, "never_happened": ["deaths"]}
    report(page, {**verdict, "holds": False})
    text = page.read_text()
    assert "Not run: drains." in text
    assert "- `poison`: never happened: deaths" in text
    assert row(page, "poison")[2] == "–"
    assert "what was simulated before" in text


def test_a_soak_has_its_table_where_there_was_one(page: Path) -> None:
    report(page, whole())
    assert "### Soak" not in page.read_text()
    found = {
        "date": "2027-01-31", "holds": False, "minutes": 30.0, "jobs": 54_321, "before": {"rss_mb": 90.5, "fds": 20},
        "after": {"rss_mb": 200.5, "fds": 20}, "grown": {"rss_mb": 110.0, "fds": 0}, "too_much": ["rss_mb"],
        "rss_mb_per_hour": 3.5, "due": 0, "samples": [],
    }  # fmt: skip
    (page.parent / "soak.json").write_text(json.dumps(found))
    report(page, whole())
    text = page.read_text()
    assert "Ended on 2027-01-31: 30 minutes of load, 54 321 jobs" in text
    assert "**The soak did not hold.**" in text
    assert "This run did not hold" not in text
    assert row(page, "rss_mb (too much)") == ["90.5", "200.5", "110.0"]
    assert row(page, "fds") == ["20", "20", "0"]


def test_check_is_1_when_the_page_is_out_of_date_and_writes_nothing(page: Path) -> None:
    before = page.read_text()
    assert report(page, whole(), "--check") == 1
    assert page.read_text() == before
    assert report(page, whole()) == report(page, whole(), "--check") == 0
    assert report(page, broken(whole(), "drains", "drain: late"), "--check") == 1


def test_only_a_half_that_is_whole_and_holds_writes_its_part_of_the_page_by_itself(page: Path) -> None:
    before, file = page.read_text(), page.parent / "verdict.json"
    part, lost = whole(), whole()
    del part["scenarios"]["stops"], part["simulation"]
    lost["simulation"] |= {"ok": False, "never_happened": ["crash"]}
    assert not refresh(page.parent, page)
    for other in (part, broken({**whole(), "simulation": lost["simulation"]}, "stops", "I6: late")):
        file.write_text(json.dumps(other))
        assert not refresh(page.parent, page)
    assert page.read_text() == before
    file.write_text(json.dumps({**lost, "holds": False}))
    assert refresh(page.parent, page)
    assert "what was counted before" not in page.read_text()
    assert "what was simulated before" in page.read_text()
    file.write_text(json.dumps({**whole(), "scenarios": {}}))
    assert refresh(page.parent, page)
    assert "what was simulated before" not in page.read_text()
    assert report(page, whole(), "--check") == 0


@pytest.mark.parametrize("text", ["", BEGIN, END + BEGIN, BEGIN + END + BEGIN + END])
def test_a_page_without_its_markers_is_refused(page: Path, text: str) -> None:
    page.write_text(text)
    with pytest.raises(ValueError, match="the page must have one line"):
        report(page, whole())
    assert page.read_text() == text


def test_the_page_of_this_clone_has_its_markers() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(text.count(marker) == 1 for marker in (BEGIN, END, BEGIN_SIMULATION, END_SIMULATION))
