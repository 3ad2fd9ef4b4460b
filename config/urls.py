"""URLs that may name several hosts, or be none, and how they are shown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import SplitResult, urlsplit

# `urlsplit` leaves these out of a URL.
_UNSEEN: Final = re.compile(r"^[\0-\x20]+|[\t\r\n]+")
_NAMED_PASSWORD: Final = re.compile(r"(?<=password=)[^&#]+")
_PASSWORD: Final = re.compile(r"(?<=://)([^:@/?#]*:)[^/?#]*(?=@)")
_CUT_PASSWORD: Final = re.compile(r"(?<=://)([^:@/?#]*:).*(?=@)", re.DOTALL)
_ORIGIN: Final = re.compile(r"(?!http:.*:80/?$|https:.*:443/?$)[a-z][a-z0-9+.-]*://[a-z0-9_.:\[\]-]+/?")
_HOSTS: Final = re.compile(r"((?:[A-Za-z][A-Za-z0-9+.-]*:)?//)([^/?#]*)")


def split_url(url: str) -> SplitResult:
    """Split a URL that may name several hosts, as those of Sentinels, clusters and PostgreSQL do.

    Where `urlsplit` takes a URL, this gives the same. It refuses a second host in brackets in releases of Python since
    2025, and its error may repeat a part of a password; here brackets mean nothing, and nothing is refused. `hostname`
    and `port` have a meaning where there is one host.
    """
    seen = _UNSEEN.sub("", url)
    found = _HOSTS.match(seen)
    if found is None:
        return urlsplit(seen)
    return urlsplit(found[1] + seen[found.end() :])._replace(netloc=found[2])


def is_host(name: str) -> bool:
    """Whether a name can be looked up: no part of it is empty, longer than 63 bytes, or no Unicode."""
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return True


def is_web_address(url: str) -> bool:
    """Whether a text is a URL of http or https with a host."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def check_origins(origins: Iterable[str]) -> None:
    """Refuse what no browser sends as the origin of a page (RFC 6454), and would be compared in vain.

    Raises:
        ValueError: The first one that is none.
    """
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(
                f"{origin!r} is no origin as browsers send it; write it like https://app.example.com, in lower case, "
                "without a path and without the port that the scheme has anyway"
            )


def hide_password(url: str) -> str:
    """A URL with stars in place of its passwords, also of one that should be encoded and is not."""
    shown, hidden = _PASSWORD.subn(r"\1***", _NAMED_PASSWORD.sub("***", url))
    return shown if hidden else _CUT_PASSWORD.sub(r"\1***", shown)
