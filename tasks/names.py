"""Names of our Celery tasks: what other services send and what Flower shows."""

from __future__ import annotations

from typing import Any, Final

from ..config.settings import CONTROL_TASKS

PREFIX: Final = "celery_agents."
STEP: Final = "celery_agents.step"
SUBMIT: Final = "celery_agents.submit"
RETRY: Final = "celery_agents.retry"
CONTROL: Final = tuple(f"{PREFIX}{name}" for name in CONTROL_TASKS if name != "send_message")
PUBLISHED_HEADER: Final = "celery_agents_published"
LANE_HEADER: Final = "celery_agents_lane"
"""The header of the steps of a lane; in a turn its value is `TURN`."""
TURN: Final = "*"
"""What a message names in place of its lane when it is for the step whose share is next."""


def sent_to(queue: str, soft_time_limit: float | None = None) -> Any:
    """The option `on_bound` of a task whose messages go to this queue unless their sender names another.

    Limits of the user's app would go into each message, and workers take none that has limits.

    Celery 5.7 warns of each task that has the option `queue`; the other way, routes, are settings of the user's app.
    """

    def on_bound(task: Any, app: Any) -> None:
        app.Task.on_bound.__func__(task, app)  # of a base class of the user's
        task.queue, task.time_limit, task.soft_time_limit = queue, None, soft_time_limit

    return classmethod(on_bound)
