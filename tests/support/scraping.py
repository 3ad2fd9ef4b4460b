"""What a worker's metrics port shows."""

from __future__ import annotations

import re
import urllib.request


def scraped(port: int) -> dict[str, float]:
    """The value of each metric, by its name with its labels."""
    pairs = (line.rpartition(" ") for line in _lines(port))
    return {name: float(value) for name, _, value in pairs if not name.startswith("#")}


def families(port: int) -> set[str]:
    """The names of the metrics, also of those that have no value yet."""
    return {line.split()[2] for line in _lines(port) if line.startswith("# TYPE ")}


def described(port: int) -> dict[str, tuple[str, str]]:
    """Kind and meaning of each metric of ours, by its name without the prefix."""
    facts: dict[str, dict[str, str]] = {}
    for line in _lines(port):
        if match := re.match(r"# (HELP|TYPE) celery_agents_(\w+) (.*)", line):
            what, name, text = match.groups()
            facts.setdefault(name, {})[what] = text
    return {name: (each["TYPE"], each["HELP"]) for name, each in facts.items() if not name.endswith("_created")}


def _lines(port: int) -> list[str]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode().splitlines()
