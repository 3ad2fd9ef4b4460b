"""An option that would be without effect beside the others is refused before Redis is asked."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from celery_agents.tasks.cli import main


@pytest.fixture(autouse=True)
def _away_from_any_redis(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("CELERY_AGENTS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CELERY_AGENTS_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("CELERY_AGENTS_REDIS_TIMEOUT_SECONDS", "0.2")


def outcome(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    printed = capsys.readouterr()
    assert not printed.out
    return int(ended.value.code or 0), printed.err


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("submit echo hi --timeout 5s", "--timeout"),
        ("send abc hi --timeout 5s --json", "--timeout"),
        ("retry abc --timeout 5s", "--timeout"),
        ("retry --failed --timeout 5s", "--timeout"),
        ("retry --failed --beyond-agent", "--beyond-agent"),
        ("budget abc --beyond-agent", "--beyond-agent"),
        ("budget abc --by ann", "--by"),
        ("show abc --tree --step 2", "--tree"),
        ("show abc --tree --verbose", "--tree"),
        ("show abc --tree --step 2 --state", "--tree"),
        ("show abc --json --step 2", "--step"),
        ("list --since 1h --until 2h", "--since"),
        ("costs --since 1h --until 1h", "--since"),
        ("act retry --since 1h --until 2h", "--since"),
        ("requests abc --all --status used", "--all"),
        ("suspend --all --for 1h", "--for"),
        ("delete --all --older-than 1h --timeout 5s", "--timeout"),
        ("archive now --agent echo", "--agent"),
        ("archive now --label a=b", "--label"),
        ("archive status --label a=b", "--label"),
        ("archive status --older-than 1h", "--older-than"),
        ("archive export --older-than 1h", "--older-than"),
        ("limits --group batch", "--group"),
        ("limits remove a:b --by ann", "--by"),
        ("concurrency remove crm --by ann", "--by"),
        ("caps remove crm --by ann", "--by"),
        ("caps remove crm --value a=1", "--value"),
        ("shares remove --by ann", "--by"),
        ("schedules run nightly --by ann", "--by"),
        ("--app shop new my_shop", "--app"),
        ("--app shop demo", "--app"),
        ("up --no-flower --flower-port 5000", "--flower-port"),
        ("up --no-http --http-port 5000", "--http-port"),
    ],
)
def test_it_is_refused_by_its_name(line: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = outcome(line.split(), capsys)
    assert code == 2, said
    assert named in said


@pytest.mark.parametrize("given", [["team"], ["team=a", "team=b"]])
def test_a_label_without_a_sign_is_not_one_to_remove(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    options = [part for pair in given for part in ("--set", pair)]
    code, said = outcome(["act", "label", "--all", *options], capsys)
    assert (code, "--set" in said) == (2, True), said


@pytest.mark.parametrize("digits", ["²", "1" * 5000])
def test_a_digit_that_is_no_number_is_refused(digits: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["schedules", "set", "nightly", "--cron", "* * * * *", "--agent", "echo", "-m", "hi", "--missed", digits]
    code, said = outcome(line, capsys)
    assert (code, "missed" in said) == (2, True), said


@pytest.mark.parametrize("command", [["submit", "echo", "-"], ["restore", "-"], ["restore", "FILE"]])
def test_bytes_that_are_no_text_are_refused(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "snapshot"
    file.write_bytes(b"\xff\xfe")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"))
    code, said = outcome([str(file) if word == "FILE" else word for word in command], capsys)
    assert (code, "no utf-8 text" in said) == (2, True), said
