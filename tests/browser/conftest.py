"""A real Chromium for the page: Debian's, driven by playwright. Where there is none, these tests say so and are skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, sync_playwright

from celery_agents.tasks.client.job import Job

from support.lab import Lab
from support.serve_process import ServeProcess
from support.wait import wait_until
from support.worker_process import WorkerProcess

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
SECRET = {"CELERY_AGENTS_TOKEN_SECRET": "not-a-secret-but-long-enough"}
WRITTEN = "document.querySelector('.writing:not([hidden])')?.textContent"
"""The text that is shown as being written, for scripts in the page."""
OPTIONS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--proxy-server=direct://", "--disable-smooth-scrolling",
)  # fmt: skip


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt-get install chromium, or set CHROMIUM to its path")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
        yield started
        started.close()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A tea shop's agents on a Redis; workers are started by the tests."""
    with Lab(tmp_path_factory.mktemp("page") / "lab", agents="browser.story_agents", env=SECRET) as started:
        yield started


@pytest.fixture(scope="module")
def served(desk: Lab) -> Iterator[ServeProcess]:
    process = ServeProcess(desk.directory / "serve", desk.store_url, SECRET)
    process.start()
    yield process
    process.end()


@pytest.fixture(scope="module")
def worker(desk: Lab) -> Iterator[WorkerProcess]:
    """The worker of the stories that kill none."""
    started = desk.worker()
    yield started
    started.end()


class Watched:
    """A page with what its console, its requests and its policy have complained of.

    Attributes:
        complaints: Errors of scripts, refused loads, violations of the policy; empty for a sound page.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", lambda message: message.type in ("error", "warning") and self._note(message.text))
        page.on("pageerror", lambda error: self._note(str(error)))

    def _note(self, text: str) -> None:
        self.complaints.append(text)


@pytest.fixture
def context_of(browser: Browser) -> Iterator[Callable[..., BrowserContext]]:
    made: list[BrowserContext] = []

    def make(**options: Any) -> BrowserContext:
        defaults: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, "locale": "en-GB", "timezone_id": "UTC"}
        made.append(browser.new_context(**{**defaults, **options}))
        return made[-1]

    yield make
    for each in made:
        for page in each.pages:  # what is asked until the end of the test may be under way in a handler of its routes
            page.unroute_all(behavior="ignoreErrors")
        each.close()


@pytest.fixture
def watched(context_of: Callable[..., BrowserContext]) -> Watched:
    """A page of a desktop in light colours."""
    return Watched(context_of().new_page())


def pictures() -> Path | None:
    """Where pictures for the documentation go: the folder in PICTURES; None: nowhere."""
    folder = os.environ.get("PICTURES")
    return None if folder is None else Path(folder)


def submit(desk: Lab, message: str) -> Job:
    return desk.client.submit("support", message)


def wait_for(desk: Lab, job: Job, status: str) -> None:
    wait_until(lambda: desk.client.header(job.session_id).status == status, f"the session is {status}", 60)


def completed(desk: Lab, message: str) -> Job:
    """A job that has completed."""
    job = submit(desk, message)
    wait_for(desk, job, "completed")
    return job


def wait_for_request(desk: Lab, job: Job) -> str:
    """Wait until a session asks for an approval; the id of its request."""
    found: list[str] = []

    def look() -> bool:
        found[:] = [each.summary.id for each in desk.client.requests() if each.summary.session_id == job.session_id]
        return bool(found)

    wait_until(look, "it asks", 60)
    return found[0]


def take_picture(page: Page, name: str) -> None:
    """Take a picture for the documentation where one is wanted."""
    folder = pictures()
    if folder is not None:
        page.wait_for_timeout(500)
        page.screenshot(path=folder / f"page-{name}.png")


def lose_reply(route: Route) -> None:
    """Carry a request of the page out, and lose what is answered."""
    route.fetch()
    route.abort()
