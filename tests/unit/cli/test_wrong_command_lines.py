"""A thousand wrong command lines and settings: never a traceback, always a sentence and an exit code of ours."""

from __future__ import annotations

import io
import os
import random
import sys

import pytest

from celery_agents.tasks.cli import main

_COMMANDS = (
    "submit", "send", "stop", "retry", "watch", "show", "list", "doctor", "worker", "flower", "up", "demo", "new", "",
    "lst", "-", "--help", "--version", "--json", "submit submit",
)  # fmt: skip
_STARTS_SOMETHING = frozenset({"worker", "flower", "up", "demo", "new"})
_OPTIONS = (
    "--json", "--wait", "-w", "--timeout", "--session", "-k", "--idempotency-key", "--max-steps", "--max-cost",
    "--max-tokens", "--max-seconds", "--redis-url", "--failed", "--since", "--agent", "--dry-run", "--from",
    "--status", "--limit", "-n", "--cursor", "--no-such-option", "--", "-x", "--=", "--pool", "--concurrency",
    "--port", "--reload", "--data-dir", "--keep",
)  # fmt: skip
_VALUES = (
    "", " ", "0", "-1", "1", "99999999999999999999999", "1e400", "nan", "inf", "-inf", "null", "1h",
    "5 parsecs", "a b", "../x", "x" * 3000, "ü", "🙂", "\udcff", "a\x00b", "\x1b[31m", "redis://", "redis://:@",
    "redis://127.0.0.1:1/0", "redis://h:p:q/0", "redis://127.0.0.1:99999/0", "http://x", "unix:///nope", "{}",
    "[]", "-", "--help=1", "completed", "failed", "a,b", "%s", "${x}", "0:0", "0-0", "zz-zz", "abc123",
)  # fmt: skip
_SETTINGS = (
    "REDIS_URL", "BROKER_URL", "LEASE_SECONDS", "LEASE_RENEW_SECONDS", "SHARDS", "QUEUE", "POOL", "LOG_LEVEL",
    "NO_SUCH_SETTING", "CONCURRENCY", "RETENTION_SECONDS", "METRICS_PORT", "TASK_EVENTS", "CRASH",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _away_from_any_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CELERY_AGENTS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CELERY_AGENTS_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("CELERY_AGENTS_REDIS_TIMEOUT_SECONDS", "0.2")
    monkeypatch.setattr(sys, "stdin", io.StringIO("from standard input"))


def wrong_line(chance: random.Random) -> list[str]:
    command = chance.choice(_COMMANDS)
    words = [chance.choice(_OPTIONS + _VALUES) for _ in range(chance.randrange(6))]
    chance.shuffle(words)
    if command in _STARTS_SOMETHING:
        words.insert(0, "--no-such-option")  # nothing is started here
    return [*command.split(" "), *words]


def outcome(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize("seed", range(20))
def test_wrong_command_lines_get_a_sentence_and_an_exit_code(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(seed)
    for _ in range(40):
        line = wrong_line(chance)
        code, said = outcome(line, capsys)
        assert code in (0, 1, 2, 3), (line, said)
        assert "Traceback" not in said, line
        assert code == 0 or said.strip(), line


@pytest.mark.parametrize("seed", range(10))
def test_wrong_settings_get_a_sentence_and_an_exit_code(
    seed: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    usable = [value for value in _VALUES if "\x00" not in value]
    for _ in range(20):
        with monkeypatch.context() as patched:
            for name in chance.sample(_SETTINGS, k=chance.randrange(1, 4)):
                patched.setenv(f"CELERY_AGENTS_{name}", chance.choice(usable))
            code, said = outcome(["list"], capsys)
        assert code in (2, 3), said
        assert "Traceback" not in said
        assert said.startswith("celery-agents: ")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["approve", "s", "--args", "[" * 60_000], "--args is no JSON"),
        (["fork", "s", "--message", f"{'9' * 5_000}=x"], "write NUMBER=TEXT"),
        (["--app", "os.path:join", "list"], "and no Celery app"),
        (["--app", "..x", "list"], "it cannot be imported"),
        (["worker", "--agents", "./my_agents.py"], "write it like my_service.agents"),
        (["list", "--redis-url", "redis://a..b"], "has no usable host"),
        (["list", "--redis-url", "redis://a?no_such_option=1"], "no_such_option"),
        (["list", "--redis-url", "redis://a?decode_responses=true"], "leave out decode_responses"),
        (["list", "--agent", "\udcff"], "use an agent's name"),
        (["list", "--text", "\udcff"], "text: this text holds half of a surrogate pair"),
        (["list", "--error", "a\udcff"], "error: this text holds half of a surrogate pair"),
        (["submit", "a", "hi", "-k", "\udcff"], "idempotency_key: this text holds half of a surrogate pair"),
        (["up", "--data-dir", "caf\udce9"], "is no UTF-8; give another --data-dir"),
    ],
)
def test_what_a_parser_below_us_chokes_on_is_a_usage_error(
    line: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = outcome(line, capsys)
    assert (code, says in said, "Traceback" in said) == (2, True, False), said
