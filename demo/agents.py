"""The agents module of the demo's workers (`CELERY_AGENTS_AGENTS=celery_agents.demo.agents`)."""

from __future__ import annotations

import os

from .agent import BASE_URL_VARIABLE, MODEL_VARIABLE, research_agent

researcher = research_agent(
    model=os.environ.get(MODEL_VARIABLE) or None, base_url=os.environ.get(BASE_URL_VARIABLE) or None
)
