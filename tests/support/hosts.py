"""Hosts of our own on one machine: Linux network namespaces on one switch, whose links can be cut.

A cut is a wrong hardware address for a peer: packets leave and arrive nowhere, as in a real partition. Everything is gone
with the processes that hold the namespaces, also when pytest is killed.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .processes import Process
from .wait import wait_until

HOSTS_MISSING: Final = "hosts of our own need Linux, root, ip (iproute2), unshare and nsenter (util-linux)"
OUTSIDE: Final = 0
"""The number of the host on which the tests themselves run."""
_NOWHERE: Final = "02:00:00:00:00:01"
_CLONE_NEWNET: Final = 0x40000000


def can_make_hosts() -> bool:
    """Whether this machine lets us make network namespaces."""
    if os.geteuid() != 0 or not all(shutil.which(tool) for tool in ("ip", "unshare", "nsenter")):
        return False
    return subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode == 0


class Hosts:
    """Hosts 1 to n, each with an address that all others reach, until a link is cut.

    Args:
        directory: For the logs of the processes that hold the namespaces.

    Attributes:
        service: Another address of `OUTSIDE`, which no cut concerns: that of a world behind the network.
    """

    def __init__(self, directory: Path, count: int = 3) -> None:
        self.numbers = range(1, count + 1)
        self._net = f"10.{random.randrange(200, 250)}.{random.randrange(256)}"
        self._tag = f"t{random.randrange(16**6):06x}"
        self.service = f"{self._net}.253"
        self._holders = [Process(f"host-{number}", ["unshare", "--net", "sleep", "infinity"], directory)
                         for number in (OUTSIDE, *self.numbers)]  # the first holds the switch  # fmt: skip
        directory.mkdir(parents=True, exist_ok=True)

    def start(self) -> Hosts:
        """Make them, and connect all with all."""
        own = os.readlink("/proc/self/ns/net")
        for holder in self._holders:
            holder.start()
            wait_until(
                lambda holder=holder: os.readlink(f"/proc/{holder.pid}/ns/net") != own, "the namespace is there", 10
            )
        switch, *hosts = self._holders
        self._ip(switch, "link add switch type bridge")
        self._ip(switch, "link set switch up")
        for number, host in enumerate([None, *hosts]):
            port = f"{self._tag}{number}"
            _run(f"ip link add {port} type veth peer name {port}s")
            _run(f"ip link set {port}s netns {switch.pid}")
            self._ip(switch, f"link set {port}s master switch up")
            if host is not None:
                _run(f"ip link set {port} netns {host.pid}")
                self._ip(host, "link set lo up")
            self._ip(host, f"addr add {self.address(number)}/24 dev {port}")
            self._ip(host, f"link set {port} up")
            if host is not None:  # what it sends there comes from an address of its own, which no cut concerns
                self._ip(host, f"addr add {self._net}.{100 + number}/32 dev {port}")
                self._ip(host, f"route add {self.service}/32 dev {port} src {self._net}.{100 + number}")
        self._ip(None, f"addr add {self.service}/24 dev {self._tag}0")
        return self

    def address(self, number: int) -> str:
        """The address of a host; its connections come from it."""
        return f"{self._net}.{number or 254}"

    def prefix(self, number: int) -> Sequence[str]:
        """What stands before a command that is to run on a host."""
        return () if number == OUTSIDE else ("nsenter", f"--net=/proc/{self._holders[number].pid}/ns/net")

    def enter(self, number: int) -> None:
        """Let the calling thread be on a host: for its connections from now on."""
        with open(f"/proc/{self._holders[number].pid}/ns/net") as namespace:
            assert ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) == 0, "setns failed"

    def part(self, *side: int) -> None:
        """Cut all links between these hosts and the others, until `join`."""
        for one in side:
            for other in (number for number in (OUTSIDE, *self.numbers) if number not in side):
                self._neighbour(one, other, f"replace {{}} lladdr {_NOWHERE} nud permanent")
                self._neighbour(other, one, f"replace {{}} lladdr {_NOWHERE} nud permanent")

    def join(self) -> None:
        """Mend all links."""
        for number in (OUTSIDE, *self.numbers):
            self._ip(self._host(number), f"neigh flush dev {self._tag}{number} nud permanent")

    def _neighbour(self, on: int, of: int, change: str) -> None:
        self._ip(self._host(on), f"neigh {change.format(self.address(of))} dev {self._tag}{on}")

    def _host(self, number: int) -> Process | None:
        return None if number == OUTSIDE else self._holders[number]

    def _ip(self, host: Process | None, arguments: str) -> None:
        inside = f"nsenter --net=/proc/{host.pid}/ns/net " if host is not None else ""
        _run(f"{inside}ip {arguments}")

    def end(self) -> None:
        """Take them away, with their links."""
        for holder in self._holders:
            holder.end(patience=0.0)


def _run(command: str) -> None:
    done = subprocess.run(command.split(), check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr}"
