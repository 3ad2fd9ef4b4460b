"""Caches: of a fixed size, with the values that were used last, and of values that live as long as an object."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Values by their keys; the one that was used longest ago makes room. Safe between threads.

    Args:
        most: How many are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """The value that was put under a key last; None where it has made room, or there was none."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: K, value: V) -> V:
        """Keep a value, and return it."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._most:
                self._values.popitem(last=False)
        return value

    def drop(self, key: K) -> None:
        """Forget a value, if it is there."""
        with self._lock:
            self._values.pop(key, None)


class KeptWith(Generic[K, V]):
    """Values that are kept with objects as long as those live; objects are told apart by identity."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[weakref.ref[K], V]] = {}

    def of(self, owner: K, make: Callable[[K], V]) -> V:
        """The same as `make(owner)`, made once for each object."""
        found = self.get(owner)
        return self.keep(owner, make(owner)) if found is None else found

    def get(self, owner: K) -> V | None:
        """Return the value kept with an object; None: there is none."""
        found = self._made.get(id(owner))
        return found[1] if found is not None and found[0]() is owner else None

    def keep(self, owner: K, value: V) -> V:
        """Keep a value with an object, in place of an earlier one."""
        key = id(owner)
        self._made[key] = (weakref.ref(owner, lambda _: self._made.pop(key, None)), value)
        return value

    def drop(self, owner: K) -> None:
        """Keep nothing with an object."""
        self._made.pop(id(owner), None)
