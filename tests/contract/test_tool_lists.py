"""Lists of tools of remote servers, on every store."""

from __future__ import annotations

from celery_agents.worker.store.tool_lists import KEPT_MS, NewestList

from support.store import Bench


def test_a_list_is_shared_by_its_server_and_by_its_digest(bench: Bench) -> None:
    lists = bench.store.tool_lists
    assert lists.newest("crm") is None
    assert lists.get("d1") is None
    lists.save("crm", "d1", b"[1]", 60_000)
    newest = lists.newest("crm")
    assert newest is not None
    assert (newest.digest, newest.raw) == ("d1", b"[1]")
    assert 0 < newest.fresh_ms <= 60_000
    lists.save("crm", "d2", b"[2]", 60_000)
    assert lists.get("d1") == b"[1]", "steps are pinned to it"
    lists.forget_freshness("crm")
    assert lists.newest("crm") == NewestList("d2", b"[2]", 0)
    lists.keep("d1")
    assert 0 < bench.database("PTTL", bench.store.context.fleet.tool_list("d1")) <= KEPT_MS
