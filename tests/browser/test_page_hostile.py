"""What others have written does nothing on the page: two hundred texts through every field that shows one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from browser.conftest import Watched
from browser.hostile_agents import HOSTILE
from playwright.sync_api import Page, expect

from support.lab import Lab
from support.serve_process import ServeProcess
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(300)]

UNSEEN = "/[\\u0000-\\u0008\\u000b\\u000c\\u000e-\\u001f\\u007f-\\u009f\\u202a-\\u202e\\u2066-\\u2069]/"
FOREIGN = "script:not([type=module]), img, iframe, object, embed, video, form[action], base, meta[http-equiv], a[href^='javascript:']"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A worker with the hostile agent, and a session for each text besides the one that says them all."""
    with Lab(tmp_path_factory.mktemp("hostile") / "lab", agents="browser.hostile_agents") as started:
        started.worker()
        yield started


def check(page: Page, watched: Watched) -> None:
    """Nothing has run, nothing foreign is in the document, no control character is drawn."""
    assert page.evaluate("document.documentElement.dataset.hit") is None
    assert page.evaluate(f'document.querySelectorAll("{FOREIGN}").length') == 0
    assert page.evaluate(f"{UNSEEN}.test(document.body.innerText)") is False
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert watched.complaints == []


def test_hostile_texts_are_inert_in_every_place(desk: Lab, served: ServeProcess, watched: Watched) -> None:
    assert len(HOSTILE) >= 200
    page = watched.page
    client = desk.client
    job = client.submit("hostile", "all of them")
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    for text in HOSTILE:
        client.submit("hostile", text if text.strip() else f"blank{text}", start_at=tomorrow)
    wait_until(lambda: client.header(job.session_id).status == "waiting", "it asks", 120)

    page.goto(f"{served.url}/sessions")
    expect(
        page.get_by_role("link", name="all of them").or_(page.get_by_role("button", name="Older sessions")).first
    ).to_be_visible()
    for _ in range(6):
        older = page.get_by_role("button", name="Older sessions")
        if older.count():
            older.click()
            page.wait_for_timeout(500)
        page.mouse.wheel(0, 4000)
        page.wait_for_timeout(300)
        check(page, watched)

    page.goto(f"{served.url}/sessions/{job.session_id}")
    expect(page.get_by_role("log", name="Messages")).to_be_visible()
    page.wait_for_timeout(3000)
    check(page, watched)
    for name in page.locator("tr.span button.name").all()[:12]:
        name.click()
        page.wait_for_timeout(300)
    check(page, watched)
    for tab in ("Overview", "What the model saw", "Tools", "Raw"):
        page.get_by_role("tab", name=tab).click()
        page.wait_for_timeout(1000)
        check(page, watched)

    page.goto(f"{served.url}/requests")
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
    page.wait_for_timeout(2000)
    for _ in range(10):
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_timeout(300)
        check(page, watched)

    for place in (f"tree/{job.session_id}", "fleet"):
        page.goto(f"{served.url}/{place}")
        page.wait_for_timeout(1500)
        check(page, watched)
