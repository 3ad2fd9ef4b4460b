"""Sentences for who submits a job that cannot begin yet: what it would use is paused, or its money is spent."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from ...worker.engine.flow_texts import describe_overspent, describe_pause
from ...worker.errors import StoreForbidden, StoreUnavailable
from ...worker.flow.shares import FairShares
from ...worker.flow.values import EMPTY_VIEW, FlowView
from ...worker.store.flow.caps import Overspent
from ...worker.store.store import Store

_KNOWN_SECONDS: Final = 1.0
"""How long what is set is known, so that most submits read nothing for this."""


class SubmitNotes:
    """Says why a job waits; safe to share between threads."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._view: tuple[FlowView, float] = (EMPTY_VIEW, float("-inf"))

    def describe(self, agent: str, queue: str, labels: Mapping[str, str]) -> str:
        """Why a new job does not begin at once; "" where nothing is known to hold it.

        Args:
            queue: Of the agent; "" is the common one.
        """
        try:
            view, is_fresh = self._known_view()
            told = self._describe(view, agent, queue, labels)
            if told and not is_fresh:  # it may have ended
                told = self._describe(self._read_view(), agent, queue, labels)
        except (StoreUnavailable, StoreForbidden):  # the job is there: its caller must not take it for lost
            return ""
        return told

    def shares(self) -> FairShares | None:
        """The fair shares as they were a second ago at the earliest; None: none are set, or Redis does not say."""
        try:
            return self._known_view()[0].shares
        except (StoreUnavailable, StoreForbidden):  # the submit itself says it
            return None

    def forget(self) -> None:
        """Read anew what is set, at the next question."""
        self._view = EMPTY_VIEW, float("-inf")

    def _describe(self, view: FlowView, agent: str, queue: str, labels: Mapping[str, str]) -> str:
        now_ms = view.at_ms
        for pause in (view.pause_of("agent", agent, now_ms), view.pause_of("queue", queue, now_ms)):
            if pause is not None:
                return f"the job waits: {describe_pause(pause)}"
        parts = view.cap_parts(agent, labels, now_ms)
        for part, spent in zip(parts, self._store().flow.spent_of(parts), strict=True):
            if spent >= part.most:
                ends = "is stopped" if part.cap.then == "stop" else "waits"
                return f"the job {ends}: {describe_overspent(Overspent(part, spent))}"
        return ""

    def _known_view(self) -> tuple[FlowView, bool]:
        """Give all that is set, and whether it was read just now."""
        view, read_at = self._view
        is_known = time.monotonic() - read_at <= _KNOWN_SECONDS
        return (view, False) if is_known else (self._read_view(), True)

    def _read_view(self) -> FlowView:
        view = self._store().flow.view()
        self._view = view, time.monotonic()
        return view
