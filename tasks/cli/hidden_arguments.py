"""Keeps a Redis password out of the list of processes: everybody on the machine reads the arguments of all of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from ...worker.secret_values import passwords_of

HIDDEN_REDIS_URL: Final = "_CELERY_AGENTS_REDIS_URL_OPTION"
"""The environment variable that holds the value of `--redis-url` after `hide_redis_password`."""

_OPTION: Final = "--redis-url"


def hide_redis_password() -> None:
    """Replace this process by the same command with a Redis password in its environment instead of its arguments.

    The environment of a process is readable for its own user only. Nothing happens where no password is given.
    """
    arguments, url = take_redis_url(sys.orig_argv[1:])
    if url is not None and has_password(url):
        environment = {**os.environ, HIDDEN_REDIS_URL: url}
        os.execve(sys.executable, [sys.executable, *arguments], environment)


def take_redis_url(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """Take the option out of arguments; gives the others and the last value that was given, if any."""
    kept: list[str] = []
    url: str | None = None
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            return [*kept, argument, *rest], url
        if argument == _OPTION:
            url = next(rest, None)
        elif argument.startswith(f"{_OPTION}="):
            url = argument.partition("=")[2]
        else:
            kept.append(argument)
    return kept, url


def has_password(url: str) -> bool:
    """Whether a URL holds a password."""
    return any(passwords_of(url))
