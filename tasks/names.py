"""Names of our Celery tasks: what other services send and what Flower shows."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "celery_agents."
STEP: Final = "celery_agents.step"
SUBMIT: Final = "celery_agents.submit"
RETRY: Final = "celery_agents.retry"
STOP: Final = "celery_agents.stop"
ANSWER: Final = "celery_agents.answer"
DELETE: Final = "celery_agents.delete"
FORK: Final = "celery_agents.fork"
_OF_VERBS: Final = ("answer_by_token", "complete", "fail", "suspend", "resume", "clear")
CONTROL: Final = (SUBMIT, RETRY, STOP, ANSWER, DELETE, FORK, *(f"{PREFIX}{name}" for name in _OF_VERBS))
PUBLISHED_HEADER: Final = "celery_agents_published"
