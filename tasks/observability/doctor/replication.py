"""Checks of a Redis that fails over: its role, its replicas, the Sentinels, and whether it takes writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ....config.redis_urls import uses_cluster, uses_sentinels
from ....config.settings import Settings
from ....worker.errors import ConfigurationError, StoreForbidden, StoreUnavailable
from ....worker.store.confirming import most_replicas
from ....worker.store.redis.outages import ADVICE
from ....worker.store.redis.sentinel_views import SentinelView, ask_sentinels, replica_times
from ..server_policy import check_replicas, following_replicas
from .findings import Finding, Installation, Level
from .server import CLOCK_TOLERANCE_SECONDS

_OTHERS_OF_THREE: Final = 2


def check_role(installation: Installation) -> Iterator[Finding]:
    """Redis is the primary, and with Sentinels a replica follows it."""
    facts = installation.server_facts
    if facts.get("role") == "slave":
        link = f"its link to {facts.get('master_host')}:{facts.get('master_port')} is {facts.get('master_link_status')}"
        advice = "point CELERY_AGENTS_REDIS_URL at the primary, or at Sentinels that know it"
        yield Finding.fail("role", f"a replica; {link}", advice)
        return
    connected, follow = int(facts.get("connected_slaves", "0")), following_replicas(facts)
    what = f"primary; {follow} of {connected} connected replicas follow"
    if uses_sentinels(installation.settings.redis_url) and not follow:
        yield Finding.fail("role", what, "start the replicas: without one, a failover has nowhere to go")
    elif follow < connected:
        yield Finding.warn("role", what, "look at the logs of the replicas: some lag behind or load")
    elif connected:
        yield Finding.ok("role", what)


def check_confirmations(installation: Installation) -> Iterator[Finding]:
    """As many replicas follow as have to confirm, and as many have to as keep what is confirmed."""
    settings, servers = installation.settings, _servers(installation)
    if not settings.replicas:
        return
    try:
        known = check_replicas([*servers.values()], settings)
    except ConfigurationError as error:
        yield Finding.fail("replicas", str(error), "workers do not start before that is corrected")
        return
    hosts = {each.host for each in known} | _primary_hosts(settings.redis_url)
    is_of_three_hosts = settings.replicas == 1 and len(known) == _OTHERS_OF_THREE and len(hosts) == _OTHERS_OF_THREE + 1
    found = [each for place, facts in servers.items() for each in _check_following(place, facts, settings)]
    if all(each.level is Level.OK for each in found) and len(known) > settings.replicas and not is_of_three_hosts:
        advice = "set CELERY_AGENTS_REPLICAS to their number, or run each server and its Sentinel on one of three hosts"
        what = f"{settings.replicas} of {len(known)} have to confirm, and a failover may choose one of the others"
        yield Finding.fail("replicas", what, advice)
    else:
        yield from found


def _servers(installation: Installation) -> dict[str, Mapping[str, str]]:
    """The facts of the primary, or in a cluster of each that answers, by its address."""
    if not uses_cluster(installation.settings.redis_url):
        return {"": installation.server_facts}
    nodes = installation.store.housekeeping.node_facts()
    return {place: facts for place, facts in nodes.items() if not isinstance(facts, StoreUnavailable)}


def _check_following(place: str, facts: Mapping[str, str], settings: Settings) -> Iterator[Finding]:
    connected, follow = int(facts.get("connected_slaves", "0")), following_replicas(facts)
    what = f"{follow} of the {settings.replicas} that have to confirm follow {place}".rstrip()
    if follow < settings.replicas:
        advice = "start them: until then actions are refused, and calls with effects wait"
        yield Finding.fail("replicas", what, advice)
    elif connected > most_replicas(settings):
        advice = "end what acknowledges like a replica, or correct CELERY_AGENTS_REPLICAS: nothing is confirmed"
        yield Finding.fail("replicas", f"{connected} are connected {place and f'to {place}'}".rstrip(), advice)
    else:
        yield Finding.ok("replicas", what)


def _primary_hosts(url: str) -> set[str]:
    """The hosts of the primaries that Sentinels name; usually one."""
    views = ask_sentinels(url) if uses_sentinels(url) else ()
    return {view.primary.rpartition(":")[0] for view in views if view.primary}


def check_writes(installation: Installation) -> Iterator[Finding]:
    """Redis takes writes."""
    try:
        installation.store.housekeeping.try_writing()
    except StoreForbidden:
        return  # a user that may only look
    except StoreUnavailable as error:
        code = next((code for code in ADVICE if code in str(error)), "")
        yield Finding.fail("writes", f"refused: {error}", ADVICE.get(code, "look at the log of Redis"))


def check_sentinels(installation: Installation) -> Iterator[Finding]:
    """The Sentinels answer, know the primary, and agree about it."""
    url = installation.settings.redis_url
    if not uses_sentinels(url):
        return
    views = ask_sentinels(url)
    away = [view for view in views if view.trouble]
    for view in away:
        advice = "start it, or take it out of CELERY_AGENTS_REDIS_URL"
        yield Finding.warn("sentinels", f"{view.address} does not answer: {view.trouble}", advice)
    yield from _compare([view for view in views if not view.trouble], len(views))
    yield from _check_clocks(installation)


def _compare(views: Sequence[SentinelView], total: int) -> Iterator[Finding]:
    named: dict[str | None, list[str]] = {}
    for view in views:
        named.setdefault(view.primary, []).append(view.address)
    if len(named) > 1:
        what = "; ".join(f"{primary or 'no such name'} by {', '.join(by)}" for primary, by in named.items())
        advice = "look at SENTINEL MASTERS on each; where a failover is under way, they agree within seconds"
        yield Finding.fail("sentinels", f"they name different primaries: {what}", advice)
    elif len(views) < max((view.quorum for view in views), default=0) or 2 * len(views) <= total:
        what = f"{len(views)} of {total} answer, too few to agree on a failover"
        yield Finding.fail("sentinels", what, "start the others")
    else:
        yield Finding.ok("sentinels", f"{len(views)} of {total} name {views[0].primary}; quorum {views[0].quorum}")


def _check_clocks(installation: Installation) -> Iterator[Finding]:
    """After a failover the clock of a replica counts."""
    primary = int(installation.server_facts["now_ms"]) / 1000
    for address, seconds in replica_times(installation.settings.redis_url):
        ahead = seconds - primary
        if abs(ahead) > CLOCK_TOLERANCE_SECONDS:
            what = f"the clock of replica {address} is {ahead:+.0f} s off the primary's"
            yield Finding.warn("clock", what, "run NTP on all servers; after a failover this one counts")
