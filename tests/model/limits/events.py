"""Everything that can happen in the model of limits, in words."""

from __future__ import annotations

from typing import Final

EVENTS: Final[dict[str, str]] = {
    "step.claimed": "a worker claims a step, and looks whether it is paused",
    "reserve.admitted": "reserves its request",
    "reserve.admitted, reply lost": "reserves its request; the reply is lost",
    "reserve.probe": "may send its request as the probe",
    "reserve.probe, reply lost": "may send its request as the probe; the reply is lost",
    "reserve.refused": "gets an appointment",
    "reserve.refused, reply lost": "gets an appointment; the reply is lost",
    "reserve.looked": "finds that its request may go",
    "reserve.added": "counts its request",
    "provider.answered": "gets the answer",
    "provider.answered, dearer": "gets an answer that used more than was reserved",
    "provider.refused": "is refused by the provider",
    "provider.away": "gets no answer",
    "settle.made": "journals the answer and settles the request",
    "settle.made, reply lost": "journals the answer and settles the request; the reply is lost",
    "settle.closed": "settles the probe, which closes the breaker",
    "release.put off": "gives its claim back; the step is put off",
    "release.free again": "gives its claim back, and finds that nothing holds the step back any more",
    "forward.by the probe": "brings forward what the breaker had put off",
    "forward.by the client": "the client brings forward what its change has freed",
    "limit.set": "somebody sets another limit",
    "pause.ended": "somebody ends the pause",
    "time.refilled": "time makes room for a request",
    "time.probe": "the time of the next probe comes",
    "time.due again": "the time of a step that was put off comes",
    "lease.ended": "the lease of a dead claim ends",
    "provider.went away": "the provider goes away",
    "provider.came back": "the provider comes back",
    "fault.crash": "dies",
    "fault.settled, then dead": "journals the answer, settles the request, and dies before it sees the reply",
}
# Reached by mutants only.
IMPOSSIBLE: Final = frozenset({"reserve.looked", "reserve.added"})
