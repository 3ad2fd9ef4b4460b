"""The part of a worker that takes steps from the queue.

Everything that touches what Celery, kombu or redis-py do not promise lives here.
"""
