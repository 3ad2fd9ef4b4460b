"""Running steps side by side: fibers on one event loop, threads beside it, and a lock for steps that run alone.

Nothing here knows sessions, stores or Celery.
"""
