"""Only public addresses, and those that the settings name, may be reached."""

from __future__ import annotations

import pytest

from celery_agents.config.networks import AllowedNetworks
from celery_agents.config.settings import Settings, SettingsError

INSIDE = [
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "100.100.100.200", "192.0.0.192", "168.63.129.16", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::1", "2001:0:53aa:64c:0:fbff:8000:fffe", "fe80::1", "fe80::1%eth0",
    "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1", "3fff::1", "2001:4860::5efe:7f00:1",
    "2606:4700::200:5efe:127.0.0.1",
]  # fmt: skip
PUBLIC = ["93.184.216.34", "8.8.8.8", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::808:808", "::ffff:8.8.8.8"]


@pytest.mark.parametrize("address", INSIDE)
def test_an_address_inside_is_found_in_every_form(address: str) -> None:
    assert AllowedNetworks().find_forbidden("example.com", ["8.8.8.8", address]) == address


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_may_be_reached(address: str) -> None:
    assert AllowedNetworks().find_forbidden("example.com", [address]) is None


def test_named_networks_and_hosts_may_be_reached() -> None:
    allowed = AllowedNetworks.parse("10.2.0.0/16, Hooks.internal,127.0.0.1")
    assert allowed.find_forbidden("any.name", ["10.2.3.4"]) is None
    assert allowed.find_forbidden("any.name", ["::ffff:10.2.3.4", "127.0.0.1"]) is None
    assert allowed.find_forbidden("hooks.internal.", ["192.168.0.1"]) is None
    assert allowed.find_forbidden("other.internal", ["192.168.0.1"]) == "192.168.0.1"


@pytest.mark.parametrize("text", ["10.2.0.0/33", "10.2.0.1/16", "http://hooks", "a b", "300.1.1.1", "-x"])
def test_a_wrong_allow_list_is_refused_with_the_entry(text: str) -> None:
    with pytest.raises(SettingsError, match="CELERY_AGENTS_WEBHOOK_ALLOW"):
        Settings.build(webhook_allow=text)
