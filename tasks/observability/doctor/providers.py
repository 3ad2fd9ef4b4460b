"""Checks of what holds requests to model providers back: limits, outages, quotas, pauses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ....worker.engine.flow_texts import (
    bucket_state,
    describe_limits,
    describe_moment,
    describe_parts,
    describe_pause,
    describe_shares,
    describe_undefined,
    describe_waiting,
)
from ....worker.moments import moment
from ...client.provider_notes import find_unnamed, find_unused, find_unused_cap
from ...client.shares import Shares
from ...publishing import StepPublisher
from ..provider_jobs import tally_jobs
from .findings import Finding, Installation

_ADVICE: Final[Mapping[str, str]] = {
    "closed": "raise it with celery-agents limits set, or remove it; its sessions wait, without an attempt",
    "quota": "raise the quota with the provider, then: celery-agents unpause model {model}",
    "away": "its sessions continue by themselves; look at the provider's status page",
}
_MUCH: Final = 0.8
"""Share of a spend cap from which it is told."""
_MOST_SHOWN: Final = 8


def check_pauses(installation: Installation) -> Iterator[Finding]:
    """Pauses that have not ended; one without an end may have been forgotten."""
    for pause in installation.store.flow.view().pauses.values():
        what = describe_pause(pause)
        advice = "" if pause.until else "end it, when its time has come: celery-agents unpause KIND NAME"
        yield Finding.judge("paused", what, advice)


def check_concurrency(installation: Installation) -> Iterator[Finding]:
    """Concurrency limits of 0, those that no agent names, and names that nobody has defined."""
    flow, workers = installation.store.flow, installation.workers
    known = flow.view().concurrency
    for status in flow.concurrency():
        counts = ", ".join(describe_parts(status))
        notes = find_unnamed(status.limit, workers)
        what = f"{status.limit.name}: {' '.join(notes) or counts or 'nothing waits'}"
        advice = "correct it, or: celery-agents concurrency remove NAME" if notes else ""
        yield Finding.judge("concurrency", what, advice)
    for name in sorted({name for facts in workers.values() for name in facts.get("concurrency", ())} - known.keys()):
        yield Finding.warn("concurrency", describe_undefined(name), "set it; what names it waits until then")


def check_caps(installation: Installation) -> Iterator[Finding]:
    """Spend caps, what is spent of them, and those that may not be meant."""
    for status in installation.store.flow.caps():
        cap, notes = status.cap, find_unused_cap(status.cap, installation.workers)
        full = [each for each in status.spent if each.share >= _MUCH]
        told = [f"{each.value or 'all'} {each.usd:.4g} $ of {each.most:g} $" for each in full[:_MOST_SHOWN]]
        what = f"{cap.name}, a {cap.per}: {' '.join((*notes, ', '.join(told))).strip() or 'enough is left'}"
        advice = "correct it, or: celery-agents caps remove NAME" if notes else ""
        if full:
            advice = "raise it, or let it hold: celery-agents caps set NAME --usd N --per PERIOD"
        yield Finding.judge("cap", what, advice)


def check_jobs(installation: Installation) -> Iterator[Finding]:
    """Jobs at providers, and those that have not ended within their window."""
    housekeeping = installation.store.housekeeping
    tally = tally_jobs(housekeeping.provider_jobs(), housekeeping.now_ms())
    if tally.oldest_ms is None:
        return
    most = [f"{count} of {model}, {window}" for (model, window), count in tally.counts.most_common(_MOST_SHOWN)]
    what = f"{', '.join(most)}; the oldest since {describe_moment(moment(tally.oldest_ms))} UTC"
    if tally.late:
        late = f"{tally.late} later than their window: {', '.join(tally.late_sessions)}"
        advice = (
            "an hour behind it a job is asked again; of held sessions and agents without a worker nobody looks at it"
        )
        yield Finding.warn("jobs at providers", f"{what}; {late}", advice)
    else:
        yield Finding.ok("jobs at providers", what)


def check_shares(installation: Installation) -> Iterator[Finding]:
    """Fair shares, and whose steps wait."""
    shares = Shares(lambda: installation.store, StepPublisher(installation.app, installation.settings))
    status = shares.get()
    if status.shares is None and not status.waiting:
        return
    most = [f"{each.share or '(without the label)'} {describe_waiting(each)}" for each in status.waiting[:_MOST_SHOWN]]
    what = f"{describe_shares(status.shares)}; {', '.join(most) or 'no step waits'}"
    yield Finding.judge("shares", what, "" if shares.have_effect else "have no effect: the broker is no Redis")


def check_providers(installation: Installation) -> Iterator[Finding]:
    """Providers that are away, used-up quotas, limits of 0, and limits of a model or group that no agent has."""
    statuses = installation.store.flow.buckets()
    for status in statuses:
        state, sentence = bucket_state(status)
        group = f", group {status.bucket.group}" if status.bucket.group else ""
        what = f"{status.bucket.model}{group}: {sentence}; {describe_limits(status) or 'no limit is known'}"
        yield Finding.judge("provider", what, _ADVICE.get(state, "").format(model=status.bucket.model))
    for limit in {status.limit.field: status.limit for status in statuses if status.limit is not None}.values():
        for note in find_unused(limit, installation.workers):
            yield Finding.warn("limit", f"{limit.field}: {note}", "correct it, or: celery-agents limits remove")
