"""An existing Celery project that runs agents too.

    celery -A shop worker -P threads -c 100 --task-events -Q celery,celery_agents.steps,celery_agents.control

Set `CELERY_AGENTS_AGENTS=shop_agents` for the workers. Nothing of the project's own configuration changes. Sessions are
stored in the project's Redis broker.
"""

from __future__ import annotations

import os

from celery import Celery

from celery_agents import install

app = Celery("shop", broker=os.environ.get("BROKER_URL", "redis://127.0.0.1:6379/0"))
app.conf.task_default_queue = "celery"

install(app)


@app.task
def order_paid(number: int) -> str:
    """A task the project has had for years."""
    return f"order {number} is paid"


@app.task
def told(result: dict[str, str]) -> str:
    """Called by `client.submit(…, on_complete="shop.told")` when an agent has answered."""
    return f"the agent says: {result['final_response']}"
