"""A connection error names the address and the proxy, and never a password."""

from __future__ import annotations

import pytest

from celery_agents.config.routes import describe_route


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name.upper()}_PROXY", raising=False)


@pytest.mark.parametrize(
    ("url", "route"),
    [
        ("https://api.example.com/v1/chat?key=s3cret", "api.example.com:443"),
        ("http://user:s3cret@host:8080/x", "host:8080"),
        ("http://[::1]:9/", "[::1]:9"),
        ("", ""),
        ("https://", ""),
        ("https://host:port/", ""),
    ],
)
def test_the_address_is_named_without_path_and_password(url: str, route: str) -> None:
    assert describe_route(url) == route


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
def test_a_proxy_is_named_by_its_variable_without_its_password(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "http://someone:s3cret@proxy:3128")
    assert describe_route("https://api.example.com/") == f"api.example.com:443 by {name.upper()} (proxy:3128)"
    monkeypatch.setenv("NO_PROXY", "example.com")
    assert describe_route("https://api.example.com/") == "api.example.com:443"


def test_a_proxy_for_another_scheme_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "proxy:3128")
    assert describe_route("https://api.example.com/") == "api.example.com:443"
    assert describe_route("http://api.example.com/") == "api.example.com:80 by HTTP_PROXY (proxy:3128)"
