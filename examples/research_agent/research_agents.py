"""A research agent over the files of a folder, with a model or without one.

    RESEARCH_FOLDER=~/notes celery-agents up --agents research_agents
    celery-agents submit researcher "What did we decide about backups?" --wait

With `RESEARCH_MODEL=openai:gpt-5-mini` a model chooses the tools and writes the answer.
"""

from __future__ import annotations

import os

from research.agent import BASE_URL_VARIABLE, MODEL_VARIABLE, research_agent

researcher = research_agent(
    model=os.environ.get(MODEL_VARIABLE) or None, base_url=os.environ.get(BASE_URL_VARIABLE) or None
)
