"""Opening the archive, which needs the extra `archive`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...config.archive_urls import ArchiveUrl
from ..errors import ConfigurationError, MissingExtra

if TYPE_CHECKING:
    from .sql_archive import Archive


def open_archive(url: str) -> Archive:
    """Make an archive on the database of a URL; nothing is sent yet.

    Args:
        url: See `ArchiveUrl`.
    Raises:
        ConfigurationError: It names no database that can hold an archive; `MissingExtra`: SQLAlchemy is missing.
    """
    try:
        found = ArchiveUrl.parse(url)
    except ValueError as error:
        raise ConfigurationError(f"CELERY_AGENTS_ARCHIVE_URL: {error}") from None
    try:
        from .sql_archive import connect

        return connect(found)
    except ImportError:
        raise MissingExtra("archive", "an archive") from None
