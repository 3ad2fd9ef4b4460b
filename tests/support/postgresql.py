"""A real PostgreSQL of our own, on a free port in a folder of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Self

from .processes import Process, ProcessGroup, free_port
from .wait import wait_until

POSTGRESQL_MISSING = "no PostgreSQL server is on this machine (Debian: apt-get install postgresql)"
_DEBIAN = Path("/usr/lib/postgresql")
_numbers = itertools.count(1)


def find_programs() -> Path | None:
    """The folder with `initdb` and `postgres`; None: this machine has none."""
    found = [Path(path).resolve().parent] if (path := shutil.which("initdb")) else []
    found += sorted(_DEBIAN.glob("*/bin"), reverse=True)
    return next((each for each in found if (each / "postgres").exists() and (each / "initdb").exists()), None)


class PostgresqlServer(ProcessGroup):
    """One server. It keeps its port and its data over restarts.

    PostgreSQL does not run as root: root starts it as the user `postgres` or `nobody`.

    Args:
        directory: Home of the data and the log. Its parents let any user through, as those of `tempfile` do.
    """

    def __init__(self, directory: Path) -> None:
        programs = find_programs()
        assert programs is not None, POSTGRESQL_MISSING
        self.programs = programs
        self.directory = directory
        self.port = free_port()
        self._user = "" if os.geteuid() else _other_user()
        self._process = Process("postgres", self._words(), directory)
        if self._user:
            self._process.prefix = ("setpriv", f"--reuid={self._user}", "--clear-groups")

    def start(self) -> Self:
        """Make its data where there are none, start it, and wait until it answers."""
        if self._user:
            shutil.chown(self.directory, self._user)
        if not self._data.exists():
            words = [self.programs / "initdb", "-D", self._data, "-U", "postgres", "--auth=trust", "-E", "UTF8"]
            words += ["--locale=C.UTF-8", "--no-sync"]
            subprocess.run([*self._process.prefix, *map(str, words)], check=True, capture_output=True, cwd="/")
        self._process.start()
        wait_until(self._answers, "PostgreSQL answers", 30.0, details=self._process.tail)
        return self

    def kill(self) -> None:
        """SIGKILL to all of its processes."""
        self._process.kill()
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes: each has a group of its own."""
        pid = self._process.pid
        for each in (pid, *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            os.kill(int(each), number)

    def end(self) -> None:
        """See `ProcessGroup`; without a checkpoint, since its data are not used again."""
        self._process.signal(signal.SIGQUIT)
        self._process.end()

    def run(self, statement: str, *, database: str = "postgres") -> str:
        """Run a statement by psql as the superuser, and give what it prints."""
        words = [self.programs / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", statement, self.url(database)]
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def new_database(self, *, encoding: str = "UTF8") -> str:
        """Make a database, and give its name."""
        name = f"test_{os.getpid()}_{next(_numbers)}"
        self.run(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
        return name

    def new_schema(self) -> str:
        """Make a schema in the database `postgres`, and give the URL of a connection that uses it."""
        name = f"test_{os.getpid()}_{next(_numbers)}"
        self.run(f"CREATE SCHEMA {name}")
        return f"{self.url('postgres')}?options=-csearch_path%3D{name}"

    def url(self, database: str, *, user: str = "postgres") -> str:
        """The URL of a database."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    @property
    def process(self) -> Process:
        """The server's first process."""
        return self._process

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _words(self) -> list[str]:
        settings = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
        settings |= {"fsync": "off"}  # what was written outlives a kill all the same, as the machine goes on
        settings |= {"max_connections": 50, "shared_buffers": "32MB"}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [str(self.programs / "postgres"), "-D", str(self._data), *options]

    def _answers(self) -> bool:
        with contextlib.suppress(AssertionError):
            return self.run("SELECT 1") == "1"
        return False


def _other_user() -> str:
    """A user under whose name root can start it."""
    names = {each.pw_name for each in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
