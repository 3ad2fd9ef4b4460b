"""Names of our Celery tasks: what other services send and what Flower shows."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "celery_agents."
STEP: Final = "celery_agents.step"
SUBMIT: Final = "celery_agents.submit"
RETRY: Final = "celery_agents.retry"
STOP: Final = "celery_agents.stop"
ANSWER: Final = "celery_agents.answer"
ANSWER_BY_TOKEN: Final = "celery_agents.answer_by_token"  # noqa: S105  (no password)
COMPLETE: Final = "celery_agents.complete"
FAIL: Final = "celery_agents.fail"
SUSPEND: Final = "celery_agents.suspend"
RESUME: Final = "celery_agents.resume"
DELETE: Final = "celery_agents.delete"
FORK: Final = "celery_agents.fork"
CLEAR: Final = "celery_agents.clear"
QUARANTINE: Final = "celery_agents.quarantine"
CONTROL: Final = (SUBMIT, RETRY, STOP, ANSWER, ANSWER_BY_TOKEN, COMPLETE, FAIL, SUSPEND, RESUME, DELETE, FORK, CLEAR)
PUBLISHED_HEADER: Final = "celery_agents_published"
