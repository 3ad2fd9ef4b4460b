"""Names without the system's help."""

from __future__ import annotations

import os
import random

from celery_agents.worker.unique import unique_hex


def test_they_differ_whatever_others_seed() -> None:
    random.seed(1)
    first = unique_hex()
    random.seed(1)
    names = {first, *(unique_hex() for _ in range(10_000))}
    assert len(names) == 10_001
    assert all(len(name) == 32 and int(name, 16) >= 0 for name in names)


def test_a_forked_child_makes_others_than_its_parent() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, unique_hex().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 32).decode() != unique_hex()
