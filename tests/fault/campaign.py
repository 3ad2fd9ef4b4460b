"""The whole fault campaign: `make faults`, ten times that with `make faults-long`.

    python tests/fault/campaign.py [--times N] [--resume] [--only NAME …] [--folder .fault-runs]

Each scenario runs in a process of its own, two at once, with other seeds each time. Every run leaves
`<folder>/<scenario>-<number>.json`; with --resume a run whose file is there is not done again. The verdict of all goes to
`<folder>/verdict.json` and to standard output; the exit code is 1 when anything is broken or never happened. A scenario that
this machine cannot run is left out, with the reason. What was run and held goes into docs/guarantees.md (`report.py`).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest

TESTS: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from fault.real import (  # noqa: E402
    answers,
    capable,
    children,
    clusters,
    everything,
    failovers,
    inputs,
    kills,
    limits,
    live,
    long_task,
    messages,
    models,
    pauses,
    poison,
    provider_jobs,
    providers,
    races,
    redis_faults,
    replies,
    schedules,
    smart,
    substitutions,
    waiting,
)
from fault.sim import trees  # noqa: E402
from fault.sim.campaign import campaign as simulate  # noqa: E402
from support.redis_server import find_binary  # noqa: E402
from support.verdict import Verdict, summary  # noqa: E402

SEEDS: Final = 60_000
_STORM: Final = ["stop_1", "kill", "stall", "disconnect", "stop_6", "kill", "stop_12"]


@dataclass(frozen=True)
class Scenario:
    """A fault of the table.

    Attributes:
        run: From a directory and a seed to its verdict.
        what: What happens, for docs/guarantees.md.
        shown: The counts that the page gives, by their titles there; names may hold `*`, for the sum of all that match.
        wanted: Counts that must not be zero.
    """

    run: Callable[[Path, int], Verdict]
    what: str
    shown: Mapping[str, str]
    wanted: tuple[str, ...] = ()


_JOBS: Final = {"jobs completed": "jobs_completed"}
_FAILOVERS: Final = {
    "faults": "faults", **_JOBS, "acts of clients": "acts", "accepted acts lost": "acts_lost",
    "deletions undone": "deletions_undone", "unsafe calls made twice": "unsafe_doubled",
    "answers paid again": "answers_paid_again", "processes ended": "processes_ended",
}  # fmt: skip


def _under_load(run: Callable[[Path, int], Verdict], what: str) -> Scenario:
    """A server that is lost or moved while jobs and clients go on."""
    return Scenario(run, what, _FAILOVERS, ("faults", "jobs_completed", "acts"))


_CALLS: Final = {"model calls beyond the minimum": "model_calls_extra"}

# The longest first, so that the two that run at once end at about the same time.
SCENARIOS: Final[dict[str, Scenario]] = {
    "kills-fused": Scenario(
        lambda d, s: kills.kill_everywhere(d, 10, s, separate=False, timeout=2000),
        "kill -9 at each crash point, with each kind of tool, under load; the next message leaves inside the commit",
        {"kills": "kills", **_JOBS, **_CALLS},
        tuple(f"killed_{point}_{tool}" for point, tool in kills.combinations(separate=False)),
    ),
    "redis-always": Scenario(
        lambda d, s: redis_faults.storm(d, _STORM * 10, s),
        "under load, Redis with an fsync at every write is stopped for 1, 6 and 12 s, killed, stalled, or hangs up",
        {"faults": "fault_*", **_JOBS, **_CALLS},
        tuple(f"fault_{n}" for n in _STORM),
    ),
    "poison": Scenario(
        lambda d, s: poison.poison(d, 10),
        "steps that kill their process, exit, never end, recurse for ever or return 50 MB, beside innocent jobs",
        {"poison steps": "poison_*", "workers killed": "deaths", "endless drivers": "endless_driver_failed",
         "innocent jobs completed": "jobs_completed"},
        ("deaths", "poison_kill_process_failed", "endless_driver_failed"),
    ),
    "stops": Scenario(
        lambda d, s: pauses.stops(d, 10),
        "a stop while the step stands at a crash point, each in turn",
        {"stops": "stopped_at_*", "calls not run": "outcome_not_run"},
        tuple(f"stopped_at_{p}_stopped" for p in pauses.POINTS),
    ),
    "kills-separate": Scenario(
        lambda d, s: kills.kill_everywhere(d, 10, s, separate=True, timeout=2000, points=("c8", "c9")),
        "kill -9 before and after the next message, where that is published on its own, under load",
        {"kills": "kills", **_JOBS, **_CALLS},
        ("killed_c8_unsafe", "killed_c9_unsafe"),
    ),
    "kills-shares": Scenario(
        lambda d, s: kills.kill_everywhere(d, 4, s, separate=False, timeout=2000, make=kills.SharedLab),
        "kill -9 at each crash point, with each kind of tool, under load, where five customers share the slots",
        {"kills": "kills", **_JOBS, **_CALLS},
        tuple(f"killed_{point}_{tool}" for point, tool in kills.combinations(separate=False)),
    ),
    "kills-jobs": Scenario(
        lambda d, s: provider_jobs.kill_jobs(d, provider_jobs.AGENTS, 8, s, timeout=1500),
        "kill -9 at each crash point, while answers are waited for at providers that sell time",
        {"kills": "kills", **_JOBS, "answers asked again": "created_again"},
        tuple(f"kills_{point}" for point in provider_jobs.POINTS),
    ),
    "kills-jobs-redis": Scenario(
        lambda d, s: provider_jobs.kill_jobs(d, provider_jobs.AGENTS, 4, s, redis_kills=30, timeout=1500),
        "the same, while Redis with an fsync at every write is killed, too",
        {"kills": "kills", "kills of Redis": "redis_kills", **_JOBS, "answers asked again": "created_again"},
        ("kills", "redis_kills"),
    ),
    "drains": Scenario(
        lambda d, s: pauses.drains(d, 40),
        "SIGTERM under load; recovery counts from the end of the 2 s to drain",
        {"drains": "drains", **_JOBS, "calls made again elsewhere": "deliveries_again"},
        ("drains", "deliveries_again"),
    ),
    "versions": Scenario(
        lambda d, s: pauses.versions(d, 20),
        "a worker that lacks an agent beside one that has it",
        {"sessions moved to another queue": "moved", **_JOBS},
        ("moved",),
    ),
    "waiting-kills": Scenario(
        lambda d, s: waiting.kill_waiting(d, 5, s, timeout=1500),
        "kill -9 around a wait, with each kind of request, under load, while somebody answers",
        {"kills": "kills", "requests answered": "requests_answered", "approved calls": "approved_calls", **_JOBS},
        tuple(f"killed_{point}_{tool}" for point, tool in waiting.combinations()),
    ),
    "everything": Scenario(
        lambda d, s: everything.play(d, 8, s, seconds=60.0),
        "clients do all that clients can do, in an order that is drawn, while workers are killed and stand still and Redis with an "
        "fsync at every write is killed; some with an archive, some with their broker elsewhere",
        {"workers killed": "kill", "Redis killed": "kill_redis", "workers that stood still": "stand_still",
         "messages found": "messages_found", "effects": "effects", "executions judged": "executions_judged"},
        everything.WANTED,
    ),
    "live-text": Scenario(
        lambda d, s: live.kill_writers(d, 1000, s, kill_seconds=2.0),
        "kill -9 while answers are followed as they are written, by readers that stay, come late, and leave and return",
        {"kills": "kills", "streams": "streams", "pieces of text": "pieces", "pieces void": "voids",
         "returns of readers": "returns"},
        ("kills", "voids", "returns"),
    ),
    "children-kills": Scenario(
        lambda d, s: children.kill_trees(d, 10, s, timeout=1500),
        "kill -9 around the making and the end of children, while trees of three levels run",
        {"kills": "kills", "children": "children", **_JOBS},
        tuple(f"killed_{point}_delegate" for point in children.POINTS),
    ),
    "children-separate": Scenario(
        lambda d, s: children.kill_trees(d, 3, s, timeout=1000, separate=True),
        "the same, where step messages go out by themselves",
        {"kills": "kills", "children": "children", **_JOBS},
        ("killed_w4_delegate", "killed_w5_delegate"),
    ),
    "children-spending": Scenario(
        lambda d, s: children.spend(d, 100, s, kills=30, timeout=1800),
        "kill -9 while trees of 40 sessions want several times the $1 of their root",
        {"kills": "kills", "trees": "trees", "sessions stopped by their share": "stopped_by_cost"},
        ("trees", "stopped_by_cost", "children_made_late"),
    ),
    "children-simulated": Scenario(
        lambda d, s: trees.search(s * 5000, 5000),
        "simulated trees: workers die between any two round trips, replies are lost, people stop, hold and write",
        {"trees": "trees", "sessions": "sessions", "workers died": "worker died", "replies lost": "reply lost"},
        ("worker died", "reply lost", "passed w4", "passed w5", "ends without an answer", "client stop",
         "children made after others had ended", "children refused"),
    ),
    "children-stops": Scenario(
        lambda d, s: children.stop_trees(d, 10),
        "a stop of a tree while its leaves work; nothing of it happens in the two seconds after",
        {"trees stopped": "trees_stopped"},
        ("trees_stopped",),
    ),
    "waiting-clients": Scenario(
        lambda d, s: waiting.kill_clients(d, 5),
        "kill -9 of a client between its answer and the message that wakes the step",
        {"kills": "killed_*", **_JOBS},
        ("killed_w2_approved_unsafe", "killed_w2_question"),
    ),
    "waiting-redis": Scenario(
        lambda d, s: waiting.kill_redis(d, 5),
        "Redis with an fsync at every write is killed after each answer, before anybody goes on",
        {"Redis killed": "redis_killed", "requests answered": "requests_answered", **_JOBS},
        ("redis_killed", "requests_answered"),
    ),
    "capable-kills": Scenario(
        lambda d, s: capable.kill_capable(d, 10, s, timeout=1500),
        "kill -9 at each crash point, with every capability of `state.run`, under load",
        {"kills": "kills", "results given again": "results_given_again", "jobs whose parts were checked": "capable_jobs"},
        (*(f"killed_{point}" for point in capable.POINTS), "results_given_again", "ended_by_terminal_tool"),
    ),
    "smart-kills": Scenario(
        lambda d, s: smart.kill_smart(d, 8, s, timeout=1500),
        "kill -9 at each crash point, with every capability of `state.smart`",
        {"kills": "kills", "auxiliary calls paid once": "auxiliary_calls", "summaries": "summaries"},
        (*(f"killed_{point}" for point in smart.POINTS), "auxiliary_calls", "summaries", "archived_results"),
    ),
    "compaction": Scenario(
        lambda d, s: long_task.compact(d, 1_000, timeout=900),
        "a task of 1 000 steps whose conversation is compacted, against a provider",
        {"requests with valid pairs": "requests", "summaries": "summaries", "results still there": "archived_results"},
        ("summaries", "archived_results"),
    ),
    "session-races": Scenario(
        lambda d, s: races.race_sessions(d, 10_000),
        "two writers of each version of a session: processes on Redis and on files, threads in memory",
        {"versions with one winner": "raced_*"},
        ("raced_redis", "raced_files", "raced_memory"),
    ),
    "models": Scenario(
        lambda d, s: models.search_models(),
        "every interleaving of the larger configurations of the models",
        {"states": "states"},
        ("states",),
    ),
    "prefork": Scenario(
        lambda d, s: kills.prefork(d, 200),
        "children of a prefork worker die in the middle of tool calls",
        {"children lost": "children_lost", **_JOBS},
        ("children_lost",),
    ),
    "zombies": Scenario(
        lambda d, s: pauses.zombies(d, 40, s),
        "a worker stands still past its lease, another takes over, the first wakes up",
        {"pauses": "pauses", "steps taken over": "recovered", **_JOBS},
        ("pauses", "recovered"),
    ),
    "replies": Scenario(
        lambda d, s: replies.lose_each(d, s, pairs=100),
        "every k-th reply of Redis in a three-step job is lost, then pairs of them",
        {"replies lost": "replies_lost", "pairs lost": "pairs_lost", **_JOBS, **_CALLS},
        ("replies_lost", "pairs_lost"),
    ),
    "inputs": Scenario(
        lambda d, s: inputs.everything(d, 200_000, s),
        "stored data, model answers, tool calls and submits drawn at random: NaN, huge integers, halves of surrogate pairs, "
        "NUL, a hundred thousand levels, 10 MiB, flipped and missing bytes",
        {"examples": "examples_*", "sessions parked": "state_Parked", "submits refused": "submit_refused"},
        inputs.WANTED,
    ),
    "answers": Scenario(
        lambda d, s: answers.everything(20_000, s, d),
        "models answer with odd ids, names, arguments, texts, reasons and cut streams, and agents have tools with odd names "
        "and schemas, at providers that refuse what the real ones refuse; one session in a hundred in a worker process",
        {"sessions": "runs_*", "answers cut": "cut_answers", "calls run": "calls_run", "followed and not": "compared",
         "in worker processes": "in_worker_processes"},
        answers.WANTED,
    ),
    "hostile": Scenario(
        lambda d, s: messages.hostile(d, 50_000, s),
        "broker elements made to end a worker, and random ones",
        {"elements quarantined": "quarantined", "random elements": "random_elements", **_JOBS},
        ("quarantined", "random_elements"),
    ),
    "substitutions": Scenario(
        lambda d, s: substitutions.everything(d, 50_000, s, pools=("greenlets", "threads")),
        "each field of queue elements, unacknowledged records, remote control and stored values is replaced by values of "
        "each type",
        {"substitutions": "substituted_*", "named in doctor": "named_in_doctor", **_JOBS},
        substitutions.WANTED,
    ),
    "messages": Scenario(
        lambda d, s: messages.chaos(d, 2000, s),
        "messages are doubled, dropped, late or reordered, and all of them come once more at the end",
        {"doubled": "doubled", "dropped": "dropped", "late": "delayed", "reordered": "reordered",
         "again at the end": "replayed", **_JOBS},
        ("doubled", "dropped", "delayed", "reordered"),
    ),
    "provider": Scenario(
        lambda d, s: providers.failing_provider(d, 2000, s),
        "a provider refuses, fails, hangs, hangs up, or takes the money for an answer of no use",
        {"faults": "fault_*", "usable answers": "usable_answers", "answers paid in vain": "paid_in_vain", **_JOBS},
        ("usable_answers", "paid_in_vain"),
    ),
    "providers-limits": Scenario(
        lambda d, s: limits.everything(d, 200, 60.0),
        "a provider of five requests a second and model, with its limit unknown, counted by the clock, set, changed while workers are killed, and "
        "for two models; then one that is away for a minute",
        {"requests": "requests", "refused": "refused", "probes of an outage, one at a time": "probes", **_JOBS},
        ("unknown", "by_the_clock", "configured", "killed_and_changed", "two_models", "refused", "probes"),
    ),
    "schedules": Scenario(
        lambda d, s: schedules.kill_while_scheduled(d, 600, s, probability=0.1, redis_kills=10),
        "while a slot of a schedule comes each second, the workers that submit its message are killed before, behind and "
        "anywhere, and Redis too (`appendfsync always`)",
        {"slots, each once": "slots", "workers killed": "killed_*", "slots doubled": "doubled"},
        ("slots", "killed_s0", "killed_s1", "killed_anywhere"),
    ),
    "redis-full": Scenario(
        lambda d, s: _again(redis_faults.full, d, 10),
        "Redis runs out of memory at submit, journal, begin, result, commit and sweep",
        {"answers and results kept": "journaled_when_full", "submits refused": "submit_refused", **_JOBS},
        ("journaled_when_full", "submit_refused"),
    ),
    "aof-cuts": Scenario(
        lambda d, s: redis_faults.cut_files(d, 400, s),
        "the append-only file is cut between its last records and inside of them",
        {"cuts": "cuts_*", "sessions read": "sessions_read", "jobs completed after a cut": "jobs_after_a_cut"},
        ("cuts_between", "cuts_inside"),
    ),
    "redis-loses": Scenario(
        lambda d, s: redis_faults.lose_the_last(d, 20, s),
        "under load, Redis loses up to its last second with the machine it runs on, and workers elsewhere have seen it",
        {"losses": "losses", "jobs completed after a loss": "jobs_after_a_loss"},
        ("losses", "bytes_lost"),
    ),
    "failover-kill": _under_load(
        lambda d, s: failovers.lose_primaries(d, "kill", 5),
        "under load, the primary of three servers with three Sentinels is killed, and comes back as a replica",
    ),
    "failover-stop": _under_load(
        lambda d, s: failovers.lose_primaries(d, "stop", 2),
        "the same, while the primary stands still for 27 s and goes on",
    ),
    "failover-three": _under_load(
        lambda d, s: failovers.lose_primaries(d, "three", 2),
        "three primaries are killed in a row, each as soon as the others follow it",
    ),
    "failover-restart": _under_load(
        lambda d, s: failovers.lose_primaries(d, "restart", 5),
        "the primary is killed and started again at once, while the Sentinels may have begun a failover",
    ),
    "failover-replica-first": _under_load(
        lambda d, s: failovers.lose_primaries(d, "replica-first", 2),
        "a replica is killed first, then the primary",
    ),
    "failover-part-primary": _under_load(
        lambda d, s: failovers.lose_primaries(d, "part-primary", 1),
        "the primary is cut off for 20 s, with one worker and one client; the others choose another one",
    ),
    "failover-part-pair": _under_load(
        lambda d, s: failovers.lose_primaries(d, "part-pair", 1),
        "primary and replica are cut off together for 20 s, with their Sentinels, one worker and one client",
    ),
    **{
        f"failover-replicas-{fault}": _under_load(
            lambda d, s, fault=fault, times=times: failovers.lose_primaries(d, fault, times, replicas=1),
            f"with CELERY_AGENTS_REPLICAS=1: {words}",
        )
        for fault, times, words in (
            ("kill", 5, "the primary is killed, and comes back as a replica"),
            ("stop", 2, "it stands still for 27 s and goes on"),
            ("three", 2, "three primaries are killed in a row"),
            ("restart", 5, "the primary is killed and started again at once"),
            ("planned", 4, "an operator asks for another primary (SENTINEL FAILOVER), and the present one goes on until it is told"),
            ("replica-first", 2, "a replica is killed first, then the primary"),
            ("part-primary", 1, "the primary is cut off for 20 s, with one worker and one client"),
            ("part-pair", 1, "primary and replica are cut off together for 20 s, with one worker and one client"),
        )
    },
    "cluster-kill": _under_load(
        lambda d, s: clusters.disturb_cluster(d, "kill"),
        "under load, a primary of a cluster of 3 + 3 is killed, and comes back as a replica",
    ),
    "cluster-stop": _under_load(
        lambda d, s: clusters.disturb_cluster(d, "stop"),
        "the same, while the primary stands still for 27 s and goes on",
    ),
    "cluster-move": _under_load(
        lambda d, s: clusters.disturb_cluster(d, "move"),
        "a slot with work moves key by key to another node, and back",
    ),
    "cluster-add": _under_load(
        lambda d, s: clusters.disturb_cluster(d, "add"),
        "a node joins the cluster with a replica, and twelve slots with work move to it",
    ),
    **{
        f"cluster-replicas-{fault}": _under_load(
            lambda d, s, fault=fault: clusters.disturb_cluster(d, fault, replicas=1),
            f"with CELERY_AGENTS_REPLICAS=1: {words}",
        )
        for fault, words in (
            ("kill", "a primary of the cluster is killed, and comes back as a replica"),
            ("stop", "it stands still for 27 s and goes on"),
            ("move", "a slot with work moves key by key to another node, and back"),
            ("add", "a node joins with a replica, and twelve slots with work move to it"),
        )
    },
    "redis-everysec": Scenario(
        lambda d, s: redis_faults.storm(d, _STORM[:4] * 2, s, append_only="everysec"),
        "the same as redis-always, without its long stops, with an fsync every second",
        {"faults": "fault_*", **_JOBS, **_CALLS},
        ("fault_kill",),
    ),
}  # fmt: skip


def _again(run: Callable[[Path], Verdict], directory: Path, times: int) -> Verdict:
    verdict = Verdict()
    for number in range(times):
        verdict.add(run(directory / str(number)))
    return verdict


def run_one(name: str, number: int, target: Path) -> int:
    """One scenario in this process; its result in `target`."""
    scenario = SCENARIOS[name]
    # The verdict counts the attempts that are in the journals, at the end of minutes: longer than they usually live.
    os.environ.setdefault("CELERY_AGENTS_JOURNAL_SECONDS", "3600")
    directory = Path(tempfile.mkdtemp(prefix=f"ca-{name}-"))
    began = time.monotonic()
    left_out = ""
    try:
        verdict = scenario.run(directory / "lab", 1000 * number + 1)
        missing = verdict.vacuous(scenario.wanted)
    except pytest.skip.Exception as reason:
        verdict, missing, left_out = Verdict(), [], str(reason)
    except Exception:
        verdict, missing = Verdict([f"broken off: {traceback.format_exc()[-3000:]}"]), []
    found = {**verdict.as_json(), "seconds": round(time.monotonic() - began, 1), "never_happened": missing}
    found["holds"] = found["holds"] and not missing
    found["date"] = time.strftime("%Y-%m-%d")
    found["replay"] = f"python tests/fault/campaign.py --run {name} {number}"
    found["left_out"] = left_out
    found["waits"] = [round(wait, 3) for wait in verdict.recoveries]
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    part.write_text(json.dumps(found, indent=1))
    part.rename(target)
    if found["holds"]:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        print(f"{name}: logs are in {directory}", file=sys.stderr)
    return 0 if found["holds"] else 1


def run_all(names: list[str], times: int, folder: Path, *, resume: bool) -> dict[str, Any]:
    """All scenarios, two at once, then the simulation; the verdict over all."""
    jobs = [(name, number) for number in range(times) for name in names if name in SCENARIOS]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda job: _in_a_process(*job, folder, resume=resume), jobs))
    verdict: dict[str, Any] = {"scenarios": {}, "left_out": {}}
    for name in names:
        if name in SCENARIOS:
            found = [json.loads(_file(folder, name, n).read_text()) for n in range(times)]
            if reasons := [part["left_out"] for part in found if part.get("left_out")]:
                verdict["left_out"][name] = reasons[0]
            else:
                verdict["scenarios"][name] = _sum(found)
    holds = [part["holds"] for part in verdict["scenarios"].values()]
    if "simulation" in names:
        target = folder / "simulation"
        if not resume:
            shutil.rmtree(target, ignore_errors=True)
        verdict["simulation"] = simulate(SEEDS * times, target)
        holds.append(verdict["simulation"]["ok"])
    verdict["holds"] = all(holds)
    verdict["environment"] = environment()
    (folder / "verdict.json").write_text(json.dumps(verdict, indent=1))
    return verdict


def environment() -> dict[str, Any]:
    """Where and with what a run has just ended; `load` is the load average over 1, 5 and 15 minutes."""
    binary = find_binary()
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.split()
    number = next(word.removeprefix("v=") for word in said if word.startswith("v="))
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "celery": version("celery"),
        "redis": f"{number} ({'on PATH' if shutil.which('redis-server') == binary else 'embedded'})",
        "load": os.getloadavg(),
    }


def _file(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name}-{number}.json"


def _in_a_process(name: str, number: int, folder: Path, *, resume: bool) -> None:
    target = _file(folder, name, number)
    if target.exists():
        if resume and json.loads(target.read_text())["holds"]:
            return
        target.unlink()
    print(f"{time.strftime('%H:%M:%S')} {name} {number} …", flush=True)
    command = [sys.executable, __file__, "--run", name, str(number), "--folder", str(folder)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(TESTS)}, check=False)
    if not target.exists():
        target.write_text(json.dumps({"holds": False, "violations": ["its process ended"], "counts": {}, "waits": []}))
    found = json.loads(target.read_text())
    outcome = found.get("left_out") or ("holds" if found["holds"] else "BROKEN")
    print(f"{time.strftime('%H:%M:%S')} {name} {number} {outcome}", flush=True)
    for violation in found["violations"][:5]:
        print(f"  {violation}", flush=True)


def _sum(found: list[dict[str, Any]]) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for part in found:
        for name, count in part["counts"].items():
            counts[name] = counts.get(name, 0) + count
    return {
        "holds": all(part["holds"] for part in found),
        "runs": len(found),
        "date": max(part.get("date", "") for part in found),
        "seconds": round(sum(part.get("seconds", 0) for part in found), 1),
        "violations": [violation for part in found for violation in part["violations"]][:50],
        "never_happened": sorted({name for part in found for name in part.get("never_happened", [])}),
        "recoveries": summary([wait for part in found for wait in part["waits"]]),
        "counts": dict(sorted(counts.items())),
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=1, help="everything so many times, with other seeds (1)")
    parser.add_argument("--resume", action="store_true", help="keep what has been run before")
    parser.add_argument("--only", nargs="+", choices=[*SCENARIOS, "simulation"], help="these scenarios")
    parser.add_argument("--folder", type=Path, default=Path(".fault-runs"), help="for the results (.fault-runs)")
    parser.add_argument("--run", nargs=2, metavar=("NAME", "NUMBER"), help="one run in this process")
    options = parser.parse_args()
    if options.run:
        name, number = options.run
        return run_one(name, int(number), _file(options.folder, name, int(number)))
    names = options.only or [*SCENARIOS, "simulation"]
    verdict = run_all(names, options.times, options.folder, resume=options.resume)
    print(json.dumps(verdict, indent=1))
    from fault.report import refresh  # which reads the scenarios here

    refresh(options.folder)
    return 0 if verdict["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
