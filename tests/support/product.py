"""The product as files: its modules, what each imports, and where this clone is."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "celery_agents"
# The folders that are shipped; setup.py finds them by what they are not.
NOT_SHIPPED = ("benchmarks", "build", "dist", "docs", "examples", "tests", "setup.py")


@dataclass(frozen=True)
class Import:
    """One import of one module: `target` is absolute, relative imports resolved."""

    module: str
    target: str
    line: int
    lazy: bool  # inside a function, or for the type checker only
    types_only: bool

    @property
    def own(self) -> bool:
        return self.target == PACKAGE or self.target.startswith(f"{PACKAGE}.")

    @property
    def distribution_root(self) -> str:
        return self.target.partition(".")[0]


def tracked_files() -> list[Path]:
    """Every file of the repository, relative to its root: tracked, or new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    return sorted({Path(name) for name in listed if name and (ROOT / name).is_file()})


def modules() -> dict[str, Path]:
    """The product's modules by dotted name, with their files."""
    files = [path for path in tracked_files() if path.suffix == ".py" and path.parts[0] not in NOT_SHIPPED]
    return {_dotted(path): ROOT / path for path in files if not path.parts[0].startswith(".")}


def imports(module: str, path: Path) -> Iterator[Import]:
    """What one module imports, `from package import name` once for each name."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    yield from _walk(ast.parse(path.read_text(encoding="utf-8")), module, package, lazy=False, types_only=False)


def _walk(node: ast.AST, module: str, package: str, *, lazy: bool, types_only: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(module, alias.name, child.lineno, lazy, types_only)
        elif isinstance(child, ast.ImportFrom):
            base = _absolute(package, child)
            for alias in child.names:
                yield Import(module, f"{base}.{alias.name}", child.lineno, lazy, types_only)
        else:
            checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _walk(child, module, package, lazy=lazy or inside or checking, types_only=types_only or checking)


def _absolute(package: str, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    parts = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join((PACKAGE, *(parts[:-1] if parts[-1] == "__init__" else parts)))
