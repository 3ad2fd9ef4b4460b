"""What is refused, cut off or done by another in between, in a real browser: it is said, and nothing typed is lost."""

from __future__ import annotations

import json
import time

import pytest
from browser.conftest import Watched, completed, submit, wait_for, wait_for_request
from playwright.sync_api import Route, expect

from celery_agents.tasks.client.job import Job
from celery_agents.worker.store.history_losses import LOST, HistoryLoss

from support.lab import Lab
from support.redis_keys import session_key
from support.serve_process import ServeProcess
from support.worker_process import WorkerProcess

pytestmark = [pytest.mark.timeout(300)]

expect.set_options(timeout=30_000)
READS = "This page reads every 5 seconds until it is open again."


def test_a_refusal_names_every_field_that_the_server_names(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    job = completed(desk, "Thanks")
    page.goto(f"{served.url}/sessions/{job.session_id}")
    problem = {
        "detail": "The body cannot be used. message: too long.",
        "errors": [
            {"field": "message", "message": "too long"},
            {"field": "budget.max_steps", "message": "a whole number"},
        ],
    }
    page.route("**/messages", lambda route: route.fulfill(status=422, json=problem))
    page.get_by_label("Message to support").fill("Again")
    page.get_by_role("button", name="Send message").click()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The body cannot be used. message: too long.")
    expect(alert.get_by_role("listitem")).to_have_text(["budget.max_steps a whole number"])
    expect(page.get_by_label("Message to support")).to_have_value("Again")


def test_what_cannot_be_shown_is_said_with_what_to_do(served: ServeProcess, watched: Watched) -> None:
    page = watched.page
    title = page.get_by_role("heading", level=1)
    page.goto(f"{served.url}/sessions/gone")
    expect(title).to_have_text("There is no such session")
    expect(page.get_by_role("main")).to_contain_text("celery-agents list")
    page.goto(f"{served.url}/sessions?status=unheard-of&agent=%00%3Cb%3E")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("there are pending, in_progress, waiting")
    expect(alert.get_by_role("button")).to_have_count(0)  # the same again would be refused again
    alert.get_by_role("link", name="Show all sessions").click()
    expect(page).to_have_url(f"{served.url}/sessions")
    expect(alert).to_have_count(0)
    page.goto(f"{served.url}/sessions#token=wrong")
    expect(title).to_have_text("This server asks for a token")
    expect(page.get_by_role("alert")).to_contain_text("This token is not known, or its time is over.")


def test_a_restart_of_the_server_is_survived(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    job = completed(desk, "Thanks")
    page.goto(f"{served.url}/sessions/{job.session_id}")
    box = page.get_by_label("Message to support")
    box.fill("What I have typed stays")
    served.end()
    expect(page.get_by_text("No connection; trying again")).to_be_visible()
    served.start()
    expect(page.get_by_text("No connection; trying again")).to_have_count(0)
    expect(box).to_have_value("What I have typed stays")
    desk.client.send_message(job.session_id, "Where is order 4915?")
    expect(page.get_by_role("log", name="Messages").get_by_text("It was delivered on the 23rd.")).to_be_visible()


def test_a_session_is_read_while_its_stream_is_refused_or_cut_off(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    job = completed(desk, "Thanks")
    page.clock.install()
    refusal = {"detail": "This gateway lets no stream through."}
    page.route("**/events?*", lambda route: route.fulfill(status=403, json=refusal))
    page.goto(f"{served.url}/sessions/{job.session_id}")
    alert, box = page.get_by_role("alert"), page.get_by_label("Message to support")
    expect(alert).to_have_text(f"The stream of events is refused: {refusal['detail']} {READS}")
    box.fill("What I have typed stays")
    desk.client.send_message(job.session_id, "Where is order 4915?")
    wait_for(desk, job, "completed")
    page.clock.fast_forward(6000)
    expect(page.get_by_role("log", name="Messages").get_by_text("It was delivered on the 23rd.")).to_be_visible()
    page.unroute("**/events?*")
    page.route("**/events?*", lambda route: route.abort())
    page.clock.fast_forward(20_000)
    expect(alert).to_have_text(f"The stream of events is cut off. Look whether a proxy ends it. {READS}")
    page.unroute("**/events?*")
    page.clock.fast_forward(20_000)
    expect(alert).to_have_count(0)
    expect(box).to_have_value("What I have typed stays")


def test_what_another_has_done_in_between_is_said_and_nothing_typed_is_lost(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    stopped, approved = (submit(desk, f"My bowl, order {number}, is cracked") for number in (4921, 4922))
    typed = page.get_by_label("Note, kept with the answer")
    asked = {job.session_id: wait_for_request(desk, job) for job in (stopped, approved)}

    def answer_first(job: Job, verb: str, route: Route) -> None:
        answers = {asked[job.session_id]: {verb: "it is" if verb == "deny" else True}}
        with served.http() as http:
            reply = http.post(f"/v1/sessions/{job.session_id}/answers", json={"answers": answers, "by": "ann"})
        reply.raise_for_status()
        wait_for(desk, job, "completed")
        route.continue_()

    page.goto(f"{served.url}/sessions/{stopped.session_id}")
    typed.fill("I have called them.")
    page.get_by_label("cents").fill("2400")
    page.get_by_label("Message to support").fill("Is it a known fault?")
    page.route("**/stop", lambda route: answer_first(stopped, "approve", route))
    page.get_by_role("button", name="Stop…").click()
    page.get_by_role("button", name="Stop it").click()
    expect(page.get_by_text("It was completed already. Nothing was stopped.")).to_be_visible()
    request = page.get_by_role("region", name="Request of refund")
    for text in ("Approved by ann", "What you have typed was not sent.", "Your note: I have called them."):
        expect(request).to_contain_text(text)
    expect(request.get_by_role("textbox", name="cents")).to_have_value("2400")
    expect(page.get_by_label("Message to support")).to_have_value("Is it a known fault?")
    request.get_by_role("button", name="Close").click()
    expect(request).to_have_count(0)

    page.goto(f"{served.url}/requests?open={approved.session_id}/{asked[approved.session_id]}")
    typed.fill("It was me.")
    page.route("**/answers", lambda route: answer_first(approved, "deny", route))
    page.get_by_role("button", name="Approve", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("is not open: it was denied by ann")
    expect(page.get_by_text("Your note: It was me.")).to_be_visible()
    # The refusal itself is the only complaint: the browser's console names it.
    assert [each for each in watched.complaints if "409" not in each] == []


def test_a_lost_end_of_a_history_is_said_on_the_session(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    job = completed(desk, "Thanks")
    loss = HistoryLoss(
        known_version=9, found_version=5, common_version=5, mark="m", at_ms=round(time.time() * 1000), steps=(3, 4),
        calls=({"tool": "refund", "step": 3, "outcome": "ok"},), worker="worker",
    )  # fmt: skip
    desk.redis.hset(session_key(job.session_id), LOST, json.dumps(loss.to_json()))
    page.goto(f"{served.url}/sessions/{job.session_id}")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("Redis lost version 9 and came back with 5; lost steps: 3, 4")
    expect(alert).to_contain_text("their effects have happened, and may happen again: refund in step 3.")
    expect(alert.get_by_role("button")).to_have_count(0)
    expect(page.get_by_label("Message to support")).to_be_visible()


def test_a_name_that_is_typed_while_the_requests_are_read_is_that_of_the_answer(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    job = submit(desk, "My jug, order 4335, is cracked")
    wait_for_request(desk, job)
    held: list[Route] = []
    page.route(f"**/{job.session_id}/requests?*", lambda route: held.append(route))
    page.goto(f"{served.url}/sessions/{job.session_id}")
    page.get_by_label("You act as").first.press_sequentially("an")
    [route] = held
    route.continue_()
    page.unroute(f"**/{job.session_id}/requests?*")
    approve = page.get_by_role("button", name="Approve", exact=True)
    expect(approve).to_be_visible()
    page.keyboard.type("n")
    approve.click()
    wait_for(desk, job, "completed")
    expect(page.get_by_role("log", name="Messages")).to_contain_text("approved by ann")
    assert watched.complaints == []
