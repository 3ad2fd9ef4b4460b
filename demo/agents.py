"""What a worker of the demo imports (`CELERY_AGENTS_AGENTS=celery_agents.demo.agents`)."""

from __future__ import annotations

import os
from typing import Final

from .agent import research_agent

MODEL_VARIABLE: Final = "CELERY_AGENTS_DEMO_MODEL"
BASE_URL_VARIABLE: Final = "CELERY_AGENTS_DEMO_BASE_URL"

researcher = research_agent(
    model=os.environ.get(MODEL_VARIABLE) or None, base_url=os.environ.get(BASE_URL_VARIABLE) or None
)
