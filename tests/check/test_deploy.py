"""Every file of deploy/ and docker-compose.yml against its specification, and against the product it deploys."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from celery_agents.config.settings import PREFIX, Settings
from celery_agents.tasks.cli.program import SECTIONS, commands_of
from celery_agents.tasks.observability.doctor.checks import CHECKS
from celery_agents.tasks.observability.metrics import Metrics

from support import deployed
from support.deployed import DEPLOY, container, manifest, manifests
from support.product import ROOT

PAGE = ROOT / "docs" / "deploying.md"
BIN = Path(sys.executable).parent
DRAIN = 30.0
FORCED = 5.0  # after the drain, until a worker with a function that does not end leaves it
BOOKKEEPING = {
    "slots", "slots_busy", "slots_abandoned", "due_sessions", "overdue_sessions", "due_age_seconds", "delayed_steps",
    "problems", "refused_total", "redis_memory_share", "unoffered_sessions", "queue_length", "open_requests",
    "open_request_age_seconds", "archive_behind_seconds", "provider_job_late",
}  # fmt: skip

# The fields of KEDA's own definition that we use; the whole of it is in no package.
KEDA: dict[str, Any] = {
    "ScaledObject": {
        "type": "object",
        "required": ["scaleTargetRef", "triggers"],
        "additionalProperties": False,
        "properties": {
            "scaleTargetRef": {"type": "object", "required": ["name"]},
            "pollingInterval": {"type": "integer", "minimum": 1},
            "cooldownPeriod": {"type": "integer", "minimum": 0},
            "minReplicaCount": {"type": "integer", "minimum": 0},
            "maxReplicaCount": {"type": "integer", "minimum": 1},
            "advanced": {
                "type": "object",
                "additionalProperties": False,
                "properties": {"horizontalPodAutoscalerConfig": {"type": "object"}},
            },
            "triggers": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "required": ["type", "metadata"],
                    "additionalProperties": False,
                    "properties": {
                        "type": {"enum": ["redis", "prometheus"]},
                        "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
                        "authenticationRef": {"type": "object", "required": ["name"]},
                    },
                },
            },
        },
    },
    "TriggerAuthentication": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "secretTargetRef": {
                "type": "array",
                "items": {"type": "object", "required": ["parameter", "name", "key"], "additionalProperties": False,
                          "properties": {name: {"type": "string"} for name in ("parameter", "name", "key")}},
            }
        },
    },
}  # fmt: skip


def run(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    assert not done.stderr.strip(), done.stderr


# --- each file against its specification ------------------------------------------------------------------------


@pytest.mark.parametrize("path", [ROOT / "docker-compose.yml", DEPLOY / "sentinel" / "compose.yaml"], ids=str)
def test_a_compose_file_is_one(path: Path) -> None:
    run(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", path)


@pytest.mark.skipif(not (BIN / "hadolint").exists(), reason="there is no hadolint for this machine")
def test_the_dockerfile_is_a_good_one() -> None:
    run(BIN / "hadolint", DEPLOY / "docker" / "Dockerfile")


@pytest.mark.parametrize("each", manifests(), ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_a_manifest_is_what_kubernetes_takes(each: dict[str, Any]) -> None:
    if each["apiVersion"].startswith("keda.sh/"):
        jsonschema.validate(each["spec"], KEDA[each["kind"]])
    else:
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("folder", ["kubernetes", "kubernetes-keda", "kubernetes-sentinel", "redis"])
def test_a_kustomization_names_files_that_are_there(folder: str) -> None:
    home = DEPLOY / folder
    value = yaml.safe_load((home / "kustomization.yaml").read_text())
    assert (value["apiVersion"], value["kind"]) == ("kustomize.config.k8s.io/v1beta1", "Kustomization")
    for name in value.get("resources", []):
        assert (home / name / "kustomization.yaml" if (home / name).is_dir() else home / name).is_file(), name
        assert not home.resolve().is_relative_to((home / name).resolve()), "kustomize takes no folder around its own"
    named = {file for generator in value.get("configMapGenerator", []) for file in generator.get("files", [])}
    assert all((home / name).is_file() for name in named)
    listed = {*value.get("resources", []), "kustomization.yaml"}
    assert folder == "redis" or {path.name for path in home.glob("*.yaml")} <= listed


@pytest.mark.parametrize("path", sorted((DEPLOY / "systemd").iterdir()), ids=lambda path: path.name)
def test_a_unit_is_what_systemd_takes(path: Path, tmp_path: Path) -> None:
    sections = deployed.unit(path.name)
    assert "Unit" in sections
    assert path.suffix == ".timer" or deployed.unit_value(path.name, "Service", "ExecStart")
    if shutil.which("systemd-analyze") is None:
        return
    for each in path.parent.iterdir():  # they name each other; what they start is not on this machine
        text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", each.read_text(), flags=re.MULTILINE)
        (tmp_path / each.name).write_text(text)
    run("systemd-analyze", "verify", "--man=no", tmp_path / path.name)


@pytest.mark.parametrize(
    "name",
    [
        "redis/start-redis",
        "redis/find-primary",
        "redis/start-sentinel",
        "redis/redis-health",
        "docker/with-secrets",
        "make-secrets",
        "pin-images",
    ],
)
def test_a_script_is_one_of_the_plain_shell(name: str) -> None:
    assert (DEPLOY / name).read_text().startswith("#!/bin/sh\n")
    assert (DEPLOY / name).stat().st_mode & 0o111
    run(shutil.which("dash") or "sh", "-n", DEPLOY / name)


# --- the dashboard ----------------------------------------------------------------------------------------------


def dashboard() -> dict[str, Any]:
    return json.loads((DEPLOY / "grafana" / "celery-agents.json").read_text())


def panels() -> list[dict[str, Any]]:
    return dashboard()["panels"]


def expressions() -> Iterator[str]:
    yield from (target["expr"] for panel in panels() for target in panel.get("targets", []))
    triggers = manifest("ScaledObject", "celery-agents-worker")["spec"]["triggers"]
    yield from (each["metadata"]["query"] for each in triggers if each["type"] == "prometheus")
    yield from (rule["expr"] for rule in alert_rules())
    for block in blocks("promql"):
        yield from block


def alert_rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"]
    return group["rules"]


def test_each_alert_says_what_is_wrong_and_what_to_do() -> None:
    names = [rule["alert"] for rule in alert_rules()]
    assert len(names) == len(set(names)) >= 5
    for rule in alert_rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert len(rule["annotations"]["description"]) > 40
        assert rule["for"].endswith("m")


# What doctor calls more than fine, by the check, and what tells operators of it without doctor.
ALERTED: dict[str, str | None] = {
    "check_eviction": "CeleryAgentsRedisProblem", "check_durability": "CeleryAgentsRedisProblem",
    "check_role": "CeleryAgentsRedisProblem", "check_restart": "CeleryAgentsRedisProblem", "check_key_types": "CeleryAgentsRedisProblem",
    "check_memory": "CeleryAgentsRedisMemory", "check_workers": "CeleryAgentsNoWorker",
    "check_unoffered": "CeleryAgentsNobodyOffers", "check_agents": "CeleryAgentsNobodyOffers",
    "check_backlog": "CeleryAgentsStepsWait", "check_delayed": "CeleryAgentsStepsPutOff",
    "check_requests": "CeleryAgentsRequestWaits", "check_queue": "CeleryAgentsQueueStandsStill",
    "check_dead": "CeleryAgentsStepsParked", "check_refused": "CeleryAgentsRefusedMessages",
    "check_unacked": "CeleryAgentsRefusedMessages", "check_providers": "CeleryAgentsProviderHeld",
    "check_jobs": "CeleryAgentsProviderJobsLate", "check_writes": "CeleryAgentsRedisProblem", "check_histories": "CeleryAgentsHistoryLost",
    "check_archive": "CeleryAgentsArchiveBehind",
    # Sessions that wait for a limit are put off.
    "check_concurrency": "CeleryAgentsStepsPutOff", "check_caps": "CeleryAgentsStepsPutOff",
    # Steps that wait for replicas are put off, which CeleryAgentsStepsPutOff tells; callers hear NotConfirmed.
    "check_confirmations": "CeleryAgentsStepsPutOff",
    # No worker waits for a Sentinel while the others agree; the log of each worker says when none names a primary.
    "check_sentinels": None,
    # The inspection of each worker names a node that is away or has a problem; one without a replica is a warning.
    "check_cluster": "CeleryAgentsRedisProblem",
    # These are about an installation that does not start, or about the machine on which doctor runs.
    "check_version": None, "check_clock": None, "check_shards": None, "check_broker": None, "check_models": None,
    "check_own_agents": None, "check_app_settings": None, "check_library_attributes": None, "check_builds": None,
    "check_shares": None,
    # The other tools of the server work, and the log of each worker has a warning.
    "check_tools": None,
    # Receivers belong to others; what they have refused thirty times is in the dead list.
    "check_callbacks": None,
    # A sweep takes such entries out.
    "check_entries": None,
    # An operator has paused it on purpose.
    "check_schedules": None, "check_pauses": None,
}  # fmt: skip


def test_what_doctor_checks_has_an_alert_or_a_reason_why_not() -> None:
    assert ALERTED.keys() == {check.__name__ for check in CHECKS}
    assert {alert for alert in ALERTED.values() if alert} <= {rule["alert"] for rule in alert_rules()}


def test_nothing_scales_by_keda_unless_it_is_asked_for() -> None:
    base = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())["resources"]
    texts = [(DEPLOY / "kubernetes" / name).read_text() for name in base if name.endswith(".yaml")]
    assert not any("keda.sh/v1alpha1" in text for text in texts)


def blocks(language: str) -> list[list[str]]:
    """The lines of each such block of docs/deploying.md."""
    return [each.splitlines() for each in re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)]


def test_the_dashboard_is_laid_out() -> None:
    assert {"uid", "title", "schemaVersion", "templating", "time"} <= dashboard().keys()
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))
    places = [panel["gridPos"] for panel in panels()]
    cells = [
        (x, y)
        for place in places
        for x, y in itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        )
    ]
    assert len(cells) == len(set(cells)), "panels lie over each other"
    assert max(x for x, _ in cells) < 24
    for panel in panels():
        assert panel["type"] in ("row", "stat", "timeseries")
        assert panel["type"] == "row" or (panel["description"] and panel["targets"] and panel["datasource"])
        references = [target["refId"] for target in panel.get("targets", [])]
        assert len(references) == len(set(references))


def test_queries_ask_for_what_workers_count() -> None:
    known = {f"celery_agents_{name}" for name in BOOKKEEPING} | {"process_resident_memory_bytes"}
    labels: dict[str, set[str]] = {
        "celery_agents_refused_total": {"source"}, "celery_agents_queue_length": {"queue"},
        "celery_agents_unoffered_sessions": {"agent"}, "celery_agents_histories_lost_total": {"kind"},
        "celery_agents_archived_total": {"outcome"},
        "celery_agents_provider_held": {"model", "endpoint", "group", "why"},
    }  # fmt: skip
    known |= set(labels)
    for metric in _described():
        stem = metric._name
        names = [f"{stem}_total"] if metric._type == "counter" else [f"{stem}_bucket", f"{stem}_sum", f"{stem}_count"]
        known |= set(names)
        labels |= {name: {*metric._labelnames, "le"} for name in names}
    for expression in expressions():
        asked = re.findall(r"\b(celery_agents_\w+|process_\w+)", expression)
        assert asked, expression
        assert set(asked) <= known, expression
        for name, matchers in re.findall(r"(celery_agents_\w+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)[=!]", matchers)) <= labels[name], expression
        grouped = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", expression))))
        assert grouped <= set().union(*(labels.get(name, set()) for name in asked)), expression


def _described() -> list[Any]:
    metrics = Metrics()
    return list({id(each): each for each in metrics.registry._collector_to_names}.values())


# --- against the product ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*deployed.files(), PAGE], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_names_settings_that_exist(path: Path) -> None:
    compose_only = {"IMAGE"}
    named = set(re.findall(rf"\b{PREFIX}([A-Z_]+)\b", path.read_text()))
    assert {name.lower() for name in named - compose_only} <= set(Settings.model_fields)


@pytest.mark.parametrize("path", deployed.files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_holds_a_password(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"://[^/\s$:]*:[^$@/\s]+@", text), "an address with a password"
    assert not re.search(r"(?i)\b(password|secret|requirepass)\s*[:=]\s*[\"']?[A-Za-z0-9+/]{6,}[\"']?\s*$", text)
    assert not re.search(r"^user \S+ on\b|\bnopass\b", text, re.MULTILINE), "a user who is switched on"


def test_the_settings_of_the_compose_file_are_taken() -> None:
    given = {
        name: str(value)
        for name, value in deployed.compose()["services"]["worker"]["environment"].items()
        if value is not None
    }
    assert Settings.from_environment(given).drain_seconds == DRAIN


def test_every_secret_of_the_compose_file_is_made() -> None:
    made = set(re.findall(r"^keep ([\w-]+) ", (DEPLOY / "make-secrets").read_text(), re.MULTILINE))
    made |= {
        f"{stem}-{user}"
        for stem in ("redis", "redis-url")
        for user in ("producer", "submitter", "worker", "monitor", "http", "flower", "operator")
    }
    made |= {"redis-sentinel", "redis-replica"}
    of_sentinels = yaml.safe_load((DEPLOY / "sentinel" / "compose.yaml").read_text())["secrets"]
    assert {Path(secret["file"].replace("}", "")).name for secret in of_sentinels.values()} <= made
    secrets = deployed.compose()["secrets"]
    assert {Path(secret["file"]).name for secret in secrets.values()} <= made
    used = [each for service in deployed.compose()["services"].values() for each in service.get("secrets", [])]
    assert {each if isinstance(each, str) else each["source"] for each in used} == set(secrets)


def test_nobody_kills_a_worker_before_its_drain_is_over() -> None:
    longest = DRAIN + FORCED
    assert seconds(deployed.compose()["services"]["worker"]["stop_grace_period"]) > longest
    pod = manifest("Deployment", "celery-agents-worker")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > longest
    (drain,) = (each["value"] for each in pod["containers"][0]["env"] if each["name"] == f"{PREFIX}DRAIN_SECONDS")
    assert float(drain) == DRAIN
    assert float(deployed.unit_value("celery-agents-worker.service", "Service", "TimeoutStopSec")) > longest


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


@pytest.mark.parametrize("name", ["worker", "http", "flower", "redis"])
def test_no_container_can_do_more_than_it_needs(name: str) -> None:
    service = deployed.compose()["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"] in ("999:999", "10001:10001")
    assert service["mem_limit"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert service["healthcheck"]["test"][0] == "CMD"
    kind = "StatefulSet" if name == "redis" else "Deployment"
    confined = container(kind, f"celery-agents-{name}")["securityContext"]
    assert confined == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    pod = manifest(kind, f"celery-agents-{name}")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False


def test_servers_with_sentinels_are_three_hosts_of_one_server_and_one_sentinel_each() -> None:
    """The scripts are tried by tests/integration/test_deployed_sentinels.py."""
    services = yaml.safe_load((DEPLOY / "sentinel" / "compose.yaml").read_text())["services"]
    hosts = ["redis", "redis-2", "redis-3"]
    assert [services[name]["environment"]["OWN_HOST"] for name in hosts] == hosts
    sentinels = [services[f"sentinel-{number}"] for number in (1, 2, 3)]
    assert [each["network_mode"] for each in sentinels] == [f"service:{host}" for host in hosts]
    assert {tuple(each["entrypoint"]) for each in sentinels} == {("sh", "/etc/redis/start-sentinel")}
    places = ",".join(f"{host}:26379" for host in hosts)
    assert {each["environment"]["SENTINELS"] for each in services.values()} == {places}
    spec = manifest("StatefulSet", "celery-agents-sentinel")["spec"]
    assert spec["replicas"] == len(hosts)
    rules = spec["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [rule["topologyKey"] for rule in rules] == ["kubernetes.io/hostname"]
    server, sentinel = spec["template"]["spec"]["containers"]
    assert server["command"] == [*deployed.compose()["services"]["redis"]["entrypoint"]]
    assert sentinel["command"] == [*sentinels[0]["entrypoint"]]
    env = {each["name"]: each.get("value") for each in server["env"]}
    assert len(env["SENTINELS"].split(",")) == len(hosts)
    assert all(re.fullmatch(r"[a-z0-9.-]+:26379", place) for place in env["SENTINELS"].split(","))
    assert env["FIRST_HOST"] == env["SENTINELS"].split(",")[0].removesuffix(":26379")
    assert sentinel["env"] == server["env"]


def test_redis_keeps_what_it_acknowledged_and_evicts_nothing() -> None:
    lines = (DEPLOY / "redis" / "redis.conf").read_text().splitlines()
    assert {"appendonly yes", "maxmemory-policy noeviction"} <= set(lines)


def test_the_pods_of_each_policy_and_service_exist() -> None:
    pods = [
        each["spec"]["template"]["metadata"]["labels"]
        for each in manifests()
        if each["kind"] in ("Deployment", "StatefulSet")
    ]
    for each in manifests():
        spec = each.get("spec", {})
        chosen = spec.get("podSelector", {}).get("matchLabels") or (
            spec["selector"].get("matchLabels", spec["selector"]) if "selector" in spec else None
        )
        assert chosen is None or any(chosen.items() <= labels.items() for labels in pods), each["metadata"]


def rights(user: str) -> set[str]:
    """The commands that a user of users.acl may give."""
    lines = (DEPLOY / "redis" / "users.acl").read_text().replace("\\\n", " ").splitlines()
    (line,) = (each for each in lines if each.startswith(f"user {user} "))
    return {word.strip("+)").upper().replace("|", " ") for word in line.split() if word.startswith("+")}


def commands(*modules: str) -> set[str]:
    """The Redis commands that modules of worker/store name, in Python and in Lua."""
    texts = [(ROOT / "worker" / "store" / name).read_text() for name in modules]
    found = {name for text in texts for name in re.findall(r"\(\s*\"([A-Z]{3,})\"", text)}
    found |= {name for text in texts for name in re.findall(r"redis\.call\('([A-Z]+)'", text)}
    # ACL and PEXPIREAT are about what others may do: a worker asks, and gives neither. Of CLUSTER it gives SLOTS alone.
    return found - {
        "ACL",
        "CLUSTER",
        "STREAMS",
        "PEXPIREAT",
        "SCRIPT",
        "BLOCK",
        "NOMKSTREAM",
        "COUNT",
        "NOAUTH",
        "NOPERM",
        "WRONGTYPE",
        "EXEC",
    } | {"EXEC"}


def test_each_user_may_give_the_commands_of_its_part() -> None:
    store = ROOT / "worker" / "store"
    stored = [
        str(path.relative_to(store))
        for path in [*store.rglob("*.py"), *store.rglob("*.lua")]
        if path.parent.name != "memory"
    ]
    assert {"ZADD", "XADD", "PTTL", "INFO"} <= commands(*stored) <= rights("worker")
    assert {"SCRIPT LOAD", "SUBSCRIBE", "BRPOP", "ACL DRYRUN"} <= rights("worker")
    assert all("CLUSTER SLOTS" in rights(role) for role in ("producer", "worker", "monitor", "http", "operator"))
    assert (
        commands(
            *(
                f"sessions/{name}.py"
                for name in (
                    "acting",
                    "stopping",
                    "retrying",
                    "parking",
                    "watched_sessions",
                    "deleting",
                    "labelling",
                    "whole_sessions",
                )
            ),
            "live/streams.py",
            *(
                "sessions/saving.py",
                "sessions/loading.py",
                "events.py",
                "control.py",
                "labels.py",
                "housekeeping/dead_list.py",
            ),
        )
        - rights("producer")
        == set()
    )
    looking = (
        "sessions/reads.py",
        "sessions/loading.py",
        "sessions/listing.py",
        "sessions/summaries.py",
        "requests/listing.py",
        "housekeeping/inspection.py",
    )
    # A sweep deletes the queue of a group without workers, and a worker notes a sink that failed; a monitor does not.
    writes = {"DEL", "SET", "HSET"}
    assert commands(*looking) - writes - rights("monitor") == set()
    assert commands(*looking) - writes - rights("http") - {"HSCAN", "INFO", "PTTL", "TYPE"} == set()
    assert writes & rights("monitor") == set()


# --- docs/deploying.md ------------------------------------------------------------------------------------------


def test_the_page_names_files_that_are_there() -> None:
    named = set(re.findall(r"deploy/[\w./-]+", PAGE.read_text()))
    assert named
    assert [name for name in named if not (ROOT / name.rstrip(".")).exists()] == []
    units = {path.stem for path in (DEPLOY / "systemd").iterdir()}
    assert set(re.findall(r"\bcelery-agents-(?:worker|http|flower|health)\b", PAGE.read_text())) <= units


def test_the_commands_of_the_page_are_the_shell_s() -> None:
    for block in blocks("sh"):
        subprocess.run(["sh", "-n"], input="\n".join(block), text=True, check=True)


def test_the_commands_of_the_page_make_all_secrets(tmp_path: Path) -> None:
    commands = [line for block in blocks("sh") for line in block if line.startswith("sh deploy/make-secrets")]
    assert len(commands) == 6
    for number, command in enumerate(commands):
        home = tmp_path / str(number)
        home.mkdir()
        (home / "deploy").symlink_to(DEPLOY)
        moved = "domain=example.org; " + command.replace("/etc/celery-agents/secrets", "secrets")
        subprocess.run(["sh", "-c", moved], cwd=home, check=True, capture_output=True)
        made = {path.name: path.read_text() for path in (home / "secrets").iterdir()}
        assert len({value for name, value in made.items() if not name.startswith("redis-url")}) == 14
        assert all(value.strip() == value for value in made.values())
        for user in ("producer", "submitter", "worker", "monitor", "http", "flower", "operator"):
            url = Settings.build(redis_url=made[f"redis-url-{user}"]).redis_url
            assert made[f"redis-{user}"] in url
        assert (home / "secrets").stat().st_mode & 0o777 == 0o700
        subprocess.run(["sh", "-c", moved], cwd=home, check=True, capture_output=True)
        assert made == {path.name: path.read_text() for path in (home / "secrets").iterdir()}, "what was there stays"


def test_an_address_that_stays_although_another_one_was_asked_for_is_named(tmp_path: Path) -> None:
    def make(*arguments: str) -> str:
        command = ["sh", DEPLOY / "make-secrets", tmp_path, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stderr

    assert make() == make() == ""
    assert "redis-url-worker stays, with another address" in make("one:26379,two:26379", "mymaster")
    (tmp_path / "redis-url-worker").unlink()
    assert "redis-url-worker" not in make("one:26379,two:26379", "mymaster")
    assert "/mymaster/0" in (tmp_path / "redis-url-worker").read_text()


def test_the_commands_of_the_page_are_ours() -> None:
    lines = [line for block in blocks("sh") for line in block]
    ours = {match[1] for line in lines if (match := re.search(r"\bwith-secrets celery-agents (\w+)", line))}
    assert ours == {"submit", "doctor"}
    assert ours | set(re.findall(r"`celery-agents (\w+)", PAGE.read_text())) <= {
        *itertools.chain(*map(commands_of, SECTIONS.values()))
    }
