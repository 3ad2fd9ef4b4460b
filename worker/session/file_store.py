"""The session store in files: one file for each session, replaced as a whole.

A file is one JSON document, the session, whose first line ends behind its header. A listing reads first lines only.
Files of an earlier version have two documents, the header and the session, each in a line. A write goes to a temporary
file that is renamed, so a process that is killed at any byte leaves the version before. A lock file for each session
keeps writers apart; it stays after a delete, since a writer may wait for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from ..errors import InvalidInput, InvalidSessionFile, StateTooNew, StateUnreadable
from ..state.agent_fields import check_schema_version
from ..state.values.ids import read_session_id
from .store import first_version, next_version
from .values import AgentSession, AgentSessionInfo, SessionInfoList

_SUFFIX: Final = ".json"
_LONGEST_HEADER_BYTES: Final = 65_536
_BLOCK_BYTES: Final = 8_192
_BEGINNING: Final = b'{"info":'
# The first field of a header, with which the files of an earlier version begin.
_EARLIER: Final = b'{"session_id":'
_UNREADABLE: Final = (ValidationError, StateUnreadable, InvalidInput)


class FileSessionStore:
    """`SessionStore` in a folder; several processes of one machine may use it.

    It saves after every step and keeps nothing within a step: a step that was cut off runs again.

    Raises:
        OSError: From every method: the folder cannot be read or written. Nothing older is lost. A file that cannot
            be read is an `InvalidSessionFile`.
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
            InvalidSessionFile: The file is damaged or cannot be read; it stays as it is.
            StateTooNew: A newer version of this package wrote it.
        """
        path = self._path(session_id)
        data = _read_bytes(path)
        return None if data is None else _read_session(path, data)

    def exists(self, session_id: str) -> bool:
        return self._path(session_id).is_file()

    def delete(self, session_id: str) -> None:
        """See `SessionStore.delete`; raises `InvalidSessionFile` for a folder of that name."""
        with self._lock(session_id) as path:
            if path.is_dir():
                raise InvalidSessionFile(str(path), "it is a folder")
            path.unlink(missing_ok=True)

    def list_headers(self) -> SessionInfoList:
        """See `SessionStore.list_headers`. A damaged file is named in `unreadable`, and the others are listed."""
        headers: list[AgentSessionInfo] = []
        unreadable: list[tuple[str, str]] = []
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            try:
                header = _read_header(path)
            except StateUnreadable as error:
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
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            beginning = _BEGINNING + session.info.to_json() + b","
            document = session.to_json()
            assert document.startswith(beginning), "the header comes first"
            file.write(beginning + b"\n" + document[len(beginning) :] + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # on a full disk it would keep the last of the room
        raise
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
    """The header of a file, usually without its body; None when there is no file."""
    line = _read_bytes(path, first_line=True)
    if line is None:
        return None
    written = line[len(_BEGINNING) : -2] if line.startswith(_BEGINNING) and line.endswith(b",\n") else line
    try:
        header = AgentSessionInfo.from_json(written)
    except _UNREADABLE:
        return _read_session(path, _read_bytes(path) or b"").info  # the document was reformatted by hand
    _check_name(path, header)
    return header


def _read_bytes(path: Path, *, first_line: bool = False) -> bytes | None:
    """Read a file, or its first line; None when there is none."""
    try:
        # A header is read in small blocks: Python 3.15 reads 128 KiB at a time, which may be the whole file.
        with path.open("rb", buffering=_BLOCK_BYTES if first_line else -1) as file:
            return file.readline(_LONGEST_HEADER_BYTES) if first_line else file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidSessionFile(str(path), f"it cannot be read ({error.strerror})") from error


def _read_session(path: Path, data: bytes) -> AgentSession:
    header, _, body = data.partition(b"\n")
    try:
        session = AgentSession.from_json(data if not header.startswith(_EARLIER) else body)
        check_schema_version(session.state.schema_version)
        info = AgentSessionInfo.from_json(header) if header.startswith(_EARLIER) else session.info
    except StateTooNew:
        raise
    except _UNREADABLE as error:
        raise InvalidSessionFile(str(path), "it holds no session as JSON") from error
    _check_name(path, info)
    if session.info != info:
        raise InvalidSessionFile(str(path), "its header is not the one of its session")
    return session


def _check_name(path: Path, header: AgentSessionInfo) -> None:
    if header.session_id != path.name.removesuffix(_SUFFIX):
        raise InvalidSessionFile(str(path), f"it holds session {header.session_id!r}")
