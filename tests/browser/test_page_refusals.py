"""What is refused, cut off or done by another in between, in a real browser: it is said, and nothing typed is lost."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime

import pytest
from browser.conftest import WRITTEN, Watched, completed, lose_reply, submit, wait_for, wait_for_request
from playwright.sync_api import Locator, Page, Route, expect

from celery_agents import ExecutionBudget
from celery_agents.tasks.client.job import Job
from celery_agents.worker.store.history_losses import LOST, HistoryLoss

from support.lab import Lab
from support.redis_keys import session_key
from support.serve_process import ServeProcess
from support.worker_process import WorkerProcess

pytestmark = [pytest.mark.timeout(300)]

expect.set_options(timeout=30_000)
A_REQUEST = "**/v1/sessions/*/requests/*"
AN_ANSWER = "**/v1/sessions/*/answers"
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
    expect(alert).to_contain_text("there are idle, pending, in_progress, waiting")
    expect(alert.get_by_role("button")).to_have_count(0)  # the same again would be refused again
    alert.get_by_role("link", name="Show all sessions").click()
    expect(page).to_have_url(f"{served.url}/sessions")
    expect(alert).to_have_count(0)
    page.goto(f"{served.url}/sessions#token=wrong")
    expect(title).to_have_text("This server asks for a token")
    expect(page.get_by_role("alert")).to_contain_text("This token is not known, or its time is over.")


def type_a_message(desk: Lab, served: ServeProcess, page: Page) -> tuple[Job, Locator]:
    """Open a session that has completed, and type what is not sent; the session's job, and the box."""
    job = completed(desk, "Thanks")
    page.goto(f"{served.url}/sessions/{job.session_id}")
    expect(page.get_by_role("log", name="Messages")).to_contain_text("Thanks")
    box = page.get_by_label("Message to support")
    box.fill("What I have typed stays")
    return job, box


