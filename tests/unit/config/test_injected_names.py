"""Names that Kubernetes injects are not ours, except where one is and its value is no address."""

from __future__ import annotations

import pytest

from celery_agents.config.settings import Settings, SettingsError


def test_what_kubernetes_writes_for_services_is_ignored() -> None:
    environment = {
        "CELERY_AGENTS_SERVICE_HOST": "10.0.0.1",
        "CELERY_AGENTS_PORT_6379_TCP_ADDR": "10.0.0.1",
        "CELERY_AGENTS_METRICS_PORT": "tcp://10.0.0.1:9090",
    }
    assert Settings.from_environment(environment).metrics_port is None


def test_the_port_of_the_metrics_is_a_setting() -> None:
    assert Settings.from_environment({"CELERY_AGENTS_METRICS_PORT": "9090"}).metrics_port == 9090
    with pytest.raises(SettingsError, match="METRICS_PORT"):
        Settings.from_environment({"CELERY_AGENTS_METRICS_PORT": "http"})
