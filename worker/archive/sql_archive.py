"""The archive as one object."""

from __future__ import annotations

from ...config.archive_urls import ArchiveUrl
from .database import ArchiveDatabase
from .dialects import Dialect
from .searching import ReadVerbs, SearchVerbs
from .spending import CostVerbs
from .storing import StoreVerbs


class Archive(StoreVerbs, ReadVerbs, SearchVerbs, CostVerbs):
    """The archive. Every verb is one transaction; threads share the object.

    The first verb makes the schema in an empty database, or brings it to this version.

    Raises:
        ArchiveUnavailable: From every verb: the database does not answer, refuses, or takes too long.
        ConfigurationError: From every verb: the database holds something else, or is of a newer version.
    """

    def close(self) -> None:
        """Close the connections; a later verb opens new ones."""
        self._database.close()


def connect(url: ArchiveUrl) -> Archive:
    """Make an archive on a database; nothing is sent yet."""
    return Archive(ArchiveDatabase(_dialect(url)))


def _dialect(url: ArchiveUrl) -> Dialect:
    if url.path is not None:
        from .sqlite import Sqlite

        return Sqlite(url.path)
    from .postgresql import Postgresql

    return Postgresql(url.conninfo)
