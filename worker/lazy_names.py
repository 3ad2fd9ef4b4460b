"""The public names of a package, listed once: in the stub beside its `__init__.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lazy_loader  # pyright: ignore[reportMissingTypeStubs]


def attach_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make `__getattr__`, `__dir__` and `__all__` of a package whose names are loaded on first use.

    Args:
        package: Its `__name__`.
        file: Its `__file__`; the stub has the same name with the ending `.pyi`, and imports of the package alone.
    """
    return lazy_loader.attach_stub(package, file)  # pyright: ignore
