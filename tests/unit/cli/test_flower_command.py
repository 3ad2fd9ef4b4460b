"""Where Flower may listen."""

from __future__ import annotations

import socket

import pytest

from celery_agents.config.settings import Settings
from celery_agents.tasks.observability.flower import check_exposure, is_loopback, run_flower
from celery_agents.worker.errors import ConfigurationError


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_credentials(address: str) -> None:
    assert is_loopback(address)
    check_exposure(address, None)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.1", "", "flower.example", "127.0.0.1.example"])
def test_beyond_loopback_it_refuses_without_credentials(address: str) -> None:
    with pytest.raises(ConfigurationError, match="FLOWER_BASIC_AUTH"):
        check_exposure(address, None)
    check_exposure(address, "user:password")


@pytest.mark.parametrize("auth", ["", "user", "user:", ":password", "a:b,c", ","])
def test_half_credentials_are_refused(auth: str) -> None:
    with pytest.raises(ConfigurationError, match="user:password"):
        check_exposure("0.0.0.0", auth)


def test_a_port_that_is_taken_is_said() -> None:
    pytest.importorskip("flower")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port}.*--port"):
            run_flower(Settings.build(), address="127.0.0.1", port=port, basic_auth=None)
