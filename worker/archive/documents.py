"""Documents as they are stored: compressed with zstd, with a checksum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ..errors import StateUnreadable

if TYPE_CHECKING:
    from backports import zstd
else:
    try:
        from compression import zstd
    except ImportError:
        from backports import zstd

_OPTIONS: Final[Mapping[int, int]] = {
    zstd.CompressionParameter.compression_level: 3,
    zstd.CompressionParameter.checksum_flag: 1,
}


def pack(document: bytes) -> bytes:
    """Compress a document."""
    return zstd.compress(document, options=_OPTIONS)


def unpack(name: str, body: bytes, size: int) -> bytes:
    """Decompress a document; no more than its size is ever unpacked.

    Args:
        name: Of the session, for the error.
        size: Bytes of the document before it was packed.
    Raises:
        StateUnreadable: It is damaged.
    """
    decompressor = zstd.ZstdDecompressor()
    try:
        found = decompressor.decompress(body, max_length=size + 1)
        while len(found) < size and not decompressor.eof and not decompressor.needs_input:
            found += decompressor.decompress(b"", max_length=size + 1 - len(found))
        if len(found) == size and not decompressor.eof:  # its end may hold no more than the checksum
            found += decompressor.decompress(b"", max_length=1)
    except (zstd.ZstdError, EOFError):
        raise _damaged(name) from None
    if len(found) != size or not decompressor.eof or decompressor.unused_data:
        raise _damaged(name)
    return found


def _damaged(name: str) -> StateUnreadable:
    return StateUnreadable(
        f"the document of session {name} in the archive",
        "it is damaged; restore it from a backup of the archive. Other sessions can be read",
    )
