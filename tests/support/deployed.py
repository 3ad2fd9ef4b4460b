"""The files of deploy/ and docker-compose.yml as the tests read them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from .product import ROOT

DEPLOY = ROOT / "deploy"
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


@cache
def compose() -> dict[str, Any]:
    """docker-compose.yml, with the defaults of its variables filled in and the secrets in `./secrets`."""
    text = (ROOT / "docker-compose.yml").read_text()
    return yaml.safe_load(_VARIABLE.sub(lambda match: match[2] or "", text))


@cache
def manifests() -> tuple[dict[str, Any], ...]:
    """Every object of the Kubernetes manifests; not the kustomizations."""
    files = sorted(DEPLOY.glob("kubernetes*/*.yaml"))
    texts = [path.read_text() for path in files if path.name != "kustomization.yaml"]
    return tuple(each for text in texts for each in yaml.safe_load_all(text))


def manifest(kind: str, name: str) -> dict[str, Any]:
    (found,) = (each for each in manifests() if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def container(kind: str, name: str) -> dict[str, Any]:
    """The one container of a Deployment or StatefulSet."""
    (only,) = manifest(kind, name)["spec"]["template"]["spec"]["containers"]
    return only


@cache
def unit(name: str) -> dict[str, list[tuple[str, str]]]:
    """A systemd unit: its sections with their settings, in order."""
    sections: dict[str, list[tuple[str, str]]] = {}
    settings: list[tuple[str, str]] = []
    for line in (DEPLOY / "systemd" / name).read_text().splitlines():
        if line.startswith("["):
            settings = sections.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            settings.append((key, value))
    return sections


def unit_value(name: str, section: str, key: str) -> str:
    (value,) = (value for known, value in unit(name)[section] if known == key)
    return value


def unit_command(name: str) -> list[str]:
    """What a unit starts, with the paths of its machine taken away."""
    return [word.removeprefix("/opt/celery-agents/").removeprefix("bin/") for word in _exec_start(name)]


def _exec_start(name: str) -> list[str]:
    return shlex.split(unit_value(name, "Service", "ExecStart"))


@cache
def dockerfile(instruction: str) -> list[str]:
    """The JSON form of the last such instruction, as `ENTRYPOINT ["a", "b"]`."""
    text = (DEPLOY / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    found = re.findall(rf"^{instruction} .*?(\[.*\])$", text, re.MULTILINE)
    return yaml.safe_load(found[-1])


def probe_commands() -> Iterator[tuple[str, list[str]]]:
    """Every command by which somebody looks at a worker: (where it stands, the command)."""
    yield "docker-compose.yml", _without_cmd(compose()["services"]["worker"]["healthcheck"]["test"])
    (healthcheck,) = re.findall(r"HEALTHCHECK .*?CMD (\[.*\])", _joined_dockerfile())
    yield "Dockerfile", yaml.safe_load(healthcheck)
    worker = container("Deployment", "celery-agents-worker")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        yield f"worker.yaml {probe}", worker[probe]["exec"]["command"]
    yield "celery-agents-health.service", unit_command("celery-agents-health.service")


def _joined_dockerfile() -> str:
    return re.sub(r"\\\n\s*", "", (DEPLOY / "docker" / "Dockerfile").read_text())


def _without_cmd(test: list[str]) -> list[str]:
    assert test[0] == "CMD"
    return test[1:]


def files() -> list[Path]:
    """Every file of deploy/, and docker-compose.yml."""
    return [*(path for path in sorted(DEPLOY.rglob("*")) if path.is_file()), ROOT / "docker-compose.yml"]
