"""URLs of the archive: a file of SQLite, or a PostgreSQL. Imports no database, since the settings ask too."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote

SQLITE_EXAMPLE: Final = "sqlite:///history.db"
POSTGRESQL_EXAMPLE: Final = "postgresql://user:password@host:5432/database"

_SQLITE: Final = "sqlite"
_POSTGRESQL: Final = ("postgresql", "postgres")
_UNREADABLE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})|%00|\s")


@dataclass(frozen=True, slots=True)
class ArchiveUrl:
    """A URL of an archive, in parts.

    Attributes:
        path: The file of SQLite; None for a PostgreSQL.
        conninfo: The URL of a PostgreSQL as libpq reads it; "" for SQLite.
    """

    kind: Literal["sqlite", "postgresql"]
    path: Path | None = None
    conninfo: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str) -> ArchiveUrl:
        """Parse `sqlite:///<file>`, where a fourth slash begins an absolute path, or `postgresql://…`.

        Raises:
            ValueError: It is none of these; the sentence repeats no secret.
        """
        scheme, separator, rest = url.partition("://")
        if separator and scheme in _POSTGRESQL:
            _check_readable(rest)
            return cls("postgresql", conninfo=f"postgresql://{rest}")
        if scheme != _SQLITE or not separator:
            shown = f"{scheme}://" if separator else "a URL without a scheme"
            raise ValueError(
                f"an archive is a file of SQLite ({SQLITE_EXAMPLE}) or a PostgreSQL ({POSTGRESQL_EXAMPLE}), "
                f"and {shown} is neither"
            )
        host, slash, name = rest.partition("/")
        if host or not slash:
            raise ValueError(
                f"a URL of SQLite names no host; write it like {SQLITE_EXAMPLE}, or with an absolute path like "
                "sqlite:////var/lib/history.db"
            )
        if "?" in name:
            raise ValueError(f"a URL of SQLite takes no options; write it like {SQLITE_EXAMPLE}")
        path = unquote(name)
        if not path or path == ":memory:" or "\0" in path:
            raise ValueError(f"a database in memory keeps nothing; name a file, like {SQLITE_EXAMPLE}")
        return cls("sqlite", path=Path(path))


def _check_readable(rest: str) -> None:
    """Refuse what libpq would refuse with the password in its sentence, or take for a part of the host.

    Args:
        rest: The URL behind its scheme.
    Raises:
        ValueError: A character has to be written otherwise.
    """
    place, _, path = rest.partition("/")
    _, has_user, hosts = place.partition("@")
    name, _, query = path.partition("?")
    is_split = "@" in hosts.partition("?")[0] or (not has_user and "@" in name)
    if is_split or _UNREADABLE.search(rest) or not all("=" in each for each in query.split("&") if each):
        raise ValueError(
            f"write a URL of PostgreSQL like {POSTGRESQL_EXAMPLE}, and in its user and password % as %25, @ as %40, "
            "/ as %2F and a blank as %20"
        )