def test_a_restart_of_the_server_is_survived(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    job, box = type_a_message(desk, served, page)
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


def test_a_stream_that_says_nothing_more_is_opened_again(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page, held = watched.page, list[Route]()
    job = completed(desk, "Thanks")
    page.clock.install()
    # The first one is as a connection that a router has forgotten.
    page.route("**/events?*", lambda route: route.continue_() if held else held.append(route))
    with page.expect_request("**/events?*"):
        page.goto(f"{served.url}/sessions/{job.session_id}")
    desk.client.send_message(job.session_id, "Where is order 4915?")
    wait_for(desk, job, "completed")
    page.clock.fast_forward(45_000)
    expect(page.get_by_role("log", name="Messages").get_by_text("It was delivered on the 23rd.")).to_be_visible()
    page.clock.fast_forward(20_000)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_the_time_of_the_last_read_is_that_of_the_server(served: ServeProcess, watched: Watched) -> None:
    page = watched.page
    page.clock.install(time=datetime.now(UTC) + timedelta(hours=5))
    page.goto(f"{served.url}/sessions")
    shown = page.get_by_text(re.compile(r"Live, \d"))
    expect(shown).to_be_visible()
    told = datetime.strptime(shown.inner_text(), "Live, %H:%M:%S %Z").replace(tzinfo=UTC)
    assert (datetime.now(UTC) - told + timedelta(seconds=30)).seconds < 90  # of whatever day


def test_a_session_that_is_deleted_while_it_is_shown_is_said_to_be_gone_once(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    job, box = type_a_message(desk, served, page)
    desk.client.delete(job.session_id)
    page.get_by_role("button", name="Fork", exact=True).click()
    expect(page.get_by_text("was deleted: nothing of it is left")).to_have_count(2)  # at the action, too
    expect(page.get_by_role("button", name=re.compile("^(Fork|Rewind…|Snapshot)$"))).to_have_count(0)
    page.wait_for_timeout(8000)
    expect(page.get_by_text("was deleted: nothing of it is left")).to_have_count(2)
    expect(page.get_by_role("log", name="Messages")).to_contain_text("Thanks")
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


def test_what_is_typed_stays_where_it_was_typed_while_replies_arrive(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    job = submit(desk, "My mug, order 4341, is cracked")
    request = wait_for_request(desk, job)
    wait_for(desk, job, "waiting")
    box, reason = page.get_by_label("Message to support"), page.get_by_label("Reason, which the agent reads")

    page.goto(f"{served.url}/sessions")
    page.get_by_role("link", name="My mug, order 4341").click()
    page.get_by_role("button", name="Deny…").click()
    page.keyboard.type("No")
    page.go_back()
    page.route(A_REQUEST, lambda route: None)
    with page.expect_request(A_REQUEST):
        page.get_by_role("link", name="My mug, order 4341").click()
    box.press_sequentially("On")
    page.unroute(A_REQUEST)  # what is held is sent
    expect(reason).to_have_value("No")
    page.keyboard.type("e")
    expect(box).to_have_value("One")
    page.route("**/messages", lambda route: None)  # reads have a query
    with page.expect_request("**/messages"):
        page.get_by_role("button", name="Send message").click()
    box.fill("Two")
    page.unroute("**/messages")
    expect(page.get_by_role("region", name="Messages that wait").get_by_text("One", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Send message")).to_be_enabled()
    expect(box).to_have_value("Two")

    page.get_by_role("tab", name="Overview").click()
    page.get_by_text("Change the limits").click()
    page.get_by_label("Steps").fill("7")
    desk.client.change_budget(job.session_id, ExecutionBudget(max_steps=9))
    expect(page.get_by_role("table", name="Budget").get_by_text("of 9")).to_be_visible()
    expect(page.get_by_label("Steps")).to_have_value("7")

    page.set_viewport_size({"width": 800, "height": 900})
    page.route("**/v1/requests?*", lambda route: None)
    page.goto(f"{served.url}/requests?open={job.session_id}/{request}")
    note = page.get_by_label("Note, kept with the answer")
    note.press_sequentially("I have ")
    page.unroute("**/v1/requests?*")
    expect(page.locator(".ask-entry")).to_be_visible()
    page.keyboard.type("called.")
    expect(note).to_have_value("I have called.")
    desk.client.stop(job.session_id, timeout=0)

    page.goto(f"{served.url}/fleet")
    page.get_by_text("Set a limit").click()
    form = page.locator("form").filter(has_text="0 admits no request")
    form.get_by_label("Model").fill("a:first")
    form.get_by_label("Requests a minute").fill("4")
    page.route("**/v1/limits", lambda route: None if route.request.method == "PUT" else route.continue_())
    with page.expect_request(lambda sent: sent.method == "PUT"):
        form.get_by_role("button", name="Set this limit").click()
    form.get_by_label("Model").fill("a:second")
    page.unroute("**/v1/limits")
    expect(page.get_by_role("button", name="Remove the limit of a:first")).to_be_visible()
    expect(form.get_by_label("Model")).to_have_value("a:second")
    desk.client.limits.remove("a:first")
    assert watched.complaints == []


def test_a_reply_that_comes_late_or_never_changes_no_other_place_and_says_nothing_false(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    done = completed(desk, "Thanks")
    jobs = [submit(desk, f"My bowl, order {number}, is cracked") for number in (4351, 4352)]
    asked = [wait_for_request(desk, job) for job in jobs]
    page.goto(f"{served.url}/sessions/{done.session_id}")
    held: list[Route] = []
    page.route("**/fork", lambda route: held.append(route))
    with page.expect_request("**/fork"):
        page.get_by_role("button", name="Fork", exact=True).click()
    page.get_by_role("link", name="Inbox").click()
    with page.expect_response("**/fork"):
        held.pop().continue_()
    page.locator(".ask-entry").filter(has_text='order="4351"').click()
    page.route(AN_ANSWER, lambda route: held.append(route))
    with page.expect_request(AN_ANSWER):
        page.get_by_role("button", name="Approve", exact=True).click()
    page.get_by_role("navigation", name="Places").get_by_role("link", name="Sessions").click()
    expect(page).to_have_url(f"{served.url}/sessions")
    reads: list[str] = []
    page.on("request", lambda sent: reads.append(sent.url))
    with page.expect_response(AN_ANSWER):
        held.pop().continue_()
    wait_for(desk, jobs[0], "completed")
    page.wait_for_timeout(500)
    expect(page).to_have_url(f"{served.url}/sessions")
    assert [each for each in reads if "kind=external" in each or asked[0] in each] == []  # the inbox reads no more

    page.unroute(AN_ANSWER)
    page.route(AN_ANSWER, lose_reply)
    page.goto(f"{served.url}/requests?open={jobs[1].session_id}/{asked[1]}")
    page.get_by_label("Note, kept with the answer").fill("They keep it.")
    page.get_by_role("button", name="Approve", exact=True).click()
    expect(page.get_by_text("Your answer may have arrived nevertheless.")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="Approved")).to_contain_text("Note: They keep it.")
    expect(page.get_by_text("was not sent")).to_have_count(0)
    assert [each for each in watched.complaints if "ERR_FAILED" not in each] == []


def test_a_held_key_a_key_pressed_twice_and_the_way_back_carry_out_nothing_unseen(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    slow, failed = submit(desk, "slow: count the mugs"), submit(desk, "fail: cancel the mugs")
    wait_for(desk, failed, "failed")
    page.goto(f"{served.url}/sessions")
    page.get_by_role("link", name="slow: count the mugs").click()
    stop, dialog = page.get_by_role("button", name="Stop…"), page.get_by_role("dialog")
    stop.focus()
    sent: list[str] = []
    page.on("request", lambda each: each.method == "POST" and sent.append(each.url))
    for _ in range(5):
        page.keyboard.down("Enter")
    page.keyboard.up("Enter")
    expect(dialog).to_have_count(1)
    page.go_back()
    expect(page).to_have_url(f"{served.url}/sessions")
    expect(dialog).to_have_count(0)
    page.get_by_label(f"Select {failed.session_id}").check()
    page.route("**/retry", lambda route: None)
    page.keyboard.press("r")
    page.keyboard.press("r")
    page.unroute("**/retry")  # what is held is sent
    expect(page.get_by_role("status").filter(has_text="Retry: 1 of 1 done.")).to_be_visible()
    page.wait_for_timeout(500)  # on a busy machine the browser tells of a request behind what it has shown
    assert [each.rpartition("/")[2] for each in sent] == ["retry"]
    desk.client.stop(slow.session_id, timeout=0)
    assert watched.complaints == []


def test_another_token_is_taken_where_the_page_is(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    page.clock.install()
    job = completed(desk, "Thanks")
    places = page.get_by_role("navigation", name="Places")
    wait_for_request(desk, submit(desk, "My vase, order 4361, is cracked"))
    page.goto(f"{served.url}/sessions")
    expect(places).to_contain_text("open request")
    wait_for_request(desk, submit(desk, "My vase, order 4362, is cracked"))
    page.route("**/v1/**", lambda route: route.fulfill(status=401, json={"detail": "Its time is over."}))
    page.clock.fast_forward(20_000)
    given = page.get_by_label("Token")
    expect(given).to_be_visible()
    page.clock.fast_forward(20_000)  # the number of open requests is refused, too
    page.unroute("**/v1/**")
    given.fill(" ")  # this server needs none
    page.get_by_role("button", name="Use this token").click()
    expect(places).to_contain_text(f"{sum(1 for _ in desk.client.requests())} open requests")
    page.goto(f"{served.url}/sessions#token=wrong")
    given.fill(desk.client.session_token(job.session_id, ["chat"]))
    page.get_by_role("button", name="Use this token").click()
    expect(page.get_by_role("log", name="Messages")).to_contain_text("You are welcome.")
    assert [each for each in watched.complaints if "401" not in each] == []


def test_an_answer_for_equal_requests_is_for_those_that_were_there_when_it_was_begun(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    seen = [submit(desk, "My jug, order 4377, is cracked") for _ in range(2)]
    for job in seen:
        wait_for_request(desk, job)
    page.goto(f"{served.url}/requests")
    page.get_by_role("link").filter(has_text='order="4377"').click()
    expect(page.get_by_role("button", name="Approve all 2")).to_be_visible()
    page.get_by_label("Note, kept with the answer").click()  # away from the list, which is held under the pointer
    later = submit(desk, "My jug, order 4377, is cracked")
    wait_for_request(desk, later)
    expect(page.get_by_role("link").filter(has_text='order="4377"')).to_contain_text("3 equal approvals")
    page.get_by_role("button", name="Approve all").click()
    for job in seen:
        wait_for(desk, job, "completed")
    assert desk.client.header(later.session_id).status == "waiting", "nobody has seen it"
    page.get_by_role("link").filter(has_text='order="4377"').click()
    page.get_by_role("button", name="Approve", exact=True).click()
    wait_for(desk, later, "completed")
    assert watched.complaints == []


def test_back_finds_the_list_as_it_was_left(desk: Lab, served: ServeProcess, watched: Watched) -> None:
    page = watched.page
    for number in range(60):
        desk.client.submit("absent", f"Where is order {number}?")
    page.goto(f"{served.url}/sessions?agent=absent")
    page.get_by_role("button", name="Older sessions").click()
    oldest = page.get_by_role("link", name="Where is order 0?")
    oldest.scroll_into_view_if_needed()
    oldest.click()
    expect(page.get_by_role("heading", name="Where is order 0?")).to_be_visible()
    desk.client.submit("absent", "One that has come since")
    page.go_back()
    expect(oldest).to_be_in_viewport()
    expect(page.get_by_role("button", name="Show 1 newer session")).to_have_count(1)
    expect(page.get_by_text("It has changed since")).to_have_count(0)
    oldest.click()
    page.get_by_role("navigation", name="Places").get_by_role("link", name="Sessions").click()
    expect(page.get_by_role("link", name="One that has come since")).to_be_in_viewport()
    assert watched.complaints == []


@pytest.mark.parametrize("behind", [0, 4])
def test_a_token_of_a_session_sees_its_session_and_nothing_else(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched, behind: int
) -> None:
    """Also where the server writes its Date seldom, as a busy uvicorn does."""
    page = watched.page
    job = completed(desk, "Where is order 4915?")
    token = desk.client.session_token(job.session_id, ["chat"], subject="jo@example.com")

    def put_back(route: Route) -> None:
        response = route.fetch()
        date = parsedate_to_datetime(response.headers["date"]) - timedelta(seconds=behind)
        route.fulfill(response=response, headers={**response.headers, "date": format_datetime(date, usegmt=True)})

    page.route(re.compile(rf"/v1/sessions/{job.session_id}(/messages.*|/requests.*)?$"), put_back)
    page.add_init_script(f"setInterval(() => window.again ||= /delivered/.test({WRITTEN}), 0)")
    page.goto(f"{served.url}/sessions/{job.session_id}#token={token}")
    said = page.get_by_role("log", name="Messages")
    expect(said.get_by_text("It was delivered on the 23rd.")).to_be_visible()
    page.wait_for_timeout(700)
    assert not page.evaluate("window.again"), "what was said long ago was shown as being written"
    assert "token" not in page.url
    expect(page.get_by_role("navigation", name="Places")).to_have_count(0)
    page.goto(f"{served.url}/sessions")
    page.wait_for_url(f"{served.url}/sessions/{job.session_id}")
    page.get_by_label("Message to support").fill("Thanks")
    page.get_by_role("button", name="Send message").click()
    expect(said.get_by_text("You are welcome.")).to_be_visible()
    assert watched.complaints == [], "it asks for what it may not see"


def test_what_goes_away_leaves_the_focus_beside_it(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    job = submit(desk, "colour of the jug")
    wait_for_request(desk, job)
    page.goto(f"{served.url}/sessions/{job.session_id}")

    def press(name: str) -> None:
        page.get_by_role("button", name=name, exact=True).focus()
        page.keyboard.press("Enter")

    press("Suspend…")
    page.keyboard.press("Enter")
    actions = page.locator(".actions").filter(has=page.get_by_role("button", name="Resume"))
    expect(actions).to_be_focused()
    press("Resume")
    expect(page.locator(".actions").filter(has=page.get_by_role("button", name="Suspend…"))).to_be_focused()
    press("Decline…")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Request of ask_colour")).to_have_count(0)
    expect(page.locator(".said :focus")).to_have_count(1)
    assert watched.complaints == []
