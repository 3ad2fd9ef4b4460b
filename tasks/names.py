"""Names of our Celery tasks: what other services send and what Flower shows."""

from __future__ import annotations

from typing import Final

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
