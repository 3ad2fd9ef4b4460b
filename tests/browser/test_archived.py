"""An archived session on the page: the list and the session say where it is, and a message brings it back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from browser.conftest import SECRET, Watched, completed, take_picture
from playwright.sync_api import expect

from support.lab import Lab
from support.serve_process import ServeProcess

pytestmark = [pytest.mark.timeout(180)]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Lab]:
    env = {**SECRET, "CELERY_AGENTS_ARCHIVE_URL": f"sqlite:///{tmp_path}/history.db"}
    with Lab(tmp_path / "lab", agents="browser.story_agents", env=env) as started:
        started.worker()
        yield started


def test_an_archived_session_is_marked_in_the_list_and_on_its_page(desk: Lab, watched: Watched) -> None:
    job = completed(desk, "How long does the kettle take?")
    assert desk.client.archive_now(older_than=timedelta(0)).moved == 1
    other = completed(desk, "Are you open on Sundays?")
    served = ServeProcess(desk.directory / "serve", desk.store_url, desk.settings_env)
    served.start()
    try:
        with served.http() as http:
            listed = http.get("/v1/sessions").json()["sessions"]
            assert {each["session_id"]: each["is_archived"] for each in listed} == {
                job.session_id: True,
                other.session_id: False,
            }
            assert http.get(f"/v1/sessions/{job.session_id}").json()["is_archived"]
        page = watched.page
        page.goto(f"{served.url}/sessions")
        rows = page.get_by_role("row")
        expect(rows.filter(has_text="How long does the kettle take?")).to_contain_text("in the archive")
        expect(rows.filter(has_text="Are you open on Sundays?")).not_to_contain_text("in the archive")
        take_picture(page, "archived-list")
        page.get_by_role("link", name="How long does the kettle take?").click()
        expect(page.locator(".state")).to_contain_text("in the archive")
        expect(page.get_by_role("log", name="Messages")).to_contain_text("How long does the kettle take?")
        take_picture(page, "archived")
        desk.client.send_message(job.session_id, "And the small one?").result(timeout=60)
        page.reload()
        expect(page.get_by_role("log", name="Messages")).to_contain_text("And the small one?")
        expect(page.locator(".state")).not_to_contain_text("in the archive")
        assert watched.complaints == []
    finally:
        served.end()
