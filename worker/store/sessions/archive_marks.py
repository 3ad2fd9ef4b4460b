"""The mark of a session in the archive: what a row has to equal, and what a repeated submit is answered by."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from ...errors import StateUnreadable

_DIGEST_BYTES: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveMark:
    """The value of the field `ARCHIVED`.

    Attributes:
        digest: Of the document, so that a row with another one is never taken for it.
        version: Of the session.
        fingerprint, first: Of its submit, and the execution that this has started.
    """

    digest: str
    version: int
    fingerprint: str
    first: str

    @classmethod
    def of(cls, document: bytes, *, version: int, fingerprint: str, first: str) -> Self:
        """Make the mark of a document."""
        digest = hashlib.blake2b(document, digest_size=_DIGEST_BYTES).hexdigest()
        return cls(digest=digest, version=version, fingerprint=fingerprint, first=first)

    @property
    def text(self) -> str:
        """The mark as it is stored."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> Self:
        """Read a stored mark.

        Raises:
            StateUnreadable: It is damaged.
        """
        try:
            found: Any = json.loads(text)
            return cls(
                digest=str(found["digest"]),
                version=int(found["version"]),
                fingerprint=str(found["fingerprint"]),
                first=str(found["first"]),
            )
        except (ValueError, KeyError, TypeError):
            raise StateUnreadable("the mark of an archived session", "it is damaged") from None
