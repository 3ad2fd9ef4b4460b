"""The session store in files: one file for each session, replaced as a whole.

A file has two lines of JSON: the header, and the session. A listing reads first lines only. A write goes to a
temporary file that is renamed, so a process that is killed at any byte leaves the version before. A lock file for each
session keeps writers apart; it stays after a delete, since a writer may wait for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from ..errors import InvalidInput, InvalidSessionFile, StateUnreadable
from ..state import read_session_id
from ..state.agent_fields import check_schema_version
from .store import first_version, next_version
from .values import AgentSession, AgentSessionInfo, SessionInfoList

_SUFFIX: Final = ".json"
_LONGEST_HEADER_BYTES: Final = 65_536
_UNREADABLE: Final = (ValidationError, StateUnreadable, InvalidInput)


class FileSessionStore:
    """`SessionStore` in a folder; several processes of one machine may use it.

    It saves after every step and keeps nothing within a step: a step that was cut off runs again.

    Raises:
        OSError: From every method: the folder cannot be read or written. Nothing older is lost.
    """

    def __init__(self, folder: str | Path) -> None:
        """
        Args:
            folder: Is made when it is missing.
        """
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)

    def create(self, session: AgentSession) -> AgentSession:
        """See `SessionStore.create`; raises `InvalidSessionFile` too."""
        with self._lock(session.session_id) as path:
            return _write(path, first_version(session, _stored_version(path)))

    def save(self, session: AgentSession) -> AgentSession:
        """See `SessionStore.save`; raises `InvalidSessionFile` too."""
        with self._lock(session.session_id) as path:
            return _write(path, next_version(session, _stored_version(path)))

    def load(self, session_id: str) -> AgentSession | None:
        """See `SessionStore.load`.

        Raises:
            InvalidInput: The id is none, such as a path.
            InvalidSessionFile: The file is damaged; it stays as it is.
            StateTooNew: A newer version of this package wrote it.
        """
        path = self._path(session_id)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        return _read_session(path, data)

    def exists(self, session_id: str) -> bool:
        """See `SessionStore.exists`."""
        return self._path(session_id).exists()

    def delete(self, session_id: str) -> None:
        """See `SessionStore.delete`."""
        with self._lock(session_id) as path:
            path.unlink(missing_ok=True)

    def list_headers(self) -> SessionInfoList:
        """See `SessionStore.list_headers`. A damaged file is named in `unreadable`, and the others are listed."""
        headers: list[AgentSessionInfo] = []
        unreadable: list[tuple[str, str]] = []
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            try:
                header = _read_header(path)
            except InvalidSessionFile as error:
                unreadable.append((path.name, error.reason))
                continue
            if header is not None:
                headers.append(header)
        headers.sort(key=lambda info: info.updated_at, reverse=True)
        return SessionInfoList(tuple(headers), tuple(unreadable))

    def _path(self, session_id: str) -> Path:
        return self._folder / f"{read_session_id(session_id)}{_SUFFIX}"

    @contextlib.contextmanager
    def _lock(self, session_id: str) -> Generator[Path]:
        """The path of a session's file, while no other process and no other thread writes it."""
        path = self._path(session_id)
        descriptor = os.open(path.with_name(f"{session_id}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield path
        finally:
            os.close(descriptor)


def _write(path: Path, session: AgentSession) -> AgentSession:
    """Replace the file; only one writer at a time, so that the temporary file has one name."""
    temporary = path.with_name(path.name.removesuffix(_SUFFIX) + ".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(b"%b\n%b\n" % (session.info.to_json(), session.to_json()))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync_folder(path.parent)
    return session


def _sync_folder(folder: Path) -> None:
    """Make a rename outlast a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _stored_version(path: Path) -> int | None:
    header = _read_header(path)
    return None if header is None else header.version


def _read_header(path: Path) -> AgentSessionInfo | None:
    """The header of a file, without its body; None when there is no file."""
    try:
        with path.open("rb") as file:
            line = file.readline(_LONGEST_HEADER_BYTES)
    except FileNotFoundError:
        return None
    try:
        header = AgentSessionInfo.from_json(line)
    except _UNREADABLE as error:
        raise InvalidSessionFile(str(path), "its first line is no header of a session") from error
    _check_name(path, header)
    return header


def _read_session(path: Path, data: bytes) -> AgentSession:
    header, _, body = data.partition(b"\n")
    try:
        info, session = AgentSessionInfo.from_json(header), AgentSession.from_json(body)
    except _UNREADABLE as error:
        raise InvalidSessionFile(str(path), "its lines are no header and session") from error
    check_schema_version(session.state.schema_version)
    _check_name(path, info)
    if session.info != info:
        raise InvalidSessionFile(str(path), "its header is not the one of its session")
    return session


def _check_name(path: Path, header: AgentSessionInfo) -> None:
    if header.session_id != path.name.removesuffix(_SUFFIX):
        raise InvalidSessionFile(str(path), f"it holds session {header.session_id!r}")
