"""Everything that can happen in the model of holders, in words."""

from __future__ import annotations

from typing import Final

EVENTS: Final[dict[str, str]] = {
    "message.taken": "takes a message, and claims the step where it may",
    "claim.lost": "finds its claim gone",
    "stop.passes": "ends a step that was asked to stop, without a holder",
    "holder.free": "finds a holder free",
    "holder.taken": "takes a holder, and begins the step",
    "holder.refused": "gets no holder; its session stands in the line",
    "release.put off": "puts the step off",
    "release.stop": "finds that the step was asked to stop, and publishes it",
    "release.looked": "looks whether it may go by now",
    "lease.restored": "takes the lease back that has ended",
    "holder.taken back": "takes the holder again that has ended",
    "step.given up": "gives the step up, since another one has its holder",
    "commit.made": "commits, and gives the claim back",
    "commit.carried on": "commits, and keeps its claim and its holder for the next step",
    "holder.given": "gives the holder back, and calls who may go",
    "call.made": "wakes a session that was called, or takes it out of the line",
    "sweep.found lost": "the sweep publishes a step that was lost",
    "sweep.calls": "the sweep calls who may go",
    "sweep.wakes": "the sweep wakes a session that was called, or takes it out of the line",
    "limit.raised": "somebody raises the limit",
    "stop.asked": "somebody stops a session",
    "time.lease ended": "the lease of a dead claim ends",
    "time.holder ended": "the holder of a dead claim ends",
    "time.call forgotten": "a call is some time ago",
    "fault.crash": "dies",
    "fault.pause": "is paused for longer than its lease",
    "fault.message lost": "a message is lost",
}
IMPOSSIBLE: Final = frozenset({"holder.free"})
