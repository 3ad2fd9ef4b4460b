"""Settings of celery-agents and what is derived from them. Knows nothing of agents, sessions or Redis keys."""
