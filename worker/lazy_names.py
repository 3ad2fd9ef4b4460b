"""The public names of a package, listed once: in the stub next to its `__init__.py`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

import lazy_loader  # pyright: ignore[reportMissingTypeStubs]

_ROOT: Final = __name__.partition(".")[0]


def attach_names(
    package: str, file: str, moved: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make `__getattr__`, `__dir__` and `__all__` of a package whose names are loaded on first use.

    Args:
        package: Its `__name__`.
        file: Its `__file__`; the stub has the same name with the ending `.pyi`, and imports of the package alone.
        moved: Names that the package had before, with blanks between them, by the module that has them now. They are
            still found in the package, with a warning. None: none.
    """
    load, list_names, names = lazy_loader.attach_stub(package, file)  # pyright: ignore
    homes = {name: home for home, listed in (moved or {}).items() for name in listed.split()}

    def find(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            return load(name)
        warnings.warn(f"import {name} from {_ROOT}.{home}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(f"{_ROOT}.{home}"), name)

    return find if homes else load, list_names, names  # pyright: ignore[reportUnknownVariableType]
