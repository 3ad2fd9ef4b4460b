"""An environment in which a service around ours has set everything that Celery and Flower would read."""

from __future__ import annotations

from pathlib import Path

FILES = ("tasks.py", "config.py", "worker.py", "demo.py", "testing.py", "celeryconfig.py", "flowerconfig.py")

NOBODYS_PROXY = "http://someone:proxy-password@127.0.0.1:9"


def hostile_environment(other_redis: str) -> dict[str, str]:
    """Variables of another service, which uses another Redis."""
    return {
        "ALL_PROXY": NOBODYS_PROXY,
        "APP": "another.app",
        "AUTOSCALE_KEEPALIVE": "60",
        "BROKER_URL": other_redis,
        "CELERY_APP": "another.app",
        "CELERY_BROKER_READ_URL": other_redis,
        "CELERY_BROKER_URL": other_redis,
        "CELERY_BROKER_WRITE_URL": other_redis,
        "CELERY_CONFIG_MODULE": "another.config",
        "CELERY_CUSTOM_WORKER_POOL": "another.pool:TaskPool",
        "CELERY_LOADER": "another.loader:Loader",
        "CELERY_LOG_FILE": "/nowhere/another-%I.log",
        "CELERY_LOG_LEVEL": "WARNING",
        "CELERY_LOG_REDIRECT": "1",
        "CELERY_RESULT_BACKEND": other_redis,
        "CONFIG_MODULE": "another.config",
        "C_STRICT_APP": "1",
        "DJANGO_SETTINGS_MODULE": "another.settings",
        "FLOWER_ADDRESS": "0.0.0.0",
        "FLOWER_CONF": "flowerconfig.py",
        "FLOWER_PORT": "tcp://10.0.0.1:5555",
        "FORKED_BY_MULTIPROCESSING": "1",
        "HTTPS_PROXY": NOBODYS_PROXY,
        "HTTP_PROXY": NOBODYS_PROXY,
        "LOADER": "another.loader:Loader",
        "NO_COLOR": "yes please",
        "REDIS_URL": other_redis,
        "RESULT_BACKEND": other_redis,
        "SKIP_CHECKS": "perhaps",
    }


def write_files_of_another_service(folder: Path) -> None:
    """Put modules with the names of our folders, and configuration files, where a command is started."""
    for name in FILES:
        (folder / name).write_text(f"raise RuntimeError('{name} of another service was imported')\n")
