"""Drivers of every kind: raw bytes that parse to the answer, and pieces of it for who watches."""

from __future__ import annotations

import inspect
from typing import Any

import anyio
import pytest

from celery_agents.worker.drivers import Delta, Driver, FunctionDriver, InferenceRequest, ScriptedDriver
from celery_agents.worker.state import AgentState


async def _answer_later(_state: AgentState) -> str:
    return "a good answer"


DRIVERS: dict[str, Driver] = {
    "scripted": ScriptedDriver(["a good answer"]),
    "function": FunctionDriver(lambda _state: "a good answer"),
    "async function": FunctionDriver(_answer_later),
}


def _infer(driver: Driver, request: InferenceRequest) -> bytes:
    raw: Any = driver.infer(request)
    if not inspect.isawaitable(raw):
        return raw

    async def wait() -> bytes:
        return await raw

    return anyio.run(wait)


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Driver:
    return DRIVERS[request.param]


def test_the_pieces_that_a_driver_emits_are_the_answer(driver: Driver) -> None:
    pieces: list[Delta] = []
    request = InferenceRequest(AgentState.fresh(), "s", "e", 1, emit=pieces.append)
    answer = driver.parse(_infer(driver, request))
    assert "".join(piece.text for piece in pieces) == answer.content == "a good answer"


def test_the_answer_is_the_same_when_nobody_watches(driver: Driver) -> None:
    request = InferenceRequest(AgentState.fresh(), "s", "e", 1)
    assert request.emit is None
    assert driver.parse(_infer(driver, request)).content == "a good answer"
