"""One-line breakages of the product. The simulation has to find each of them.

    python -m fault.sim.mutants            # all
    python -m fault.sim.mutants no_journal # one

A mutant is a source patch: file, old text, new text, which must fit exactly once. It is applied to a copy of the package in a
temporary folder, and the copy runs in a process of its own until the first violation.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
TESTS: Final = ROOT / "tests"
_PARTS: Final = ("__init__.py", "config", "worker")


@dataclass(frozen=True)
class Mutant:
    """A breakage.

    Attributes:
        breaks: What the product does not do any more.
        file: Under the package.
        seed: One that finds it, tried first; a change of the simulation may make it any other.
        also: Further patches, where the product does the same thing in two places: file, old text, new text.
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    seed: int = 0
    also: tuple[tuple[str, str, str], ...] = ()


_VERSION_GUARD: Final = (
    "worker/store/steps/commits.py", '(("HMGET", keys.session, "version"), (base.version,)),', ""
)  # fmt: skip
_INBOX_GUARD: Final = ("worker/store/steps/commits.py", '(("EXISTS", keys.inbox), (0,)),', "")


MUTANTS: Final = (
    Mutant(
        "no_version_check", "a commit overwrites what was saved meanwhile",
        "worker/store/steps/commits.py", "if fields.number(version) != base.version:", "if False:",
        seed=16, also=(_VERSION_GUARD,),
    ),
    Mutant(
        "no_commit_id", "a commit whose reply was lost is not recognised",
        "worker/store/steps/commits.py", "if fields.text(last) == commit_id(claim) or _stands_in_steps(keys, claim, ctl, watched):",
        "if False:",
        seed=75,
    ),
    Mutant(
        "no_journal", "an answer that is journaled is not used",
        "worker/engine/inference.py", "raw = run.loaded.journal.answer", "raw = None",
        seed=1,
    ),
    Mutant(
        "lease_ignored", "a step is taken over although its claim is alive",
        "worker/store/steps/claims.py", "        return NotClaimedReason.BUSY\n    if _restarted_lately", "        pass\n    if _restarted_lately",
    ),
    Mutant(
        "no_sweeper", "nobody finds a lost step",
        "worker/store/housekeeping/sweeps.py", "    refs: list[StepRef] = []", "    lost = []\n    refs: list[StepRef] = []",
    ),
    Mutant(
        "rerun_unsafe", "an interrupted call of an unsafe tool is made again",
        "worker/engine/tool_calls.py", "each.tool.effect in (Effect.PURE, Effect.KEYED)",
        "each.tool.effect in (Effect.PURE, Effect.KEYED, Effect.UNSAFE)",
        seed=89,
    ),
    Mutant(
        "attempt_in_key", "an idempotency key changes with the attempt",
        "worker/engine/tool_calls.py", "key = idempotency_key(run.ref.execution_id,",
        'key = idempotency_key(f"{run.ref.execution_id}{run.claim.attempt}",',
        seed=115,
    ),
    Mutant(
        "commands_retried", "a transaction whose reply was lost is sent again, as a client that retries by itself does",
        "worker/store/redis/database.py",
        "replies = self._round_trip(point, wire, [_MULTI, *commands, _EXEC], meanwhile)",
        "replies = Retry(NoBackoff(), 3, (OSError,)).call_with_retry("
        "lambda: self._round_trip(point, wire, [_MULTI, *commands, _EXEC], meanwhile), lambda error: None)",
        seed=71,
    ),
    Mutant(
        "cancel_not_checked", "a call begins although the execution was stopped",
        "worker/store/steps/journals.py", 'cancel = cancel if cancel == claim.ref.execution_id else ""', 'cancel = ""',
        seed=97,
    ),
    Mutant(
        "publish_before_commit", "the next message goes out before the step is committed",
        "worker/store/steps/commits.py", "    held = CachedSession(version, next_state.state,",
        "    _ = context.database.pipeline('early', save.commands[-1:]) if save.is_published else None\n"
        "    held = Held(version, settled.state,",
        seed=75,
    ),
    Mutant(
        "journal_after_parse", "the step goes on with its own answer, whatever was journaled first",
        "worker/engine/inference.py", "answered = self._read(run, reading) if stored == raw else self._adopted(run, stored, raw)", "answered = self._read(run, reading)",
        seed=469,
    ),
    Mutant(
        "due_removed_at_claim", "a step leaves the due index when it is claimed",
        "worker/store/steps/claims.py", '("ZADD", keys.shard.due, "XX", now_ms + context.lease_ms + context.grace_ms, keys.session_id)',
        '("ZREM", keys.shard.due, keys.session_id)',
        seed=2,
    ),
    Mutant(
        "inbox_not_watched", "the inbox is read, but not watched",
        "worker/store/steps/commits.py", 'context.database.watch("commit.read", (keys.session, keys.ctl, keys.inbox), reads)',
        'context.database.watch("commit.read", (keys.session, keys.ctl), reads)',
        seed=61, also=(_INBOX_GUARD,),
    ),
    Mutant(
        "attempt_inbox_ignored", "a commit in one round trip does not look into the inbox",
        *_INBOX_GUARD,
    ),
    Mutant(
        "attempt_without_guards", "what is compared before a claim or commit in one round trip is left out",
        "worker/store/redis/database.py", "        words: list[Word] = [len(guards)]\n        for read, answers in guards:",
        "        words: list[Word] = [0]\n        for read, answers in ():",
    ),
    Mutant(
        "attempt_journal_ignored", "a claim in one round trip does not look whether there is a journal",
        "worker/store/steps/claims.py", '        (("EXISTS", journal), (0,)),\n', "",
        seed=2613,
    ),
    Mutant(
        "sweep_does_not_move", "the sweep leaves what it published where it was",
        "worker/store/redis/scripts.py",
        "      redis.call('ZADD', KEYS[1], 'XX', now + math.min(wait * 2 ^ math.min(nudges, 20), longest), sid)\n", "",
        seed=2,
    ),
    Mutant(
        "operations_forgotten", "an operation whose reply was lost is applied again",
        "worker/store/sessions/saving.py", '        words += ["ops", fields.packed(_operations(context, next_state, bookkeeping))]', "        pass",
        seed=10,
    ),
    Mutant(
        "beginning_not_told", "a worker that does not hold a session tells nobody of the execution that it begins",
        "worker/store/steps/claims.py", "_beginning(attempt) if ref.step == 1 else ((), ())", "((), ())",
        seed=1,
    ),
    Mutant(
        "begins_behind_the_claim", "what begins an execution is written by the look behind its claim, which may come late or never",
        "worker/store/steps/claims.py", "(1,)), *guards], writes)", "(1,)), *guards])",
        seed=218,
        also=(
            ("worker/store/steps/claims.py", 'transaction("claim.load", loading.reads(keys, ref.execution_id, held))',
             'transaction("claim.load", [*writes, *loading.reads(keys, ref.execution_id, held)])[len(writes) :]'),
        ),
    ),
    Mutant(
        "stop_drops_journal", "a stop ends the execution over the head of what its step has obtained",
        "worker/store/sessions/actions.py", "if alive or decoding.journal(stored_journal).was_paid_for:", "if alive:",
        seed=1122,
    ),
    Mutant(
        "lookup_believed_at_once", "'it did not happen' is believed while the call may still run",
        "worker/engine/tool_calls.py", "if over_ms <= now_ms:", "if True:",
        seed=208,
    ),
    Mutant(
        "last_writer_wins", "a later answer replaces the journaled one",
        "worker/store/steps/journals.py", '("HSETNX", journal, "llm", raw)', '("HSET", journal, "llm", raw)',
        seed=280,
    ),
    Mutant(
        "restore_unchecked", "a worker takes its lease back although the claim is another's",
        "worker/store/steps/claims.py", "                if fields.text(watched.replies[0]) != held.id:\n                    return False\n", "",
        seed=23,
    ),
    Mutant(
        "journal_not_buried", "a worker that slept revives a journal for ever",
        "worker/store/steps/journals.py", 'watched.commit("journal.bury", [("PEXPIRE", journal, context.journal_ms)])', "pass",
        seed=99,
    ),
    Mutant(
        "attempts_not_counted", "a step that kills its worker is tried for ever",
        "worker/store/steps/claims.py", "ctl.attempts + (not again), now_ms)", "ctl.attempts, now_ms)",
        seed=38,
    ),
    Mutant(
        "no_persist", "the next execution runs on keys that are about to expire",
        "worker/store/sessions/saving.py", '            yield ("PERSIST", name)', "            pass",
        seed=28,
    ),
    Mutant(
        "freshness_from_the_reply", "a worker that slept during its claim trusts its lease",
        "worker/engine/runner.py", "held = self._keeper.hold(claimed.claim, seconds, asked)",
        "asked = self._monotonic(); held = self._keeper.hold(claimed.claim, seconds, asked)",
        seed=184,
    ),
    Mutant(
        "no_expiry_at_the_end", "a session stays for ever",
        "worker/store/sessions/saving.py", '            yield ("PEXPIRE", name, context.retention_ms)', "            pass",
    ),
)  # fmt: skip


