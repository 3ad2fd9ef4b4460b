"""Running steps side by side: fibers on one event loop, threads next to it, and a lock for steps that run alone.

Nothing here knows sessions, stores or Celery.
"""
