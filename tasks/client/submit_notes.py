"""Sentences for who submits a job that cannot begin yet: what it would use is paused, or its money is spent."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from ...worker.engine.flow_texts import describe_overspent, describe_pause
from ...worker.errors import StoreForbidden, StoreUnavailable
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
            view = self._known_view()
            told = self._describe(view, agent, queue, labels)
            if told and view is not self._known_view(seconds=0.0):  # it may have ended
                told = self._describe(self._view[0], agent, queue, labels)
        except (StoreUnavailable, StoreForbidden):  # the job is there: its caller must not take it for lost
            return ""
        return told

    def _describe(self, view: FlowView, agent: str, queue: str, labels: Mapping[str, str]) -> str:
        now_ms = view.at_ms
        for pause in (view.pause_of("agent", agent, now_ms), view.pause_of("queue", queue, now_ms)):
            if pause is not None:
                return f"the job waits: {describe_pause(pause)}"
        for cap in view.caps.values():
            part = cap.part_for(agent, labels, now_ms)
            if part is not None and (spent := self._store().flow.spent_of(part)) >= part.most:
                ends = "is stopped" if cap.then == "stop" else "waits"
                return f"the job {ends}: {describe_overspent(Overspent(part, spent))}"
        return ""

    def _known_view(self, seconds: float = _KNOWN_SECONDS) -> FlowView:
        view, read_at = self._view
        if time.monotonic() - read_at > seconds:
            view = self._store().flow.view()
            self._view = view, time.monotonic()
        return view
