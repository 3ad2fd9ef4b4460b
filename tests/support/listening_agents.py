"""An agent that makes one effect for each message that it hears, so that an outside ledger counts deliveries.

A message is its own name. The model calls `heard` with the name of the first message whose result is not in the conversation, and
answers when each has one: what was delivered twice has two effects, under two keys, and what was not delivered has none.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from functools import partial

import anyio.to_thread

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool, InferenceRequest
from celery_agents.worker.drivers.answers import raw_answer
from celery_agents.worker.drivers.function import LocalDriver
from celery_agents.worker.state import Message, Role
from celery_agents.worker.state.conversation.messages import DEFAULT

from .agents import driver_key, keyed_async
from .ledger import LEDGER_URL, post_effect

THINKS_SECONDS = 0.05
"""So long a model is asked: a message may interrupt it."""


def unheard(messages: Sequence[Message]) -> str | None:
    """The name of the first message of a user without a result; None: each has one."""
    results = Counter(each.content for each in messages if each.role is Role.TOOL and not each.is_error)
    for message in messages:
        if message.role is Role.USER:
            if not results[f"{message.content} done"]:
                return message.content
            results[f"{message.content} done"] -= 1
    return None


class ListeningDriver(LocalDriver):
    """Asks for the effect of the first message without one; notes in the ledger that it was asked."""

    name = "listener"
    is_async = True

    async def infer(self, request: InferenceRequest) -> bytes:
        """See `Driver.infer`."""
        execution, messages = request.state.execution, request.state.store.section(DEFAULT).messages
        assert execution is not None
        key = driver_key(execution.execution_id, execution.step_count + 1)
        note = partial(post_effect, os.environ[LEDGER_URL], key, kind="driver", after=THINKS_SECONDS)
        await anyio.to_thread.run_sync(note, abandon_on_cancel=True)
        name = unheard(messages)
        return raw_answer("heard" if name is None else [CallTool("keyed_async", work=name)], request, self.name)


listener = Agent("listener", driver=ListeningDriver(), tools=(keyed_async,))
