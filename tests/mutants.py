"""Mutation testing: change the code in one place at a time, and count the changes that its unit tests notice.

`make mutants` draws a sample, runs it in copies of the repository, and writes what survived to `.mutant-runs/report.txt`.
A mutant is killed when a test that runs the changed line fails, or takes too long. Mutations come from Cosmic Ray's
operators; a run of the tests under coverage says which test runs which line.
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent))  # when it is run by itself

from support.product import PACKAGE, ROOT, tracked_files

SUBJECTS: Final = (
    "worker/engine",
    "worker/capabilities",
    "worker/state/execution/budget.py",
    "worker/state/execution/reservations.py",
    "worker/requests",
    "worker/tools/results.py",
    "tasks/http/access.py",
    "tasks/http/bodies.py",
    "tasks/http/request_bodies.py",
)
NETS: Final = (
    "unit/engine",
    "unit/capabilities",
    "unit/state",
    "unit/requests",
    "unit/tools",
    "unit/tasks",
    "unit/mcp",
    "unit/flow",
    "unit/session",
)
OPERATORS: Final = (
    "AddNot",
    "NumberReplacer",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ReplaceUnaryOperator_Delete_Not",
    "ReplaceBinaryOperator_Add_Sub",
    "ReplaceBinaryOperator_Sub_Add",
    "ReplaceBinaryOperator_Mul_Div",
    "ReplaceBinaryOperator_Div_Mul",
    "ReplaceComparisonOperator_Eq_NotEq",
    "ReplaceComparisonOperator_NotEq_Eq",
    "ReplaceComparisonOperator_Lt_LtE",
    "ReplaceComparisonOperator_LtE_Lt",
    "ReplaceComparisonOperator_Gt_GtE",
    "ReplaceComparisonOperator_GtE_Gt",
    "ReplaceComparisonOperator_Is_IsNot",
    "ReplaceComparisonOperator_IsNot_Is",
    "ZeroIterationForLoop",
)
MOST_TESTS: Final = 600
"""Tests that are run for a mutant: those of the module's own test file first, then those that run little else."""
TUNING: Final = re.compile(r"_[A-Z_]*(SECONDS|PAUSE|DOUBLINGS|(SHOWN|CACHED)_[A-Z_]+)|_FIRST|_LAST")
"""Names of constants that tune, and of places of hooks."""
SLOWEST_SECONDS: Final = 120.0
"""A mutant whose tests take longer is killed: it hangs."""


@dataclass(frozen=True)
class Mutant:
    """One change of one place.

    Attributes:
        occurrence: The number of the place among those in the file that the operator can change, from 0.
        line: Its line, from 1.
    """

    path: str
    operator: str
    occurrence: int
    line: int

    @property
    def name(self) -> str:
        """File, line and operator, as the report names it."""
        return f"{self.path}:{self.line} {self.operator}#{self.occurrence}"


# --- the places that can be changed ------------------------------------------------------------------------------


def find_mutants() -> Iterator[Mutant]:
    """All changes of all subjects, without those that say nothing."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator

    for path in tracked_files():
        if path.suffix != ".py" or not str(path).startswith(SUBJECTS):
            continue
        text = (ROOT / path).read_text(encoding="utf-8")
        nodes, silent = list(ast_nodes(get_ast(text))), find_silent_lines(text)
        for name in OPERATORS:
            places = [at for node in nodes for at in get_operator(f"core/{name}")().mutation_positions(node)]
            for occurrence, (start, _) in enumerate(places):
                if start[0] not in silent[name]:
                    yield Mutant(str(path), name, occurrence, start[0])


def find_silent_lines(text: str) -> Mapping[str, set[int]]:
    """The lines on which a change by an operator says nothing about the tests, by operator.

    - `*` in a signature, which the operator takes for a product: `/` refuses callers that pyright refuses, too.
    - `frozen`, `slots` and `kw_only` of a dataclass, `total` of a TypedDict, and `TYPE_CHECKING`: pyright checks what
      they forbid.
    - `strict` of `zip`: it checks that lists which are made together have the same length.
    - Private constants of a module for a duration, for how often a delay doubles at most, for how much of a text or a
      list is shown, or for how many objects a cache keeps: they tune, the documents do not name them, and a test could
      only repeat the number.
    - Places of hooks that are before or behind all others: a number that is one larger gives the same order.
    """
    found = defaultdict[str, set[int]](set)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.args.kwonlyargs:
            found["ReplaceBinaryOperator_Mul_Div"].update(range(node.lineno, node.body[0].lineno))
        elif isinstance(node, ast.ClassDef):
            for each in node.decorator_list:
                found["ReplaceTrueWithFalse"].update(range(each.lineno, (each.end_lineno or each.lineno) + 1))
            if any(ast.unparse(each) == "TypedDict" for each in node.bases):
                found["ReplaceFalseWithTrue"].add(node.lineno)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "zip":
            found["ReplaceTrueWithFalse"].update(each.value.lineno for each in node.keywords)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            found["AddNot"].add(node.lineno)
        elif isinstance(node, ast.AnnAssign) and TUNING.fullmatch(ast.unparse(node.target)):
            found["NumberReplacer"].update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def mutate(mutant: Mutant, copy: Path) -> str:
    """Change the file in a copy; return the text that it had."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    file = copy / mutant.path
    text = file.read_text(encoding="utf-8")
    changed = mutate_code(text, get_operator(f"core/{mutant.operator}")(), mutant.occurrence)
    assert changed is not None, mutant.name
    file.write_text(changed, encoding="utf-8")
    return text


