"""Where the keys of a session are."""

from __future__ import annotations

import uuid

from celery_agents.worker.store.keys import root_of, shard_keys, shard_of


def test_the_shard_of_a_child_and_of_a_fork_is_their_root_s() -> None:
    for number in range(50):
        root = f"order-{number}"
        child = f"{root}.{uuid.uuid4().hex}"
        assert root_of(child) == root_of(root) == root
        assert shard_of(child, 16) == shard_of(root, 16)


def test_sessions_are_spread_over_all_shards() -> None:
    assert {shard_of(f"s{number}", 4) for number in range(100)} == set(range(4))


def test_a_child_shares_the_hash_tag_of_its_root_and_no_key() -> None:
    shards = shard_keys(8)
    root, child = (shards[shard_of(sid, 8)].session(sid) for sid in ("a", f"a.{uuid.uuid4().hex}"))
    assert root.shard.prefix == child.shard.prefix
    assert not {root.session, root.ctl, root.inbox, root.events} & {child.session, child.ctl, child.inbox, child.events}
