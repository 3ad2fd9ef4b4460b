"""Looking for attributes of libraries that the libraries do not promise.

A worker is faster with some of them, and correct without any. Each feature names the attributes that it needs; where
one is missing, for example in a newer version of the library, the feature stays off and the library works as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

log = logging.getLogger(__name__)

_missing_from_objects: dict[str, None] = {}


@dataclass(frozen=True)
class Feature:
    """Something that a worker does with undocumented attributes of libraries.

    Attributes:
        needs: Paths such as `kombu.transport.redis:Channel._in_poll`, see `find`.
        without: What happens when one of them is missing, as the end of a sentence.
    """

    needs: tuple[str, ...]
    without: str

    def is_available(self) -> bool:
        """Tell whether nothing is missing; otherwise log a warning that says what is done without."""
        gone = find_missing(self.needs)
        if gone:
            log.warning("not found: %s; %s", ", ".join(gone), self.without)
        return not gone


def find(path: str) -> Any:
    """Return the object at a path.

    Args:
        path: A module, a colon, and names of attributes with dots between them. `name()` stands for the result of a
            call, `one|other` for the first of two names that is there.
    Raises:
        LookupError: There is no such object.
    """
    module, _, names = path.partition(":")
    try:
        found: Any = import_module(module)
        for name in names.split("."):
            found = _attribute(found, name)
    except (ImportError, AttributeError, TypeError) as error:
        raise LookupError(path) from error
    return found


def find_missing(paths: Iterable[str]) -> tuple[str, ...]:
    """Return those paths at which nothing is found."""
    return tuple(path for path in paths if not _exists(path))


def has(owner: object, name: str, path: str, without: str) -> bool:
    """Tell whether an object has an attribute that only its instances have; note and log it when it does not.

    Args:
        path: How `missing_from_objects` names the attribute.
    """
    if hasattr(owner, name):
        return True
    note_missing(path, without)
    return False


def note_missing(path: str, without: str) -> None:
    """Note that something is not there as we know it, and log it the first time."""
    if path not in _missing_from_objects:
        _missing_from_objects[path] = None
        log.warning("not found: %s; %s", path, without)


def missing_from_objects() -> tuple[str, ...]:
    """Return the paths that `has` did not find in this process."""
    return tuple(_missing_from_objects)


def _exists(path: str) -> bool:
    try:
        find(path)
    except LookupError:
        return False
    return True


def _attribute(owner: Any, name: str) -> Any:
    first, *others = name.split("|")
    is_called = first.endswith("()")
    attribute = first.removesuffix("()")
    if others and not hasattr(owner, attribute):
        return _attribute(owner, "|".join(others))
    found = getattr(owner, attribute)
    return found() if is_called else found
