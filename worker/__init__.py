"""The step, without Celery: agents, their state, its store, and the engine that carries one step through."""