# --- which test runs which line ----------------------------------------------------------------------------------


class Contexts:
    """A plugin of pytest: tells coverage which test runs, and notes how long it takes."""

    def __init__(self, coverage: Any) -> None:
        self._coverage = coverage
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.seconds[report.nodeid] = float("inf")  # says nothing about mutants


def run_under_coverage(copy: Path, net: str, target: Path) -> None:
    """Write which tests of a folder run which lines of the subjects, as JSON."""
    import coverage
    import pytest

    measured = coverage.Coverage(
        data_file=None,
        include=[f"{copy}/{subject}{'' if subject.endswith('.py') else '/*'}" for subject in SUBJECTS],
        concurrency=["thread", "greenlet"],
    )
    contexts = Contexts(measured)
    measured.start()
    pytest.main(["-q", "-p", "no:cacheprovider", "-m", "not alone and not long", net], plugins=[contexts])
    measured.stop()
    data, lines = measured.get_data(), {}
    for name in data.measured_files():
        by_line = {line: [each for each in ran if each] for line, ran in data.contexts_by_lineno(name).items()}
        lines[str(Path(name).relative_to(copy))] = by_line
    target.write_text(json.dumps({"lines": lines, "seconds": contexts.seconds}))


@dataclass
class Nets:
    """The tests of each line."""

    lines: dict[str, dict[str, list[str]]]
    seconds: dict[str, float]

    def add(self, others: Nets) -> None:
        """Add other tests, and the lines that they run."""
        self.seconds |= others.seconds
        for path, by_line in others.lines.items():
            own = self.lines.setdefault(path, {})
            for line, tests in by_line.items():
                own[line] = [*own.get(line, ()), *tests]

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that run a mutant's statement; where it runs at the import alone, those of the file.

        A line that runs at the import is noted for the test that imports it first, if any: that says nothing. And a test
        may read a constant without running a line of its file, so all tests of files about the module count.
        """
        by_line, statement = self.lines.get(mutant.path, {}), find_statement(mutant)
        own = {test for test in self.seconds if _is_about(test.partition("::")[0], mutant.path)}
        if statement is not None:
            found = {test for line in statement for test in by_line.get(str(line), ())}
        else:
            found = own.union(*by_line.values())
        usable = [test for test in found if self.seconds.get(test, float("inf")) < SLOWEST_SECONDS / 8]
        usable.sort(key=lambda test: (-self._share(mutant.path, test), self.seconds[test]))
        seen, places = Counter[str](), dict[str, tuple[bool, int]]()
        for test in usable:  # of each test file in turn, since tests of one file are alike
            file = test.partition("::")[0]
            places[test] = (test not in own, seen[file])
            seen[file] += 1
        return sorted(usable, key=places.__getitem__)[:MOST_TESTS]

    def _share(self, path: str, test: str) -> float:
        """Which share of the lines that a test runs is in a file: it is about the file where that is much."""
        return self._run[path, test] / max(self._run["", test], 1)

    @cached_property
    def _run(self) -> Counter[tuple[str, str]]:
        """How many lines of a file, and of all files by the name "", a test runs."""
        found = Counter[tuple[str, str]]()
        for path, by_line in self.lines.items():
            for tests in by_line.values():
                found.update(key for test in tests for key in ((path, test), ("", test)))
        return found


@cache
def _is_about(test_file: str, path: str) -> bool:
    """Whether a file of tests has the name of a module, or imports it by its name."""
    module = ".".join(Path(path).with_suffix("").parts)
    stem = Path(path).stem
    has_name = re.fullmatch(rf"test_(\w+_)?{stem}\.py", Path(test_file).name) is not None
    return has_name or f"{module} import" in (ROOT / "tests" / test_file).read_text(encoding="utf-8")


def find_statement(mutant: Mutant) -> range | None:
    """The lines of the innermost statement in a function around a mutant; None where it runs at the import."""
    around = [each for each in _statements(mutant.path) if mutant.line in each]
    return min(around, key=len, default=None)


@cache
def _statements(path: str) -> tuple[range, ...]:
    """The lines of each statement in the functions of a file."""
    functions = [
        node
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    found = (node for function in functions for top in function.body for node in ast.walk(top))
    return tuple(range(node.lineno, (node.end_lineno or 0) + 1) for node in found if isinstance(node, ast.stmt))


# --- running ---------------------------------------------------------------------------------------------------------


def copy_repository(folder: Path) -> Path:
    """A copy that imports as the package; its folder has the package's name."""
    copy = folder / PACKAGE
    for path in tracked_files():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, copy / path)
    return copy


