"""The agents of `asking_agents`, in a worker whose child is killed while it runs a control task for the first time."""

from __future__ import annotations

import os
import signal
from typing import Any

from celery.signals import task_prerun

from celery_agents.tasks.names import SUBMIT

from . import asking_agents

asking = asking_agents.asking


@task_prerun.connect(weak=False)
def kill_child(task: Any, **_: Any) -> None:
    """Kill this process, as the kernel's out-of-memory killer does."""
    if task.name == SUBMIT and not task.request.delivery_info.get("redelivered"):
        os.kill(os.getpid(), signal.SIGKILL)
