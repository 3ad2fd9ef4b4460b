"""The file store with real processes: races, kills at every byte, damage, and a thousand sessions."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from celery_agents.worker.errors import InvalidInput, InvalidSessionFile, StateTooNew, StateUnreadable
from celery_agents.worker.session import AgentDefinition, AgentSession, FileSessionStore, SessionFactory

WRITERS = Path(__file__).resolve().parents[1] / "support" / "session_writers.py"


def run_writers(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(WRITERS), *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def create(store: FileSessionStore, session_id: str, message: str = "hello") -> AgentSession:
    session = SessionFactory().create(AgentDefinition(name="a"), session_id=session_id)
    return store.create(session.with_state(session.state.with_user_message(message)))


def test_of_two_processes_on_one_version_exactly_one_wins(tmp_path: Path) -> None:
    found = run_writers("race", str(tmp_path), "300")
    assert found == {"tries": 300, "right": 300, "version": 301}


def test_a_process_killed_at_any_byte_of_a_save_loses_nothing_older(tmp_path: Path) -> None:
    found = run_writers("kill", str(tmp_path))
    assert found["bytes"] > 300
    assert found == {"bytes": found["bytes"], "killed": found["bytes"], "lost": 0, "saved": True}


def test_a_save_that_finds_no_room_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileSessionStore(tmp_path)
    session = create(store, "s")

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        store.save(session)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.json", "s.lock"]
    assert store.load("s") == session


DYING_AGENT = '''
import os, signal, sys
from pathlib import Path
from celery_agents import Agent, tool
from celery_agents.testing import CallTool
from celery_agents.worker.session import (
    ContinueExecution, FileSessionStore, InlineRunner, SendMessage, SessionFactory, SessionRepository, SessionRuntime,
)
ledger = Path(sys.argv[1]) / "ledger"

def note(name: str) -> None:
    with ledger.open("a") as file:
        file.write(name + " ")

@tool(effect="pure")
def first() -> str:
    """The first."""
    note("first")
    return "1"

@tool(effect="pure")
def second() -> str:
    """The second."""
    note("second")
    if sys.argv[2] == "begin":
        os.kill(os.getpid(), signal.SIGKILL)
    return "2"

calls = [CallTool("first"), CallTool("second"), "done"]
agent = Agent("a", driver=lambda state: calls[len(state.steps)], tools=[first, second])
repository = SessionRepository(FileSessionStore(sys.argv[1]))
runner = InlineRunner([agent])
if sys.argv[2] == "begin":
    repository.create(SessionFactory().create(agent, session_id="s1"))
action = SendMessage("go", runner) if sys.argv[2] == "begin" else ContinueExecution(runner)
print(SessionRuntime(repository).execute("s1", action).state.final_response)
'''


def test_another_process_goes_on_after_the_last_saved_step_of_a_killed_one(tmp_path: Path) -> None:
    def run(what: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", DYING_AGENT, str(tmp_path), what]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    killed = run("begin")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    stored = FileSessionStore(tmp_path).load("s1")
    assert stored is not None
    assert (stored.version, stored.state.step_count) == (2, 1)
    done = run("continue")
    assert done.stdout.strip() == "done", done.stderr
    assert (tmp_path / "ledger").read_text().split() == ["first", "second", "second"]


def test_a_thousand_sessions_are_listed_without_reading_a_body(tmp_path: Path) -> None:
    """Counted by the kernel: the bytes that this process reads."""
    store = FileSessionStore(tmp_path)
    create(store, "s0", "x" * 200_000)
    text = (tmp_path / "s0.json").read_text()
    for number in range(1, 1000):
        (tmp_path / f"s{number}.json").write_text(text.replace('"s0"', f'"s{number}"'))
    before = read_bytes()
    found = store.list_headers()
    assert (found.count, found.unreadable) == (1000, ())
    assert read_bytes() - before < 20_000 * 1000, "a body has 200 000 bytes, and a file is read in blocks"


def read_bytes() -> int:
    status = Path(f"/proc/{os.getpid()}/io").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("rchar")).split()[1])


@pytest.mark.parametrize("damage", [b"", b"{", b"null\n{}\n", b'{"session_id": "s2", "agent_name": "a"}\n{}\n'])
def test_a_damaged_file_is_named_and_the_others_are_listed(tmp_path: Path, damage: bytes) -> None:
    store = FileSessionStore(tmp_path)
    session = create(store, "s1")
    create(store, "s3")
    (tmp_path / "s1.json").write_bytes(damage)
    for use in (lambda: store.load("s1"), lambda: store.save(session), lambda: create(store, "s1")):
        with pytest.raises(InvalidSessionFile, match=r"s1\.json"):
            use()
    found = store.list_headers()
    assert [info.session_id for info in found] == ["s3"]
    assert [name for name, _ in found.unreadable] == ["s1.json"]
    assert (tmp_path / "s1.json").read_bytes() == damage


def test_a_body_that_is_cut_off_is_named_when_it_is_loaded(tmp_path: Path) -> None:
    store = FileSessionStore(tmp_path)
    create(store, "s1")
    data = (tmp_path / "s1.json").read_bytes()
    (tmp_path / "s1.json").write_bytes(data[:-20])
    with pytest.raises(InvalidSessionFile) as caught:
        store.load("s1")
    assert caught.value.path == str(tmp_path / "s1.json")
    assert store.list_headers().count == 1


@pytest.mark.parametrize("name", ["../s1", "/etc/passwd", "a/b", "", ".", "s1.json", "s\0", "x" * 65])
def test_an_id_that_is_a_path_is_refused(tmp_path: Path, name: str) -> None:
    store = FileSessionStore(tmp_path / "sessions")
    for use in (store.load, store.exists, store.delete):
        with pytest.raises(InvalidInput):
            use(name)
    assert list(tmp_path.rglob("*")) == [tmp_path / "sessions"]


def test_a_file_is_one_json_document(tmp_path: Path) -> None:
    session = create(FileSessionStore(tmp_path), "s1")
    document = json.loads((tmp_path / "s1.json").read_text())
    assert document["info"]["session_id"] == "s1"
    assert AgentSession.from_dict(document) == session


def test_a_document_that_somebody_has_formatted_anew_is_read(tmp_path: Path) -> None:
    store = FileSessionStore(tmp_path)
    session = create(store, "s1")
    (tmp_path / "s1.json").write_text(json.dumps(json.loads((tmp_path / "s1.json").read_text()), indent=2))
    assert store.load("s1") == session
    assert list(store.list_headers()) == [session.info]
    assert store.save(session).version == 2


@pytest.mark.parametrize(("version", "refusal"), [(99, StateTooNew), (None, InvalidSessionFile)])
def test_a_state_of_another_version_hides_no_other_session(
    tmp_path: Path, version: int | None, refusal: type[StateUnreadable]
) -> None:
    store = FileSessionStore(tmp_path)
    create(store, "s1")
    create(store, "s3")
    document = json.loads((tmp_path / "s1.json").read_text())
    document["state"] = {**document["state"], "schema_version": version or 0}
    (tmp_path / "s1.json").write_text(json.dumps(document, indent=2))
    with pytest.raises(refusal):
        store.load("s1")
    found = store.list_headers()
    assert ([info.session_id for info in found], [name for name, _ in found.unreadable]) == (["s3"], ["s1.json"])


def test_a_file_of_an_earlier_version_is_read_and_written_as_one_document(tmp_path: Path) -> None:
    store = FileSessionStore(tmp_path)
    session = create(store, "s1")
    (tmp_path / "s1.json").write_bytes(b"%b\n%b\n" % (session.info.to_json(), session.to_json()))
    assert store.load("s1") == session
    assert list(store.list_headers()) == [session.info]
    saved = store.save(session)
    assert AgentSession.from_dict(json.loads((tmp_path / "s1.json").read_text())) == saved


@pytest.mark.parametrize("kind", ["folder", "loop"])
def test_what_cannot_be_read_is_named_and_the_others_are_listed(tmp_path: Path, kind: str) -> None:
    store = FileSessionStore(tmp_path)
    session = create(store, "s3")
    path = tmp_path / "s1.json"
    path.mkdir() if kind == "folder" else path.symlink_to(path)
    lone = SessionFactory().create(AgentDefinition(name="a"), session_id="s1")
    for use in (lambda: store.load("s1"), lambda: store.save(lone), lambda: store.create(lone)):
        with pytest.raises(InvalidSessionFile, match=r"s1\.json.*it cannot be read"):
            use()
    found = store.list_headers()
    assert (list(found), [name for name, _ in found.unreadable]) == ([session.info], ["s1.json"])
    assert not store.exists("s1")
    if kind == "folder":
        with pytest.raises(InvalidSessionFile, match="it is a folder"):
            store.delete("s1")