def mutated(mutant: Mutant, folder: Path) -> Path:
    """A copy of the package with the breakage; the folder to import it from.

    Raises:
        ValueError: The patch does not fit exactly once: the product has changed, and the patch has to follow.
    """
    package = folder / "celery_agents"
    package.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    for part in _PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, package / part, ignore=ignored)
        else:
            shutil.copy(source, package / part)
    for file, old, new in ((mutant.file, mutant.old, mutant.new), *mutant.also):
        target = package / file
        text = target.read_text()
        if text.count(old) != 1:
            raise ValueError(f"mutant {mutant.name}: its old text fits {text.count(old)} times in {file}")
        target.write_text(text.replace(old, new))
    return folder


def hunt(
    mutant: Mutant, *, seeds: int = 6000, first: int = 0, seconds: float = 100.0
) -> subprocess.CompletedProcess[str]:
    """Run the simulation on the mutant until it is found; exit code 1 is a find, 0 none."""
    with tempfile.TemporaryDirectory(prefix="ca-mutant-") as folder:
        home = mutated(mutant, Path(folder))
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(home), str(TESTS)]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return subprocess.run(
            [
                sys.executable, "-m", "fault.sim.run", "--seeds", f"{mutant.seed},{first}:{first + seeds}", "--seconds", str(seconds),
                "--package", str(home),
            ],
            cwd=folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip


def found_by(output: str) -> str:
    """The line that names the seed and the invariant."""
    lines = [line for line in output.splitlines() if line.startswith("seed ")]
    return lines[0] if lines else output[-2000:]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fault.sim.mutants", description="Hunt mutants.")
    parser.add_argument("names", nargs="*", help="all when none is given")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args(arguments)
    survivors = 0
    for mutant in MUTANTS:
        if options.names and mutant.name not in options.names:
            continue
        began = time.perf_counter()
        try:
            ran = hunt(mutant, first=options.first)
        except ValueError as misfit:
            survivors += 1
            print(f"{mutant.name:26} {misfit}", flush=True)
            continue
        found = ran.returncode == 1 and "seed " in ran.stdout
        survivors += not found
        say = found_by(ran.stdout) if found else "SURVIVED " + (ran.stdout + ran.stderr)[-400:]
        print(f"{mutant.name:26} {time.perf_counter() - began:5.1f} s  {say[:170]}", flush=True)
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
