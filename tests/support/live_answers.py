"""Answers of the provider by the number of the attempt: another one each time it is asked."""

from __future__ import annotations

import itertools
from typing import Any

_numbers = itertools.count(1)


def by_request(messages: list[dict[str, Any]], body: dict[str, Any]) -> str:
    """The message as it was sent for the first request, in small letters for each later one."""
    del body
    text = str(messages[-1]["content"])
    return text if next(_numbers) == 1 else text.capitalize()
