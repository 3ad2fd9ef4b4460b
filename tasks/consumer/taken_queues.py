"""The queues of steps that a worker takes: those of the agents that it offers, and that of its worker group."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Final

from celery import Celery
from kombu import Queue

from ...config.celery import step_queue
from ...config.settings import DEFAULT_QUEUE, GROUP_MARK, Settings
from ...worker.errors import ConfigurationError
from ..agent_modules import import_agents

log = logging.getLogger(__name__)


class TakenQueues:
    """The queues of ours that a worker consumes.

    Attributes:
        settings: The settings with the queues that the worker is restricted to.
        steps: The broker's names of the queues of steps, by the names that agents give them; "" is the common one.
        control: The broker's name of the control queue; None where the worker does not take it.
    """

    def __init__(self, app: Celery, settings: Settings) -> None:
        """Choose the queues of a worker that is about to start, from those that Celery consumes.

        A worker that consumes the common queue takes the queues of all agents that the settings let it offer. One that
        consumes queues of agents only (`-Q celery_agents.steps.gpu`) offers the agents of these.

        Raises:
            ConfigurationError: The worker would take steps, and knows no agent.
        """
        self._queues: Final[Any] = app.amqp.queues
        consumed: list[str] = list(self._queues.consume_from)
        chosen = {name: queue for queue in consumed if (name := settings.queue_name(queue)) is not None}
        self.settings = settings
        self.steps: dict[str, str] = {}
        self.control = settings.control_queue if settings.control_queue in consumed else None
        if not chosen:
            return
        if "" not in chosen and settings.chosen_queues is None:
            named = [name for name in chosen if not name.startswith(GROUP_MARK)]
            self.settings = settings.model_copy(update={"queues": ",".join(sorted(named))})
        if not settings.agent_modules:
            raise ConfigurationError(
                f"a worker that consumes {min(chosen.values())} needs agents: name modules in CELERY_AGENTS_AGENTS, "
                "or choose its queues with -Q"
            )
        agents = import_agents(self.settings)
        common = self._queues.consume_from.get(settings.queue)
        self._queues.deselect(list(chosen.values()))
        for name in sorted(agents.queues | {agents.group}):
            queue = step_queue(settings, name)
            known = common if not name and common is not None else queue
            self._queues.select_add(known)
            self.steps[name] = known.name

    @property
    def all(self) -> tuple[str, ...]:
        """The broker's names of the queues of ours that the worker consumes: of steps, and the control queue."""
        return (*self.steps.values(), *([self.control] if self.control is not None else []))

    def queues(self) -> list[Queue]:
        """The declarations of these queues."""
        return [self._queues[name] for name in self.all]

    def note_quorum_queues(self, connection: Any) -> None:
        """Declare the queues at RabbitMQ, and note which of them it replicates though only its own default says so.

        Celery asks the declarations: it limits the messages of a whole connection, which quorum queues refuse.

        Args:
            connection: A kombu connection that is open.
        Raises:
            amqp.ChannelError: This user may not declare a queue, or it exists with other arguments.
        """
        for queue in self.queues():
            arguments = {**(queue.queue_arguments or {}), "x-queue-type": "quorum"}
            with connection.channel() as channel:
                queue(channel).declare()
            with contextlib.suppress(connection.channel_errors), connection.channel() as channel:
                channel.queue_declare(queue.name, durable=True, auto_delete=False, arguments=arguments)
                queue.queue_arguments = arguments

    @property
    def has_others(self) -> bool:
        """Whether Celery's consumer takes queues that are not ours."""
        return bool(set(self._queues.consume_from) - set(self.all))

    def describe(self) -> str:
        """The queues of steps for people."""
        names = (name or DEFAULT_QUEUE for name in self.steps if not name.startswith(GROUP_MARK))
        return ", ".join(sorted(names))

    def set_aside(self) -> list[str]:
        """Let Celery's consumer go without our queues; gives the names of those that it had."""
        names = [name for name in self.all if name in self._queues.consume_from]
        self._queues.deselect(names)
        return names

    def consume(self, parent: Any, names: list[str]) -> None:
        """Let a worker that runs consume queues from now on, whatever becomes of its connection."""
        for name in names:
            self._queues.select_add(self._queues[name])
            if parent.consumer is not None:
                parent.consumer.call_soon(parent.consumer.add_task_queue, name)
