"""The environment variables that are settings, told apart from what else has their prefix."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

PREFIX: Final = "CELERY_AGENTS_"

# Kubernetes injects these names for a service called celery-agents; they are not settings.
_INJECTED: Final = re.compile(r"^CELERY_AGENTS_(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)$")
# It injects these, too, with an address such as tcp://10.0.0.1:8080; people write them with a number.
_INJECTED_ADDRESS: Final = re.compile(r"^CELERY_AGENTS_(.*_)?PORT$")
# The demo's tools read these in the worker process.
_DEMO: Final = re.compile(r"^CELERY_AGENTS_DEMO_")


def read_variables(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """The settings of an environment, by their names in lower case without the prefix, known or not."""
    return [
        (name[len(PREFIX) :].lower(), value)
        for name, value in environment.items()
        if name.upper().startswith(PREFIX) and not _is_injected(name, value) and not _DEMO.match(name.upper())
    ]


def _is_injected(name: str, value: str) -> bool:
    """Whether Kubernetes has set the variable. It does for a service celery-agents-metrics, whose port is a setting."""
    return bool(_INJECTED.match(name.upper()) or (_INJECTED_ADDRESS.match(name.upper()) and "://" in value))


def describe_unknown(unknown: Sequence[str], known: Iterable[str]) -> str:
    """Name unknown settings with the known ones that look like them; all known ones where none does."""
    names = sorted(known)
    alike = [near for name in unknown for near in difflib.get_close_matches(name, names, 3, 0.75)]
    listed = ", ".join(PREFIX + name.upper() for name in dict.fromkeys(alike) or names)
    hint = f"did you mean {listed}?" if alike else f"known are {listed}."
    return (
        f"unknown setting {', '.join(PREFIX + name.upper() for name in unknown)}; {hint} Correct the name or unset it."
    )
