"""Real workers and a real Redis under fire, each fault once; the campaign does the same more often."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault.real import kills, messages, pauses, poison, providers, redis_faults, replies, waiting
from support.verdict import Verdict

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]


def passed(verdict: Verdict, *wanted: str) -> Verdict:
    """Nothing is broken, and what should have happened did."""
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(wanted), str(verdict)
    return verdict


def test_a_redis_that_stops_dies_stalls_or_hangs_up_loses_nothing(tmp_path: Path) -> None:
    verdict = redis_faults.storm(tmp_path / "lab", ["stop_1", "kill", "stall", "disconnect"], 1)
    passed(verdict, "jobs_completed")
    assert verdict.counts["model_calls_extra"] == verdict.counts["outcome_unknown"] == 0


def test_a_full_redis_keeps_what_was_paid_refuses_submits_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    verdict = passed(redis_faults.full(tmp_path / "lab"), "journaled_when_full", "submit_refused")
    assert verdict.counts["model_calls_extra"] == 0


def test_an_append_only_file_that_was_cut_anywhere_leaves_whole_sessions_that_go_on(tmp_path: Path) -> None:
    passed(redis_faults.cut_files(tmp_path / "lab", 10, 1), "cuts_between", "cuts_inside", "jobs_after_a_cut")


@pytest.mark.long
def test_workers_that_saw_what_redis_lost_go_on_from_what_it_has(tmp_path: Path) -> None:
    passed(redis_faults.lose_the_last(tmp_path / "lab", 2, 1), "losses", "bytes_lost", "jobs_after_a_loss")


def test_any_one_reply_of_redis_may_be_lost(tmp_path: Path) -> None:
    passed(replies.lose_each(tmp_path / "lab", 1), "replies_lost")


def test_messages_may_come_twice_late_in_another_order_or_not_at_all(tmp_path: Path) -> None:
    verdict = messages.chaos(tmp_path / "lab", 50, 1)
    passed(verdict, "doubled", "dropped", "delayed", "reordered", "replayed")
    assert verdict.counts["model_calls_extra"] == 0


def test_no_element_of_the_queue_ends_a_worker_and_each_is_quarantined_with_its_reason(tmp_path: Path) -> None:
    passed(messages.hostile(tmp_path / "lab", 1000, 1), "quarantined", "random_elements")


@pytest.mark.long
def test_no_usable_answer_of_a_failing_provider_is_paid_twice(tmp_path: Path) -> None:
    kinds = ("status", "cut", "truncate", "malformed", "wrong_types", "empty", "hang")
    passed(providers.failing_provider(tmp_path / "lab", 50, 1), *(f"fault_{kind}" for kind in kinds), "retried")


@pytest.mark.long
def test_a_poison_step_is_parked_and_takes_nobody_along(tmp_path: Path) -> None:
    passed(poison.poison(tmp_path / "lab", 1), "deaths", "poison_kill_process_failed", "endless_driver_failed")


def test_a_worker_that_stood_still_past_its_lease_does_no_harm(tmp_path: Path) -> None:
    passed(pauses.zombies(tmp_path / "lab", 2, 1), "recovered", "pauses")


def test_a_worker_that_is_asked_to_leave_finishes_or_gives_back(tmp_path: Path) -> None:
    verdict = passed(pauses.drains(tmp_path / "lab", 2), "drains", "deliveries_again")
    assert max(verdict.recoveries) <= 2


def test_a_worker_that_lacks_an_agent_leaves_its_steps_to_one_that_has_it(tmp_path: Path) -> None:
    passed(pauses.versions(tmp_path / "lab", 1), "moved")


def test_children_of_a_prefork_worker_may_die(tmp_path: Path) -> None:
    passed(kills.prefork(tmp_path / "lab", 20), "children_lost")


@pytest.mark.long
def test_a_stop_at_any_point_begins_nothing_and_keeps_what_there_is(tmp_path: Path) -> None:
    verdict = passed(pauses.stops(tmp_path / "lab", 1), *(f"stopped_at_{point}_stopped" for point in pauses.POINTS))
    assert verdict.counts["outcome_not_run"] > 0


@pytest.mark.long
def test_a_client_that_dies_after_its_answer_costs_seconds_and_nothing_else(tmp_path: Path) -> None:
    passed(waiting.kill_clients(tmp_path / "lab", 1), "killed_w2_approved_unsafe", "killed_w2_question")


def test_an_answer_that_redis_took_before_it_died_wakes_the_step(tmp_path: Path) -> None:
    passed(waiting.kill_redis(tmp_path / "lab", 1), "redis_killed", "approved_calls", "edited_calls")
