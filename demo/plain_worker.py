"""The same job as an ordinary Celery task: the whole loop in one task, with late acknowledgement.

    python -m celery_agents.demo.plain_worker BROKER_URL NAME

A message whose worker was killed is delivered again, as late acknowledgement promises, and the loop begins anew: every
answer is paid again. The refund's key is made where the refund is made, so that the second one is a second refund.
"""

from __future__ import annotations

import os
import sys
import uuid
from typing import Any, Final

from ..tasks.own_app import OwnApp, run_celery_command
from .agents import BASE_URL_VARIABLE, MODEL_VARIABLE
from .ledger import Kind, Ledger, Side
from .shop import SYSTEM_PROMPT, ToolRequest, decide_next, look_up_order, note_paid_answer, pay_refund

TASK: Final = "support.answer_customer"
_VISIBILITY_SECONDS: Final = 4
_VISIBILITY_SECONDS_WITH_MODEL: Final = 20


def visibility_seconds(model: str | None) -> int:
    """Time after which Redis's transport delivers an unacknowledged message again; Celery's default is an hour.

    It must be longer than the task takes, or a task that still runs is delivered again, too.
    """
    return _VISIBILITY_SECONDS_WITH_MODEL if model else _VISIBILITY_SECONDS


def create_plain_app(broker_url: str, model: str | None) -> OwnApp:
    """Create an ordinary Celery app that acknowledges a task when it is done; no environment variable changes it."""
    app = OwnApp("plain", broker_url=broker_url)
    app.conf.update(
        broker_url=broker_url,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=True,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        broker_transport_options={
            "visibility_timeout": visibility_seconds(model),
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        },
    )
    app.task(name=TASK)(answer_customer)
    return app


def answer_customer(message: str) -> None:
    """Run the whole loop, and note its end in the ledger."""
    ledger = Ledger.from_environment()
    assert ledger is not None
    ledger.write(Side.PLAIN, Kind.STARTED)
    model = os.environ.get(MODEL_VARIABLE)
    answer = run_with_model(model, message) if model else run_without_model(message)
    ledger.write(Side.PLAIN, Kind.ENDED, text=answer)


def run_without_model(message: str) -> str:
    """Decide, call the tool, and decide again until there is an answer."""
    results: list[Any] = []
    while True:
        decision = decide_next(message, results)
        if not isinstance(decision, ToolRequest):
            note_paid_answer(Side.PLAIN, text=decision)
            return decision
        note_paid_answer(Side.PLAIN, tool=decision.tool)
        results.append(_TOOLS[decision.tool](**decision.arguments))


def run_with_model(name: str, message: str) -> str:
    """Run the loop with pydantic-ai, as a task would do it that has never heard of this package."""
    from ..worker.drivers.pydantic_ai.models import Target, build
    from .counted_model import run_counted

    model = build(Target(name, os.environ.get(BASE_URL_VARIABLE) or None))
    return run_counted(model, SYSTEM_PROMPT, [find_order, refund], message)


def find_order(number: str) -> dict[str, Any]:
    """Look an order up."""
    return look_up_order(number)


def refund(number: str, cents: int) -> str:
    """Refund an order."""
    return pay_refund(Side.PLAIN, uuid.uuid4().hex, number, cents)


_TOOLS: Final = {"find_order": find_order, "refund": refund}


def main(broker_url: str, name: str) -> int:
    """Run a worker until it is told to end."""
    options = [f"--hostname={name}@localhost", "--pool=threads", "--concurrency=1", "--loglevel=INFO"]
    app = create_plain_app(broker_url, os.environ.get(MODEL_VARIABLE))
    return run_celery_command(app, ["worker", *options, "--without-gossip", "--without-mingle"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
