"""Remote control of our queues: `active_queues`, `add_consumer` and `cancel_consumer`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kombu import Queue

from .internals import wrap_remote_command
from .queue_consumer import QueueConsumer


def answer_for_queues(consumers: Sequence[QueueConsumer], queues: Sequence[Queue]) -> None:
    """Let this worker answer these commands for the queues that our own consumers take.

    Args:
        queues: Declarations of the worker's queues.
    """
    declared: dict[str, Any] = {queue.name: queue for queue in queues}

    def list_queues(stock: Callable[..., Any]) -> Callable[..., Any]:
        def active_queues(state: Any, **arguments: Any) -> Any:
            taken = [declared[name].as_dict(recurse=True) for each in consumers for name in each.active_queues()]
            return [*stock(state, **arguments), *taken]

        return active_queues

    def take(command: Callable[..., Any], *, is_taken: bool, answer: str) -> Callable[..., Any]:
        def take_queue(state: Any, **arguments: Any) -> Any:
            queue: Any = arguments.get("queue")
            known = [each for each in consumers if isinstance(queue, str) and each.knows(queue)]
            if not known:
                return command(state, **arguments)
            for each in known:
                each.take_queue(queue, is_taken=is_taken)
            return {"ok": f"{answer} {queue}"}

        return take_queue

    wrap_remote_command("active_queues", list_queues)
    wrap_remote_command("add_consumer", lambda stock: take(stock, is_taken=True, answer="add consumer"))
    wrap_remote_command("cancel_consumer", lambda stock: take(stock, is_taken=False, answer="no longer consuming from"))
