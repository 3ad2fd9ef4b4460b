"""Who answers requests in scenarios with real processes: a thread that answers everything, and a process that may die.

python -m support.answering <redis url> <broker url or -> <session> <request> <crash plan>
"""

from __future__ import annotations

import itertools
import sys
import threading
from typing import Any

from celery_agents import AgentClient
from celery_agents.config.settings import Settings
from celery_agents.worker import crash_points
from celery_agents.worker.errors import RequestNotFound, RequestNotOpen, StoreUnavailable
from celery_agents.worker.requests import TokenPurpose, TokenSigner, check_answer
from celery_agents.worker.state import Answer, AnswerNote, Approve, Complete, GivenAnswer, RequestKind
from celery_agents.worker.store import AnswerAction, FoundRequest, RequestFilter

from .ledger import Ledger
from .waiting_agents import TOKEN_SECRET

Place = tuple[str, int, str]
"""Execution, step and the work that was asked for."""


class AnsweringDesk:
    """Answers every open request and completes every job of the service, until it is closed.

    Attributes:
        decided: The work that was approved for each call, by the place of the request.
        answered: Ids of the requests that were answered.
    """

    def __init__(self, client: AgentClient, ledger: Ledger) -> None:
        self._client = client
        self._ledger = ledger
        self._signer = TokenSigner(TOKEN_SECRET)
        self._numbers = itertools.count()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="answers", daemon=True)
        self._operations: dict[str, str] = {}
        self._is_edited: dict[str, bool] = {}
        self.decided: dict[Place, str] = {}
        self.answered: set[str] = set()
        self.problems: list[str] = []

    def __enter__(self) -> AnsweringDesk:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._closed.wait(0.05):
            try:
                self._answer_people()
                self._complete_jobs()
            except StoreUnavailable:
                continue
            except Exception as error:  # the verdict says it
                self.problems.append(f"{type(error).__name__}: {error}")

    def _answer_people(self) -> None:
        page = self._client.store.requests.page(RequestFilter(), limit=500)
        for summary in (found.summary for found in page.requests):
            if summary.id not in self.answered and summary.kind is not RequestKind.EXTERNAL:
                found = self._client.store.requests.find(summary.session_id, summary.id)
                self.answer(found)

    def answer(self, found: FoundRequest) -> None:
        """Answer one open request: the first approval and every second one after it change the work."""
        request = found.request
        if request is None:
            return
        work = str(request.args["work"])
        is_edited = request.kind is RequestKind.APPROVAL and self._is_edited.setdefault(
            request.id, len(self._is_edited) % 2 == 0
        )
        chosen = f"{work} edited" if is_edited else work
        given: GivenAnswer = Approve({"work": chosen} if is_edited else None)
        if request.kind is RequestKind.QUESTION:
            given = Answer({"count": 3})
        self.decided[request.execution_id, request.step, work] = chosen
        self._send(request.session_id, request.id, given)

    def _complete_jobs(self) -> None:
        for entry in self._ledger.entries():
            if "token" in entry:
                claims = self._signer.read(entry["token"], TokenPurpose.COMPLETE, 0)
                if claims.request_id not in self.answered:
                    self._send(claims.session_id, claims.request_id, Complete(f"{entry['work']} done"))

    def _send(self, session: str, request: str, given: GivenAnswer) -> None:
        operation = self._operations.setdefault(request, f"answer-{next(self._numbers)}")
        action = AnswerAction({request: given}, AnswerNote(operation, by="the desk"), check=check_answer)
        try:
            self._client.store.requests.answer(session, action)
        except (RequestNotOpen, RequestNotFound) as refusal:
            self.problems.append(f"{request}: {refusal}")
        self.answered.add(request)


def answer_in_this_process(url: str, broker_url: str | None, session: str, request: str, **settings: Any) -> None:
    """Answer one request as a client of its own."""
    client = AgentClient(settings=Settings.build(redis_url=url, broker_url=broker_url, **settings))
    found = client.store.requests.find(session, request)
    assert found.request is not None
    given: GivenAnswer = Answer({"count": 3}) if found.request.kind is RequestKind.QUESTION else Approve()
    action = AnswerAction({request: given}, AnswerNote("answer-and-die", by="a client"), check=check_answer)
    client.store.requests.answer(session, action)


def main() -> None:
    url, broker_url, session, request, plan = sys.argv[1:]
    crash_points.arm(plan)
    answer_in_this_process(url, None if broker_url == "-" else broker_url, session, request)


if __name__ == "__main__":
    main()
