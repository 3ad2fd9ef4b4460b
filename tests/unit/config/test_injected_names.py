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


@pytest.mark.parametrize("name", ["PORT", "HTTP_PORT", "FLOWER_PORT", "REDIS_PORT", "PORT_RANGE"])
def test_a_port_that_is_no_setting_is_refused_unless_kubernetes_has_written_it(name: str) -> None:
    with pytest.raises(SettingsError, match=f"unknown setting CELERY_AGENTS_{name}"):
        Settings.from_environment({f"CELERY_AGENTS_{name}": "8081"})


@pytest.mark.parametrize(
    "variables",
    [
        {"PORT": "tcp://10.0.0.1:8080", "PORT_8080_TCP": "tcp://10.0.0.1:8080", "SERVICE_PORT": "8080"},
        {"HTTP_PORT": "udp://10.0.0.1:53", "HTTP_PORT_53_UDP_PROTO": "udp", "HTTP_SERVICE_PORT_PAGE": "8080"},
        {"REDIS_PORT_6379_TCP_PORT": "6379", "REDIS_SERVICE_HOST": "10.0.0.1"},
    ],
)
def test_every_form_that_kubernetes_writes_is_ignored(variables: dict[str, str]) -> None:
    environment = {f"CELERY_AGENTS_{name}": value for name, value in variables.items()}
    assert Settings.from_environment(environment) == Settings.build()
