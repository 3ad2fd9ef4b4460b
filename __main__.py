"""`python -m celery_agents` is the command `celery-agents`."""

from .tasks.cli import main

if __name__ == "__main__":
    main()
