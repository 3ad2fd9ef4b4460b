"""The route of a connection: its address, and the proxy of the environment, without user and password."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


def describe_route(url: str) -> str:
    """Describe how a URL is reached: `api.example.com:443`, or `api.example.com:443 by HTTPS_PROXY (proxy:3128)`.

    Args:
        url: Of a request. Its path, query, user and password are left out.

    Returns:
        Host and port, with the variable of the environment that names a proxy for them; "" where it is no URL.
    """
    import urllib.request

    known = cast("Any", urllib.request)  # one of the two functions is missing in the types of the library
    address = _address_of(url)
    if not address:
        return ""
    proxies: dict[str, str] = known.getproxies_environment()
    scheme = urlsplit(url).scheme
    used = scheme if scheme in proxies else "all"
    if used not in proxies or known.proxy_bypass_environment(address, proxies):
        return address
    return f"{address} by {used.upper()}_PROXY ({_address_of(proxies[used]) or 'which is no URL'})"


def _address_of(url: str) -> str:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return ""
    if not host:
        return ""
    name = f"[{host}]" if ":" in host else host
    return f"{name}:{port}" if port else name
