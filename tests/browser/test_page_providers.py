"""Limits of providers and pauses on the page: set, seen and taken back in a real browser, with a worker that keeps them."""

from __future__ import annotations

import pytest
from browser.conftest import Watched, lose_reply, pictures
from playwright.sync_api import Locator, expect

from celery_agents.flow import ProviderLimit, Schedule, SpendCap
from celery_agents.worker.flow.caps import nanos

from support.lab import Lab
from support.serve_process import ServeProcess
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(300)]

expect.set_options(timeout=30_000)


def test_a_pause_is_set_and_ended_on_the_page_and_its_steps_go_on(
    desk: Lab, served: ServeProcess, watched: Watched
) -> None:
    worker, page = desk.worker(), watched.page
    desk.client.wait_for_agent("support")
    page.goto(f"{served.url}/fleet")
    providers = page.get_by_role("region", name="Limits and pauses")
    providers.get_by_label("You act as").fill("ann")
    providers.get_by_text("Pause something").click()
    providers.get_by_role("combobox", name="What").select_option("agent")
    providers.get_by_label("Name", exact=True).fill("support")
    providers.get_by_label("Reason", exact=True).fill("the <b>bank</b> is down")
    providers.get_by_role("combobox", name="How long").select_option("for an hour")
    providers.get_by_role("button", name="Pause it").click()
    paused = providers.get_by_role("list", name="Pauses").get_by_role("listitem")
    expect(paused).to_contain_text("agent support the <b>bank</b> is down")
    expect(paused).to_contain_text("ago by ann, until")
    job = desk.client.submit("support", "Where is order 4915?")
    expect(page.get_by_role("row").filter(has_text="waits for the end of a pause")).to_contain_text("1")
    if (folder := pictures()) is not None:
        desk.client.limits.set(ProviderLimit("openai:gpt-5-mini", rpm=500, tpm=200_000, group="batch"), by="ann")
        expect(providers.get_by_text("500 requests a minute, set by ann")).to_be_visible()
        page.screenshot(path=folder / "page-fleet-providers.png", full_page=True)
        desk.client.limits.remove("openai:gpt-5-mini", "batch")
    page.goto(f"{served.url}/sessions/{job.session_id}")
    expect(page.get_by_text("agent support paused by ann").first).to_be_visible()

    page.goto(f"{served.url}/fleet")
    providers.get_by_role("button", name="End the pause of agent support").click()
    expect(paused).to_have_count(0)
    wait_until(lambda: desk.client.header(job.session_id).status == "completed", "it continues", 30)
    assert watched.complaints == []
    worker.end()


