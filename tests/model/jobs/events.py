"""Everything that can happen in the model of jobs at a provider, in words."""

from __future__ import annotations

from typing import Final

EVENTS: Final[dict[str, str]] = {
    "claim.made": "claims the step, and reads its journal",
    "claim.lost": "finds its claim gone, and leaves",
    "job.intended": "journals that it is about to create a job",
    "job.created": "creates the job",
    "job.created, reply lost": "creates the job; the reply is lost",
    "job.kept": "journals the id of the job, and puts it into the index",
    "job.asked again": "finds a job without an id that nobody can look for, and asks again",
    "job.found": "finds the job by its key",
    "job.not there": "finds no job, when nobody can create it any more",
    "job.perhaps there": "finds no job while somebody may be creating it",
    "job.search ended": "gives a search up that cannot tell, behind the window of the job",
    "job.not wanted": "does not intend a job, since the execution is stopped, and settles it",
    "job.refused": "may not ask the provider now, and settles the job while it has the claim",
    "job.open": "asks for the answer, and there is none yet",
    "job.collected": "gets the answer",
    "job.broken": "is told that the job has failed, or is not known any more",
    "job.ended": "journals that the job gives no answer",
    "job.has ended": "finds that the job has an end, and gives the step back",
    "answer.journaled": "journals the answer, and that the job has ended",
    "answer.too late": "finds an answer journaled",
    "answer.rejected": "cannot use the answer, and takes it out of the journal",
    "money.reserved": "reserves money under the key of the job",
    "money.settled": "settles what was reserved for the job",
    "step.put off": "gives the step back until it asks again",
    "step.ended": "commits the step",
    "step.stopped": "ends the execution without an answer",
    "provider.done": "the provider finishes a job",
    "provider.broken": "a job fails at the provider",
    "provider.others ended": "a batch of others ends, which might have been the job",
    "clean.removed": "cancels a job of a step that is past, charges what it had answered, and removes it from the index",
    "stop.made": "somebody stops the execution",
    "retry.made": "somebody retries the execution that was stopped",
    "time.due": "the time to ask again has come",
    "lease.ended": "the lease of a dead claim ends",
    "fault.crash": "dies",
    "fault.pause": "is paused for longer than its lease",
}
IMPOSSIBLE: Final = frozenset[str]()
