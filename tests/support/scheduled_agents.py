"""An agent that comes with schedules of its own."""

from __future__ import annotations

import os

from celery_agents import Agent
from celery_agents.flow import Schedule

MESSAGE = os.environ.get("TEST_SCHEDULE_MESSAGE", "Report of {date}")

agent = Agent(
    "report",
    driver=lambda state: f"read: {state.messages[-1].content}",
    schedules=[
        Schedule("yearly", cron="0 0 1 1 *", zone="Europe/Berlin", message=MESSAGE),
        Schedule("each-second", cron="* * * * * *", message="Tick {second}", session="ticks", overlap="queue"),
    ],
)
