"""Remote control of the queues of steps: `active_queues`, `add_consumer` and `cancel_consumer`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kombu import Queue

from .internals import wrap_remote_command
from .step_consumer import StepConsumer


def answer_for_steps(steps: StepConsumer, queues: Sequence[Queue]) -> None:
    """Let this worker answer these commands for the queues that our own consumer takes.

    Args:
        queues: Declarations of the worker's queues.
    """
    declared: dict[str, Any] = {queue.name: queue for queue in queues}

    def list_queues(stock: Callable[..., Any]) -> Callable[..., Any]:
        def active_queues(state: Any, **arguments: Any) -> Any:
            taken = [declared[name].as_dict(recurse=True) for name in steps.active_queues()]
            return [*stock(state, **arguments), *taken]

        return active_queues

    def take(command: Callable[..., Any], *, is_taken: bool, answer: str) -> Callable[..., Any]:
        def take_queue(state: Any, **arguments: Any) -> Any:
            queue = arguments.get("queue")
            if not isinstance(queue, str) or not steps.knows(queue):
                return command(state, **arguments)
            steps.take_queue(queue, is_taken=is_taken)
            return {"ok": f"{answer} {queue}"}

        return take_queue

    wrap_remote_command("active_queues", list_queues)
    wrap_remote_command("add_consumer", lambda stock: take(stock, is_taken=True, answer="add consumer"))
    wrap_remote_command("cancel_consumer", lambda stock: take(stock, is_taken=False, answer="no longer consuming from"))
