"""Import this before a library, and the library calls one of its attributes by another name, as a new version might.

`RENAMED_ATTRIBUTE` has the form `module,module:name`: in the sources of these modules, and of those below a package,
each occurrence of the name is replaced. The library itself goes on working; who relied on the name finds nothing.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

MODULES, _, NAME = os.environ.get("RENAMED_ATTRIBUTE", "").partition(":")


def renamed(source: str, package: str) -> str:
    """The source with the name replaced; what is imported from elsewhere is imported under the new name."""
    word = re.compile(rf"\b{re.escape(NAME)}\b")
    lines: list[str] = []
    for line in source.split("\n"):
        imports = re.match(r"\s*from (\S+) import ", line)
        if imports and not is_renamed(importlib.util.resolve_name(imports[1], package)):
            line = word.sub(f"{NAME} as {NAME}_renamed", line)
        else:
            line = word.sub(f"{NAME}_renamed", line)
        lines.append(line)
    return "\n".join(lines)


def is_renamed(module: str) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in MODULES.split(","))


class Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> Any:
        package = fullname if self.is_package(fullname) else fullname.rpartition(".")[0]
        source = renamed(self.get_source(fullname) or "", package)
        return compile(source, self.get_filename(fullname), "exec", dont_inherit=True)


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if not is_renamed(name):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = Loader(name, spec.loader.path)
        return spec


if NAME:
    assert not [name for name in sys.modules if is_renamed(name)], "imported too late"
    sys.meta_path.insert(0, Finder())
