"""A real RabbitMQ of our own, on free ports in a folder of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Self
from urllib.parse import quote

import amqp

from .processes import Process, free_port
from .wait import wait_until

RABBITMQ_MISSING = "no RabbitMQ is on this machine (Debian: apt-get install rabbitmq-server)"
# Debian's command on the path changes to another user, whom the folder of a test lets in nowhere.
_DEBIAN = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


def find_rabbitmq() -> str | None:
    """The server; None: this machine has none."""
    if shutil.which("epmd") is None:
        return None
    return str(_DEBIAN) if _DEBIAN.exists() else shutil.which("rabbitmq-server")


class RabbitmqServer:
    """One server with its port mapper, which Erlang would start for the whole machine and leave behind.

    Args:
        directory: Home of the data and the logs; made when missing.
    """

    def __init__(self, directory: Path) -> None:
        program = find_rabbitmq()
        assert program is not None, RABBITMQ_MISSING
        directory.mkdir(parents=True, exist_ok=True)
        self.port, mapper = free_port(), free_port()
        settings = directory / "rabbitmq.conf"
        settings.write_text(f"listeners.tcp.default = 127.0.0.1:{self.port}\nloopback_users = none\n")
        env = {
            "HOME": str(directory),
            "ERL_EPMD_PORT": str(mapper),
            "RABBITMQ_NODENAME": f"test{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONFIG_FILE": str(settings.with_suffix("")),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory / "logs"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
        }
        self._mapper = Process("epmd", ["epmd", "-port", str(mapper), "-address", "127.0.0.1"], directory)
        self._server = Process("rabbitmq", [program], directory, env)

    def start(self) -> Self:
        """Start it, and wait until it answers."""
        self._mapper.start()
        self._server.start()
        wait_until(self._answers, "RabbitMQ answers", 60.0, details=self._server.tail)
        return self

    def restart(self) -> None:
        """Kill it, start it again with its data, and wait until it answers."""
        self._server.end(patience=0.0)
        self._server.start()
        wait_until(self._answers, "RabbitMQ answers", 60.0, details=self._server.tail)

    def limit_memory(self, share: float) -> None:
        """Let it raise its memory alarm above this share of the machine's memory; 0.0001 is less than it takes."""
        self._control("set_vm_memory_high_watermark", str(share))

    def add_vhost(self, name: str, queue_type: str) -> str:
        """Make a virtual host, whose queues have this type where nobody says another one; its address, for Celery."""
        self._control("add_vhost", name, "--default-queue-type", queue_type)
        self._control("set_permissions", "--vhost", name, "guest", ".*", ".*", ".*")
        return self.url.removesuffix("/") + quote(name, safe="")

    def _control(self, *arguments: str) -> None:
        program = _DEBIAN.with_name("rabbitmqctl") if _DEBIAN.exists() else "rabbitmqctl"
        command = [program, "-n", self._server.env["RABBITMQ_NODENAME"], *arguments]
        subprocess.run(command, env={**os.environ, **self._server.env}, check=True, capture_output=True, timeout=60)

    def end(self) -> None:
        """Make sure that it is gone, whatever state it is in."""
        self._server.end(patience=0.0)
        self._mapper.end(patience=0.0)

    @property
    def url(self) -> str:
        """Its address, for Celery."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, amqp.AMQPError), amqp.Connection(f"127.0.0.1:{self.port}") as connection:
            return bool(connection.connected)
        return False
