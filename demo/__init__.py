"""The demo: a refund whose worker is killed, beside the same job as an ordinary Celery task."""
