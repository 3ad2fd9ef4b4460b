"""The command `celery-agents`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process with its exit code."""
    from .hidden_arguments import hide_redis_password

    if arguments is None:
        hide_redis_password()
    try:
        from .program import run
    except KeyboardInterrupt:  # the modules take a moment to load
        sys.exit(130)
    run(arguments)
