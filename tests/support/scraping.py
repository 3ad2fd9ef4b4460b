"""What a worker's metrics port shows."""

from __future__ import annotations

import urllib.request


def scraped(port: int) -> dict[str, float]:
    """The value of each metric, by its name with its labels."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if not name.startswith("#")
    }
