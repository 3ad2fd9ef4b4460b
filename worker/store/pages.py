"""Pages of listings, which can be iterated over all pages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

from anyio import to_thread

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOf(ABC, Generic[T]):
    """A page of a listing. A loop over it continues with the pages that follow, each read when the loop reaches it.

    `for each in page` reads them in the calling thread; on asyncio, `async for each in page` reads them in others.

    Attributes:
        cursor: Give it back for the next page; None at the end.
        unread: How many parts of the store were missing from this page: their node of a cluster is away. 0: none.
        read_next: Reads the page of a cursor; None: a loop ends with this page.
    """

    cursor: str | None = None
    unread: int = 0
    read_next: Callable[[str], PageOf[T]] | None = field(default=None, repr=False, compare=False)

    @property
    @abstractmethod
    def entries(self) -> tuple[T, ...]:
        """The entries of this page alone."""

    def followed_by(self, read_next: Callable[[str], Any]) -> Self:
        """The same page, which knows how to read the next one."""
        return replace(self, read_next=read_next)

    def __iter__(self) -> Iterator[T]:
        """Iterate over the entries of this page and of those that follow."""
        page: PageOf[T] = self
        while True:
            yield from page.entries
            if page.cursor is None or page.read_next is None:
                return
            page = page.read_next(page.cursor)

    async def __aiter__(self) -> AsyncIterator[T]:
        """Iterate over the entries of this page and of those that follow, for asyncio."""
        page: PageOf[T] = self
        while True:
            for entry in page.entries:
                yield entry
            if page.cursor is None or page.read_next is None:
                return
            page = await to_thread.run_sync(page.read_next, page.cursor)
