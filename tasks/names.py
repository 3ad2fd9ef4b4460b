"""Names of our Celery tasks: what other services send and what Flower shows."""

from __future__ import annotations

from typing import Final

STEP: Final = "celery_agents.step"
SUBMIT: Final = "celery_agents.submit"
RETRY: Final = "celery_agents.retry"
STOP: Final = "celery_agents.stop"
QUARANTINE: Final = "celery_agents.quarantine"
CONTROL: Final = (SUBMIT, RETRY, STOP)
PUBLISHED_HEADER: Final = "celery_agents_published"