def test_a_concurrency_limit_is_set_watched_and_removed_on_the_page(
    desk: Lab, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    page.goto(f"{served.url}/fleet")
    providers = page.get_by_role("region", name="Limits and pauses")
    providers.get_by_text("Limit what runs at a time").click()
    form = providers.locator("form").filter(has_text="Agents and tools name the limit")
    form.get_by_label("Name of the limit").fill("crm")
    form.get_by_role("button", name="Set it").click()
    expect(providers.get_by_role("alert")).to_contain_text("total, per or both")
    form.get_by_label("In all").fill("20")
    form.get_by_label("For each value of the label").fill("customer")
    form.get_by_label("At most").fill("2")
    form.get_by_role("button", name="Set it").click()
    row = providers.get_by_role("table", name="Concurrency limits").get_by_role("row").filter(has_text="crm")
    expect(row).to_contain_text("20 in all")
    expect(row).to_contain_text("2 for each customer")
    expect(row).to_contain_text("0 run, 0 wait")
    expect(providers.get_by_role("status").first).to_contain_text("no live worker has crm")
    found = desk.client.concurrency.get("crm")
    assert found is not None
    assert (found.total, found.per) == (20, {"customer": 2})
    row.get_by_role("button", name="Remove the limit crm").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove it").click()
    expect(row).to_have_count(0)
    refused = "Failed to load resource: the server responded with a status of 422"
    assert [each for each in watched.complaints if refused not in each] == []


def test_a_spend_cap_is_watched_and_removed_on_the_page(desk: Lab, served: ServeProcess, watched: Watched) -> None:
    page, client = watched.page, desk.client
    cap = SpendCap("<b>daily</b>", usd=20, per="day", label="customer", values={"acme": 100}, then="stop")
    client.caps.set(cap, by="ann")
    part = client.caps.list()[0].cap.part_for("support", {"customer": "acme"}, client.store.housekeeping.now_ms())
    assert part is not None
    client.store.flow.reserve_spending([part], "a call", nanos(12.5), client.store.housekeeping.now_ms())
    page.goto(f"{served.url}/fleet")
    providers = page.get_by_role("region", name="Limits and pauses")
    row = providers.get_by_role("table", name="Spend caps").get_by_role("row").filter(has_text="<b>daily</b>")
    expect(row).to_contain_text("20 $ a day for each customer, then stop")
    expect(row).to_contain_text("acme: 12.50 $ of 100 $")
    if (folder := pictures()) is not None:
        page.screenshot(path=folder / "page-fleet-caps.png", full_page=True)
    row.get_by_role("button", name="Remove the cap <b>daily</b>").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove it").click()
    expect(row).to_have_count(0)
    assert client.caps.list() == ()
    assert watched.complaints == []


def test_a_limit_is_set_and_removed_on_the_page_and_what_does_not_fit_is_said(
    desk: Lab, served: ServeProcess, watched: Watched
) -> None:
    page = watched.page
    page.goto(f"{served.url}/fleet")
    providers = page.get_by_role("region", name="Limits and pauses")
    expect(providers.get_by_text("No limit of a model provider is set")).to_be_visible()
    providers.get_by_text("Set a limit").click()
    providers.get_by_label("Model", exact=True).fill("openai:gpt-5-mini")
    providers.get_by_label("Requests a minute").fill("many")
    providers.get_by_role("button", name="Set this limit").click()
    expect(providers.get_by_role("alert")).to_contain_text("limit.rpm")
    providers.get_by_label("Requests a minute").fill("0")
    providers.get_by_role("button", name="Set this limit").click()
    expect(providers.get_by_role("status").first).to_contain_text("0 admits no request to openai:gpt-5-mini")
    row = providers.get_by_role("row").filter(has_text="openai:gpt-5-mini")
    expect(row).to_contain_text("takes no request: a limit is 0")
    expect(row).to_contain_text("0 requests a minute, set")
    assert desk.client.limits.get("openai:gpt-5-mini") is not None
    row.get_by_role("button", name="Remove the limit").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove it").click()
    expect(row).to_have_count(0)
    assert desk.client.limits.get("openai:gpt-5-mini") is None
    refused = "Failed to load resource: the server responded with a status of 422"
    assert [each for each in watched.complaints if refused not in each] == []


def test_a_schedule_is_seen_run_and_removed_on_the_page(desk: Lab, served: ServeProcess, watched: Watched) -> None:
    worker, page = desk.worker(), watched.page
    desk.client.wait_for_agent("support")
    desk.client.schedules.set(Schedule("night", cron="0 0 1 1 *", agent="support", message="the <b>year</b> {date}"))
    page.goto(f"{served.url}/fleet")
    schedules = page.get_by_role("region", name="Schedules")
    row = schedules.get_by_role("row").filter(has_text="night")
    expect(row).to_contain_text("support: the <b>year</b> {date}")
    expect(row).to_contain_text("0 submitted")
    page.route("**/run", lose_reply)
    run_now(row)
    expect(page.get_by_text("The API does not answer")).to_be_visible()
    page.unroute("**/run", lose_reply)
    for runs in (1, 2):  # the first is what was done without a reply
        with page.expect_response("**/run"):
            run_now(row)
        assert len([*desk.client.list(label={"schedule": "night"})]) == runs
    row.get_by_role("button", name="Remove night").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove it").click()
    expect(schedules.get_by_text("No schedule is set.")).to_be_visible()
    assert [each for each in watched.complaints if "ERR_FAILED" not in each] == []
    worker.end()


def run_now(row: Locator) -> None:
    row.get_by_role("button", name="Run night now").click()
    row.page.get_by_role("dialog").get_by_role("button", name="Run it").click()
