"""The page in a real browser, with a real worker that is killed: what people see of a run, and what they do with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from browser.conftest import WRITTEN, Watched, completed, submit, take_picture, wait_for, wait_for_request
from playwright.sync_api import APIResponse, BrowserContext, Locator, Page, Route, expect

from celery_agents.tasks.client.job import Job

from support.lab import Lab
from support.serve_process import ServeProcess
from support.wait import wait_until
from support.worker_process import WorkerProcess

pytestmark = [pytest.mark.timeout(300)]

expect.set_options(timeout=30_000)
A_REQUEST = "**/v1/sessions/*/requests/*"
AN_ANSWER = "**/v1/sessions/*/answers"
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def running_tools(served: ServeProcess, job: Job) -> list[str]:
    """Names of the tools whose calls a worker has begun and not ended."""
    with served.http() as http:
        steps = http.get(f"/v1/sessions/{job.session_id}/timeline").json()["steps"]
    running = [span for step in steps if step["status"] == "running" for span in step["spans"]]
    return [span["name"] for span in running if span["kind"] == "tool" and span["ended_at"] is None]


def step_row(page: Page, text: str) -> Locator:
    return page.get_by_role("row").filter(has_text=text)


# --- a run: text as it is written, an approval with another amount, a worker that dies, a fork --------------------------


def test_a_run_is_watched_approved_with_a_change_and_recovered_after_a_kill(
    desk: Lab, served: ServeProcess, watched: Watched
) -> None:
    doomed = desk.worker(STORY_REFUND_SECONDS="4")
    page = watched.page
    job = submit(desk, "My kettle, order 4812, is cracked")
    page.goto(f"{served.url}/sessions")
    page.get_by_role("link", name="My kettle, order 4812, is cracked").click()
    expect(page).to_have_url(f"{served.url}/sessions/{job.session_id}")
    said = page.get_by_role("log", name="Messages")
    expect(said.get_by_text("I’m sorry about that.")).to_be_visible()

    page.get_by_label("You act as").first.fill("manager")
    page.keyboard.press("Tab")
    expect(said.get_by_role("button", name="Approve", exact=True)).to_be_visible()
    assert page.evaluate("document.querySelector('.asked').clientWidth > 300")
    take_picture(page, "approval")
    page.get_by_label("cents").fill("2400")
    page.get_by_label("Note, kept with the answer").fill("The customer keeps the kettle.")
    said.get_by_role("button", name="Approve with 1 change").click()
    wait_until(lambda: "refund" in running_tools(served, job), "the refund runs", 30, details=doomed.tail)
    doomed.kill()
    second = desk.worker()
    expect(said.get_by_text("Good news: the money is on its way back")).to_be_visible(timeout=60_000)
    wait_for(desk, job, "completed")

    expect(said.get_by_text("approved by manager with cents=2400 instead of 3900")).to_be_visible()
    expect(said.get_by_text("Good news: the money is on its way back")).to_be_in_viewport()
    expect(page.get_by_text("recovered once")).to_be_visible()
    expect(step_row(page, "refund").filter(has_text="lost").first).to_be_visible()
    paid = page.get_by_role("row").filter(has=page.get_by_role("button", name="refund", exact=False)).last
    paid.get_by_role("button").first.click()
    details = page.locator("tr.opened")
    for text in ("2400", "3900", "keyed", "manager"):
        expect(details.get_by_text(text).first).to_be_visible()
    take_picture(page, "session")

    page.get_by_role("button", name="Fork", exact=True).click()
    page.wait_for_url(lambda url: url.startswith(f"{served.url}/sessions/{job.session_id}."))
    expect(page.get_by_role("log", name="Messages").get_by_text("Good news")).to_be_visible()
    assert watched.complaints == []
    second.end()


# --- actions --------------------------------------------------------------------------------------------------------------


def test_a_slow_run_is_stopped_and_a_failed_one_says_why_and_is_retried(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    slow, failed = submit(desk, "slow: count the stock"), submit(desk, "fail: cancel a line")
    page.goto(f"{served.url}/sessions/{slow.session_id}")
    wait_until(lambda: "stocktaking" in running_tools(served, slow), "the tool runs", 30, details=worker.tail)
    page.get_by_role("button", name="Stop…").click()
    page.get_by_role("button", name="Stop it").click()
    wait_for(desk, slow, "stopped")
    expect(page.get_by_text("stopped", exact=True).first).to_be_visible()

    page.goto(f"{served.url}/sessions/{failed.session_id}")
    expect(page.get_by_text("the model of the shop is gone").first).to_be_visible()
    page.get_by_role("button", name="Retry").click()
    told = desk.client.store.sessions.events
    wait_until(lambda: "step_retried" in {str(each.type) for each in told(failed.session_id)}, "it was retried", 30)
    wait_for(desk, failed, "failed")
    assert watched.complaints == []


def test_messages_that_wait_are_seen_moved_taken_back_and_released(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page, slow = watched.page, submit(desk, "slow: count the stock")
    page.goto(f"{served.url}/sessions/{slow.session_id}")
    wait_until(lambda: "stocktaking" in running_tools(served, slow), "the tool runs", 30, details=worker.tail)
    waiting = page.get_by_role("region", name="Messages that wait")
    box = page.get_by_label("Message to")
    box.fill("And the teapots?")
    page.get_by_role("button", name="Send message").click()
    expect(waiting.get_by_text("It is read with the next step.")).to_be_visible()
    waiting.get_by_role("button", name="Interrupt: And the teapots?").click()
    expect(waiting.get_by_text("The step is left off for it.")).to_be_visible()
    expect(waiting.get_by_role("button", name="Interrupt: And the teapots?")).to_have_count(0)
    page.get_by_label("When").select_option("after this one")
    for text in ("Where is order 4915?", "Where is order 4916?"):
        box.fill(text)
        page.get_by_role("button", name="Send message").click()
        expect(waiting.get_by_text(text)).to_be_visible()
    take_picture(page, "waiting-messages")
    waiting.get_by_role("button", name="Send now: Where is order 4916?").click()
    expect(waiting.get_by_role("button", name="After this one: Where is order 4916?")).to_be_visible()
    waiting.get_by_role("button", name="Withdraw: Where is order 4916?").click()
    expect(waiting.get_by_text("Where is order 4916?")).to_have_count(0)
    page.get_by_role("button", name="Stop…").click()
    page.get_by_role("button", name="Stop it").click()
    expect(waiting.get_by_text("The queue is held")).to_be_visible()
    waiting.get_by_role("button", name="Withdraw: And the teapots?").click()
    expect(waiting.get_by_text("And the teapots?")).to_have_count(0)
    take_picture(page, "held-queue")
    waiting.get_by_role("button", name="Go on").click()
    expect(page.get_by_role("log", name="Messages").get_by_text("Where is order 4915?")).to_be_visible()
    wait_for(desk, slow, "completed")
    expect(waiting).to_have_count(0)
    assert watched.complaints == []


def test_the_limits_of_what_runs_are_changed(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    job = submit(desk, "slow: count the stock")
    page.goto(f"{served.url}/sessions/{job.session_id}?tab=overview")
    wait_until(lambda: "stocktaking" in running_tools(served, job), "the tool runs", 30, details=worker.tail)
    page.get_by_text("Change the limits").click()
    page.get_by_label("Steps").fill("13")
    page.get_by_role("button", name="Change", exact=True).click()
    expect(page.get_by_text("agent support has max_steps 12")).to_be_visible()
    page.get_by_label("Above those of the agent").check()
    page.get_by_role("button", name="Change", exact=True).click()
    expect(page.get_by_role("table", name="Budget").get_by_text("of 13")).to_be_visible()
    page.get_by_text("Change the limits").click()
    page.get_by_label("Steps").fill("7")
    page.get_by_label("Dollars").fill("0.25")
    page.get_by_role("button", name="Change", exact=True).click()
    expect(page.get_by_role("table", name="Budget").get_by_text("of 7")).to_be_visible()
    expect(page.get_by_label("Tokens")).to_have_value("60000")  # what is not given is the agent's
    execution = desk.client.show(job.session_id).state.execution
    assert execution is not None
    assert (execution.budget.max_steps, execution.budget.max_tokens, execution.budget.max_cost) == (7, 60_000, 0.25)
    desk.client.stop(job.session_id, timeout=0)
    wait_for(desk, job, "stopped")
    assert [each for each in watched.complaints if "422" not in each] == []


def test_a_failed_child_is_seen_from_above_and_says_why(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    job = completed(desk, "Ask the archive about order 4100")
    page.goto(f"{served.url}/sessions/{job.session_id}")
    expect(step_row(page, "research")).to_contain_text("1 below failed")
    page.get_by_role("button", name="Spans of research").click()
    expect(step_row(page, "the archive refuses").first).to_be_visible()
    take_picture(page, "child")
    page.get_by_role("link", name="Tree").click()
    failed = page.get_by_role("row").filter(has_text="failed")
    expect(failed).to_contain_text("the archive refuses connections until 18:00")
    assert watched.complaints == []


def test_many_are_retried_at_once_and_each_refusal_is_said(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    failed = [submit(desk, f"fail: number {number}") for number in range(3)]
    done = submit(desk, "Thank you for the number")
    for job in failed:
        wait_for(desk, job, "failed")
    wait_for(desk, done, "completed")
    page.goto(f"{served.url}/sessions?text=number")
    for job in (*failed, done):
        page.get_by_label(f"Select {job.session_id}").check()
    take_picture(page, "bulk")
    page.get_by_role("button", name="Retry 4").click()
    report = page.get_by_role("status").filter(has_text="Retry: 3 of 4 done, 1 refused.")
    expect(report).to_be_visible()
    expect(report.get_by_role("link", name=done.session_id)).to_be_visible()
    page.get_by_role("button", name="Delete 4…").click()
    expect(page.get_by_role("dialog")).to_contain_text("removed for good")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert all(desk.client.header(job.session_id) for job in (*failed, done))
    page.get_by_role("button", name="Suspend 4…").click()
    page.get_by_label("Why? It is shown wherever the session is.").fill("the bank is closed")
    page.get_by_role("button", name="Suspend 4", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="Suspend: 4 of 4 done.")).to_be_visible()
    # The refusal itself is the only complaint: the browser's console names it.
    assert [each for each in watched.complaints if "409" not in each] == []


def test_sessions_are_found_by_their_labels(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    labelled = desk.client.submit("support", "Thanks, says 42", labels={"customer": "42", "<b>": "'&\""})
    other = desk.client.submit("support", "Thanks, says 43", labels={"customer": "43"})
    for job in (labelled, other):
        wait_for(desk, job, "completed")
    page.goto(f"{served.url}/sessions/{labelled.session_id}")
    expect(page.get_by_role("link", name="<b>='&\"")).to_be_visible()
    page.get_by_role("link", name="customer=42").click()
    expect(page.get_by_role("link", name="Thanks, says 42")).to_be_visible()
    expect(page.get_by_role("link", name="Thanks, says 43")).to_have_count(0)
    take_picture(page, "labels")
    expect(page.get_by_role("heading", name="Sessions with customer=42")).to_be_visible()
    page.get_by_role("link", name="All", exact=True).click()
    page.get_by_label("Words, among the rows below").fill("customer=43")
    expect(page.get_by_role("link", name="Thanks, says 43")).to_be_visible()
    expect(page.get_by_role("link", name="Thanks, says 42")).to_have_count(0)
    assert watched.complaints == []


def test_older_sessions_that_arrive_after_another_filter_was_chosen_are_left_out(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    for agent in ("support", "research"):
        desk.client.submit(agent, f"Thanks, {agent}")
    held: list[tuple[Route, APIResponse]] = []

    def answer(route: Route) -> None:
        url, _, cursor = route.request.url.partition("&cursor=")
        response = route.fetch(url=url)
        if cursor:
            held.append((route, response))
        else:
            route.fulfill(response=response, json={**response.json(), "cursor": "older"})

    page.route("**/v1/sessions?*", answer)
    page.goto(f"{served.url}/sessions?agent=support")
    older = page.get_by_role("button", name="Older sessions")
    older.focus()
    with page.expect_request("**/v1/sessions?*cursor=older*"):
        page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(older).to_be_focused()
    page.get_by_role("combobox", name="Agent").select_option("research")
    expect(page.get_by_role("link", name="Thanks, research")).to_have_count(1)
    [(route, response)] = held
    route.fulfill(response=response)
    expect(older).to_be_enabled()
    expect(page.get_by_role("link", name="Thanks, support")).to_have_count(0)
    assert watched.complaints == []


def test_a_message_is_sent_and_its_answer_is_seen_while_it_is_written(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    job = completed(desk, "Thanks")
    page.goto(f"{served.url}/sessions/{job.session_id}")
    page.get_by_label("Message to support").fill("write 200")
    page.evaluate(f"setInterval(() => window.half ||= /word9 (?!.*word199)/.test({WRITTEN}), 0)")
    page.get_by_role("button", name="Send message").click()
    expect(page.get_by_role("log", name="Messages").get_by_text("word198 word199")).to_have_count(1)
    expect(page.locator(".writing")).to_be_hidden()
    assert page.evaluate("window.half"), "no part of the text was shown before the whole"
    assert watched.complaints == []


def test_the_inbox_is_worked_through_by_keyboard(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    jobs = [submit(desk, f"My pot, order {number}, is cracked") for number in (4907, 4911)]
    for job in jobs:
        wait_for(desk, job, "waiting")
    wait_until(
        lambda: sum(each.summary.session_id in {job.session_id for job in jobs} for each in desk.client.requests()) == 2,
        "both ask for an approval", 60, details=worker.tail,
    )  # fmt: skip
    page.goto(f"{served.url}/requests")
    expect(page.get_by_text("4907").first).to_be_visible()
    take_picture(page, "inbox")
    expect(page.get_by_role("button", name="Approve", exact=True)).to_be_visible()
    held: list[Route] = []
    page.route(A_REQUEST, lambda route: held.append(route))
    page.keyboard.press("j")
    page.keyboard.press("j")
    with page.expect_request(A_REQUEST):
        page.keyboard.press("Enter")
    page.keyboard.press("a")  # before the request is there
    page.unroute(A_REQUEST)  # those that are held are sent, too
    expect(page.get_by_role("button", name="Approve", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    wait_until(lambda: any(desk.client.header(job.session_id).status == "completed" for job in jobs), "one goes on", 60)
    page.keyboard.press("d")
    page.keyboard.type("No receipt.")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    for job in jobs:
        wait_for(desk, job, "completed")
    assert watched.complaints == []


def test_what_is_pressed_and_typed_while_an_answer_is_on_its_way_is_for_what_comes_next(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    jobs: dict[str, Job] = {}
    for number in ("4921", "4922", "4923"):
        jobs[number] = submit(desk, f"My pot, order {number}, is cracked")
        wait_for_request(desk, jobs[number])
    page.goto(f"{served.url}/requests")
    heading, order = page.get_by_role("heading", name="Approve a refund?"), page.get_by_label("order")
    reason = page.get_by_label("Reason, which the agent reads")
    held: list[Route] = []
    page.route(AN_ANSWER, lambda route: held.append(route))

    page.locator(".ask-entry").filter(has_text='order="4921"').click()
    expect(order).to_have_value("4921")
    expect(heading).to_be_focused()
    with page.expect_request(AN_ANSWER):
        page.keyboard.press("a")
        page.keyboard.press("Enter")
    page.locator(".ask-entry").filter(has_text='order="4923"').click()  # somebody goes on meanwhile
    expect(order).to_have_value("4923")
    expect(heading).to_be_focused()
    page.keyboard.type("dNo ")
    held.pop().continue_()
    expect(page.get_by_text("Approved:")).to_be_visible()
    page.keyboard.type("receipt.")
    expect(reason).to_have_value("No receipt.")

    page.keyboard.press("Tab")
    with page.expect_request(AN_ANSWER):
        page.keyboard.press("Enter")
    page.keyboard.type("da ")  # or presses the key of the next one, and more
    expect(page.get_by_label("Note, kept with the answer")).not_to_be_editable()
    held.pop().continue_()
    expect(order).to_have_value("4922")
    expect(reason).to_be_focused()
    page.keyboard.type("Nor here.")
    page.unroute(AN_ANSWER)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    for job in jobs.values():
        wait_for(desk, job, "completed")
    for number, said in (("4923", "No receipt."), ("4922", "Nor here.")):
        assert any(said in each.content for each in desk.client.show(jobs[number].session_id).state.messages)
    assert watched.complaints == []


def test_a_message_that_takes_an_approval_back_is_seen_before_it_is_given(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    job = submit(desk, "My bowl, order 4925, is cracked")
    request = wait_for_request(desk, job)
    wait_for(desk, job, "waiting")
    page.goto(f"{served.url}/sessions/{job.session_id}")
    said = page.get_by_role("log", name="Messages")
    expect(said.get_by_role("button", name="Approve", exact=True)).to_be_visible()
    held: list[Route] = []
    page.route(A_REQUEST, lambda route: held.append(route))  # what is on the screen grows old
    desk.client.send_message(job.session_id, "No, not this bowl.")
    said.get_by_role("button", name="Approve", exact=True).click()
    expect(page.get_by_text("has got message 1, and the answer names 0")).to_be_visible()
    page.unroute(A_REQUEST)
    expect(said.get_by_text("No, not this bowl.")).to_be_visible()
    expect(said.get_by_role("heading", name="1 message that the agent has not read")).to_be_visible()
    assert desk.client.header(job.session_id).status == "waiting"
    page.goto(f"{served.url}/requests?open={job.session_id}/{request}")
    expect(page.get_by_role("navigation", name="Open requests").get_by_text("1 message since")).to_be_visible()
    expect(page.get_by_text("No, not this bowl.")).to_be_visible()
    take_picture(page, "later-message")
    page.get_by_role("button", name="Deny…").click()
    page.get_by_label("Reason, which the agent reads").fill("It was taken back.")
    page.get_by_role("button", name="Deny", exact=True).click()
    wait_for(desk, job, "completed")
    assert [each for each in watched.complaints if "409" not in each] == []


def test_a_newcomers_questions_are_answered(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    failed, job = submit(desk, "fail: cancel it"), submit(desk, "My jug, order 4333, is cracked")
    wait_for(desk, failed, "failed")
    wait_for(desk, job, "waiting")
    page.goto(f"{served.url}/sessions?status=failed")
    expect(step_row(page, "fail: cancel it")).to_contain_text("ValueError: the model of the shop is gone")
    page.goto(f"{served.url}/sessions")
    expect(step_row(page, "My jug, order 4333")).to_contain_text('waits for an approval of refund(order="4333"')
    page.get_by_role("link", name="My jug, order 4333, is cracked").click()
    page.get_by_label("You act as").first.fill("ann")
    page.get_by_role("button", name="Approve", exact=True).click()
    wait_for(desk, job, "completed")
    expect(page.get_by_role("log", name="Messages")).to_contain_text("approved by ann")
    expect(page.locator("dl.numbers")).to_contain_text("cost with children$0.0015 of $0.50")
    page.get_by_role("tab", name="What the model saw").click()
    expect(page.get_by_role("tabpanel")).to_contain_text("A known fault of this series: two suppliers changed the lid.")
    assert watched.complaints == []


def test_numbers_with_children_are_read_again_after_a_commit_during_their_first_read(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    job = submit(desk, "My jug, order 4334, is cracked")
    wait_for_request(desk, job)
    wait_for(desk, job, "waiting")
    events: list[Route] = []
    tree: list[tuple[Route, APIResponse]] = []
    page.route("**/events?*", lambda route: events.append(route))
    page.route("**/tree", lambda route: tree.append((route, route.fetch())))
    with page.expect_request("**/tree"):
        page.goto(f"{served.url}/sessions/{job.session_id}")
    events[0].continue_()  # no event has made the first read of the tree part of a later one
    page.get_by_label("You act as").first.fill("ann")
    page.get_by_role("button", name="Approve", exact=True).click()
    wait_for(desk, job, "completed")
    page.wait_for_timeout(1000)  # the events of its last step arrive
    [(route, response)] = tree
    page.unroute("**/tree")
    route.fulfill(response=response)
    expect(page.locator("dl.numbers")).to_contain_text("cost with children$0.0015 of $0.50")
    assert watched.complaints == []


def test_the_request_of_a_step_is_read_and_compared_with_that_of_another(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    job = completed(desk, "Where is order 4915?")
    page.goto(f"{served.url}/sessions/{job.session_id}")
    step_row(page, "gpt-5-mini").last.get_by_role("button").first.click()
    page.get_by_role("link", name="what the model saw").click()
    panel = page.get_by_role("tabpanel")
    expect(panel).to_contain_text("support asked openai:gpt-5-mini with 3 messages and")
    expect(panel).to_contain_text("You help customers of a tea shop")
    expect(panel.get_by_text("Where is order 4915?")).to_be_visible()
    panel.get_by_text("Look an order up.", exact=True).click()
    expect(panel.get_by_text("Number of the order.").first).to_be_visible()
    take_picture(page, "request")
    panel.get_by_role("button", name="Earlier").click()
    expect(panel).to_contain_text("with 1 message and")
    panel.get_by_role("button", name="Later").click()
    panel.get_by_label("Compared with step").fill("1")
    page.keyboard.press("Enter")
    expect(panel).to_contain_text("2 differences between step 1 and step 2.")
    expect(panel.get_by_text("messages[1]")).to_be_visible()
    panel.get_by_label("Of both").select_option("the state after it")
    expect(panel.get_by_text("execution.step_executions[1]")).to_be_visible()
    expect(panel.locator("del").filter(has_text="in_progress")).to_be_visible()
    expect(panel.locator("ins").filter(has_text="completed").first).to_be_visible()
    take_picture(page, "compared")
    page.reload()
    expect(panel.get_by_label("Compared with step")).to_have_value("1")
    panel.get_by_label("Compared with step").fill("7")
    numbers = page.locator("dl.numbers").inner_text()
    desk.client.send_message(job.session_id, "Where is order 4916?").result(timeout=60)
    expect(page.locator("dl.numbers")).not_to_have_text(numbers, use_inner_text=True)
    page.keyboard.press("Enter")  # what was typed stays while the session goes on
    expect(panel.get_by_role("alert")).to_contain_text("7")
    assert [each for each in watched.complaints if "422" not in each] == []


def test_a_fork_goes_on_with_another_result(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    job = completed(desk, "Where is order 4916?")
    page.goto(f"{served.url}/sessions/{job.session_id}")
    page.get_by_role("row").get_by_role("button", name="track_parcel").click()
    page.get_by_role("button", name="Fork with another result…").click()
    given = page.get_by_role("dialog").get_by_label("Result of track_parcel")
    expect(given).to_have_value(re.compile('"delivered": "2026-11-23"'))
    given.fill('{"lost": true}')
    take_picture(page, "fork")
    page.get_by_role("button", name="Fork, and go on").click()
    page.wait_for_url(lambda url: url.startswith(f"{served.url}/sessions/{job.session_id}."))
    expect(page.get_by_text("completed").first).to_be_visible()
    page.get_by_role("tab", name="What the model saw").click()
    panel = page.get_by_role("tabpanel")
    expect(panel.get_by_text('{"lost":true}')).to_be_visible()
    panel.get_by_label("Request of step").fill("2")
    page.keyboard.press("Enter")
    expect(panel.get_by_text('{"lost":true}')).to_be_visible()
    said = [each.content for each in desk.client.show(job.session_id).state.messages]
    assert not any("lost" in each for each in said)
    assert watched.complaints == []


def test_a_session_is_rewound_to_a_step(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    job = completed(desk, "Where is order 4917?")
    page.goto(f"{served.url}/sessions/{job.session_id}")
    page.get_by_role("button", name="Rewind…").click()
    page.get_by_role("dialog").get_by_label("To step").fill("1")
    page.get_by_role("button", name="Rewind", exact=True).click()
    expect(page.get_by_text("It is as step 1 has left it.")).to_be_visible()
    expect(page.get_by_text("nothing runs; a message starts it")).to_be_visible()
    then = desk.client.state(job.session_id, at=1).store.section().messages
    assert desk.client.show(job.session_id).state.store.section().messages == then
    assert watched.complaints == []


# --- what it looks like, and what it withstands ---------------------------------------------------------------------------


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_every_place_is_accessible_and_fits(
    desk: Lab, worker: WorkerProcess, served: ServeProcess, context_of: Callable[..., BrowserContext], look: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    job = submit(desk, "My cup, order 4700, is cracked")
    wait_for_request(desk, job)
    options = PHONE if look == "phone" else {"color_scheme": look}
    page = context_of(**options).new_page()
    watched = Watched(page)
    shown = {"sessions": "4700", f"sessions/{job.session_id}": "Approve a refund?", "requests": "4700"}
    for place, text in {**shown, f"tree/{job.session_id}": "research", "fleet": "works"}.items():
        page.goto(f"{served.url}/{place}")
        expect(page.get_by_role("main").get_by_text(text).first).to_be_visible()
        page.wait_for_timeout(700)
        assert violations(axe, page) == [], place
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place
        take_picture(page, f"{place.split('/')[0]}{'-one' if 'sessions/' in place else ''}-{look}")
    if look == "dark":
        check_what_opens(axe, page, f"{served.url}/sessions/{job.session_id}")
    assert watched.complaints == []


def violations(axe: Any, page: Page) -> list[tuple[str, list[str]]]:
    """What axe finds: rules, and the elements that break them."""
    found = axe.run(page).response["violations"]
    return [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found]


def check_what_opens(axe: Any, page: Page, session: str) -> None:
    """A request, a comparison, a span, the dialog of an action, and the list of keys are accessible, too."""
    for query, text in {"step=1": "asked openai:gpt-5-mini", "step=2&against=1": "differences between"}.items():
        page.goto(f"{session}?tab=stored&{query}")
        expect(page.get_by_role("tabpanel").get_by_text(text)).to_be_visible()
        assert violations(axe, page) == [], query
    page.goto(session)
    page.get_by_role("row").get_by_role("button", name="find_order").click()
    expect(page.locator("tr.opened").get_by_text("Arguments")).to_be_visible()
    assert violations(axe, page) == [], "an opened span"
    for button in ("Suspend…", "Keys: ?"):
        page.get_by_role("button", name=button).click()
        expect(page.get_by_role("dialog")).to_be_visible()
        assert violations(axe, page) == [], button
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
