"""The k-th reply of Redis in a whole job is lost, for every k."""

from __future__ import annotations

import random
from pathlib import Path

from support.fault_proxy import FaultProxy
from support.lab import Lab
from support.verdict import Verdict

_COMMANDS_OF_STEPS = {
    "EXEC", "WATCH", "UNWATCH", "MULTI", "HMGET", "HGETALL", "HGET", "HSETNX", "HSET", "LRANGE", "TIME", "EXISTS", "BRPOP",
    "EVALSHA", "PEXPIRE", "LINDEX", "LPUSH", "ZADD", "XADD", "RPUSH", "DEL", "PTTL", "ZREM", "HDEL", "LTRIM", "PERSIST",
}  # fmt: skip

# One job may wait less often than another, when messages come together: so many in a row tell that there are no more.
_JOBS_WITH_FEWER = 3


def lose_each(directory: Path, seed: int, *, stride: int = 1, pairs: int = 0) -> Verdict:
    """A three-step job for each k, behind a proxy that loses the k-th reply; then sampled pairs of them.

    Args:
        stride: Every so many k only.
        pairs: Jobs that lose two replies.
    """
    chance = random.Random(seed)
    with Lab(directory) as lab, FaultProxy(lab.server.port) as proxy:
        url = lab.server.url(port=proxy.port)
        worker = lab.worker(url=url)
        k, last, fired, fewer = 1, 0, 0, 0
        while fewer < _JOBS_WITH_FEWER:
            happened = proxy.swallow_reply(k, commands=_COMMANDS_OF_STEPS)
            job = lab.submit(["keyed", "unsafe"], ["looked_up"])
            lab.wait_for_jobs(40, [job])
            proxy.calm()
            if happened():
                fired, last, fewer = fired + 1, k, 0
            else:
                fewer += 1
            k += stride
        for _ in range(pairs):
            for place in (chance.randint(1, last), chance.randint(1, last)):
                proxy.swallow_reply(place, commands=_COMMANDS_OF_STEPS)
            job = lab.submit(["keyed", "unsafe"], ["looked_up"])
            lab.wait_for_jobs(60, [job])
            proxy.calm()
        verdict = lab.verdict()
        verdict.counts["replies_of_a_job"] = last
        verdict.counts["replies_lost"] = fired
        verdict.counts["pairs_lost"] = pairs
        verdict.expect(worker.alive, "workers", "the worker has ended")
        # A job of three steps waits for some 34; what the worker asks by the clock is counted among them.
        verdict.expect(fired > 30 / stride, "vacuity", f"only {fired} replies were lost")
    return verdict