def environment(copy: Path) -> dict[str, str]:
    """The environment in which Python imports the copy."""
    return {**os.environ, "PYTHONPATH": str(copy.parent), "PYTHONDONTWRITEBYTECODE": "1"}


def is_killed(copy: Path, tests: Sequence[str]) -> bool:
    """Whether one of these tests fails in the copy, or hangs."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout", "30", *tests]
    process = subprocess.Popen(
        command, cwd=copy / "tests", env=environment(copy), start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        return process.wait(SLOWEST_SECONDS) != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


_OWN_COPY: list[Path] = []


def take_copy(copies: Any) -> None:
    """Give a process of the pool a copy of its own."""
    _OWN_COPY.append(copies.get())


def judge(job: tuple[Mutant, list[str]]) -> tuple[Mutant, str]:
    """Run the tests of one mutant: killed, survived, or not reached by any test."""
    mutant, tests = job
    if not tests:
        return mutant, "not reached"
    (copy,) = _OWN_COPY
    text = mutate(mutant, copy)
    try:
        return mutant, "killed" if is_killed(copy, tests) else "survived"
    finally:
        (copy / mutant.path).write_text(text, encoding="utf-8")


def learn_nets(copy: Path, folder: Path, processes: int) -> Nets:
    """Run the tests once, each folder in a process of its own.

    One process for all of them hangs: CPython 3.11 goes round for ever where traced code runs while greenlet takes a
    thread's state away and a second thread has ended, and each test that has threads adds one.
    """

    def learn(place: int) -> Nets:
        target = folder / f"{place}.json"
        command = [sys.executable, str(copy / "tests" / "mutants.py"), "--learn", NETS[place], "--target", str(target)]
        subprocess.run(command, cwd=copy / "tests", env=environment(copy), check=True)
        return Nets(**json.loads(target.read_text()))

    nets = Nets({}, {})
    with ThreadPoolExecutor(processes) as pool:
        for found in pool.map(learn, range(len(NETS))):
            nets.add(found)
    return nets


def run(arguments: argparse.Namespace) -> int:
    """Draw mutants, judge them, write the report; the exit status."""
    began, verdicts = time.monotonic(), defaultdict[str, list[Mutant]](list)
    every = [each for each in find_mutants() if each.path.startswith(arguments.only)]
    drawn = random.Random(arguments.seed).sample(every, min(arguments.count, len(every)))
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folders = [Path(name) / str(number) for number in range(arguments.processes)]
        copies: multiprocessing.Queue[Path] = multiprocessing.Queue()
        for folder in folders:
            copies.put(copy_repository(folder))
        nets = learn_nets(folders[0] / PACKAGE, Path(name), arguments.processes)
        with multiprocessing.Pool(arguments.processes, take_copy, (copies,)) as pool:
            for mutant, verdict in pool.imap_unordered(judge, [(each, nets.tests_of(each)) for each in drawn]):
                verdicts[verdict].append(mutant)
                if verdict != "killed":
                    print(f"{verdict:<12} {mutant.name}", flush=True)
                if time.monotonic() - began > arguments.minutes * 60:
                    pool.terminate()
                    break
    return report(verdicts, len(every), arguments)


def report(verdicts: dict[str, list[Mutant]], possible: int, arguments: argparse.Namespace) -> int:
    """Write what was found; 1 where fewer were killed than wanted."""
    judged = sum(map(len, verdicts.values()))
    share = len(verdicts["killed"]) / judged if judged else 0.0
    first = (
        f"{len(verdicts['killed'])} of {judged} mutants killed ({share:.1%}), {len(verdicts['survived'])} survived,"
        f" {len(verdicts['not reached'])} not reached by a test; seed {arguments.seed}, {possible} are possible"
    )
    print(first)
    target = ROOT / ".mutant-runs" / "report.txt"
    target.parent.mkdir(exist_ok=True)
    left = sorted(f"{word} {each.name}" for word in ("survived", "not reached") for each in verdicts[word])
    target.write_text("\n".join([first, *left, ""]), encoding="utf-8")
    return int(share < arguments.least)


def main() -> int:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=800, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="files whose path begins so")
    parser.add_argument("--minutes", type=float, default=60, help="no mutant is begun after this time")
    parser.add_argument(
        "--least", type=float, default=0.85, help="share of killed ones below which the exit status is 1"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--learn", default="", help=argparse.SUPPRESS)
    parser.add_argument("--target", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.learn:
        run_under_coverage(ROOT, arguments.learn, arguments.target)
        return 0
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
