"""Network addresses that a webhook may reach: public ones, and those inside that the settings name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

_HOST: Final = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")

# Addresses that some version of Python counts as public and a webhook has no business with: that of Azure's metadata,
# special purposes, and those that stand for others (IPv4-compatible, NAT64 of a private network, Teredo).
_BLOCKED: Final = tuple(
    map(
        ip_network,
        (
            "168.63.129.16/32",
            "192.0.0.0/24",
            "192.88.99.0/24",
            "::/96",
            "64:ff9b:1::/48",
            "2001::/32",
            "3fff::/20",
            "fec0::/10",
        ),
    )
)
_NAT64: Final = IPv6Network("64:ff9b::/96")
# The middle of an address of ISATAP, in any network: the IPv4 address follows it.
_ISATAP: Final = (0x0000_5EFE, 0x0200_5EFE)


@dataclass(frozen=True, slots=True)
class AllowedNetworks:
    """Hosts and networks that webhooks may reach although they are not public.

    Attributes:
        hosts: Names, in lower case; any address of theirs may be reached by that name.
        networks: Addresses in them may be reached by any name.
    """

    hosts: frozenset[str] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def parse(cls, text: str) -> AllowedNetworks:
        """Parse names, addresses and networks with commas between them.

        Raises:
            ValueError: One of them is none of these.
        """
        hosts: set[str] = set()
        networks: list[IPv4Network | IPv6Network] = []
        for entry in filter(None, map(str.strip, text.split(","))):
            try:
                networks.append(ip_network(entry))
            except ValueError as error:
                if not _HOST.fullmatch(entry.lower()) or entry.replace(".", "").isdigit():
                    raise ValueError(
                        f"{entry!r} is no host and no network ({error}); write hooks.internal or 10.2.0.0/16"
                    ) from None
                hosts.add(entry.lower())
        return cls(frozenset(hosts), tuple(networks))

    def find_forbidden(self, host: str, addresses: Iterable[str]) -> str | None:
        """The first of a host's addresses that may not be reached; None when all may."""
        if host.lower().rstrip(".") in self.hosts:
            return None
        return next((address for address in addresses if not self._may_reach(address)), None)

    def _may_reach(self, address: str) -> bool:
        ip = _effective_address(ip_address(address.partition("%")[0]))
        return is_public(ip) or any(ip in network for network in self.networks)


def is_public(ip: IPv4Address | IPv6Address) -> bool:
    """Whether an address belongs to the public internet, and represents no other address."""
    ip = _effective_address(ip)
    return ip.is_global and not ip.is_multicast and not ip.is_reserved and not any(ip in each for each in _BLOCKED)


def _effective_address(ip: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 address represents, or the address itself."""
    if isinstance(ip, IPv4Address):
        return ip
    if ip in _NAT64 or int(ip) >> 32 & 0xFFFF_FFFF in _ISATAP:
        return IPv4Address(int(ip) & 0xFFFF_FFFF)
    return ip.ipv4_mapped or ip.sixtofour or ip
