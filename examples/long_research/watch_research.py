"""Shows the plan, the notes and the summaries of a session while they grow: `python watch_research.py tides`."""

from __future__ import annotations

import sys

from celery_agents import AgentClient
from celery_agents.worker.capabilities import PlanEvent, ReflectionEvent, SummarizationEvent, smart_event


def watch(session: str) -> None:
    """Print each event of the long task, and at the end the answer with its price."""
    with AgentClient() as client:
        job = client.job(session)
        for event in job.events():
            told = smart_event(event.data) if event.type == "capability" else None
            match told:
                case PlanEvent(version=version, todo_list=steps):
                    print(f"plan {version}: " + ", ".join(f"[{each.status}] {each.step}" for each in steps), flush=True)
                case ReflectionEvent(turn=turn, text=text):
                    print(f"note {turn}: {text}", flush=True)
                case SummarizationEvent(covered=covered, summary_id=str()):
                    print(f"summary: {covered} messages in short", flush=True)
                case _:
                    pass
        state = client.show(session).state
        print(f"{state.status} after {state.step_count} steps for ${state.cost or 0:.2f}: {state.final_response}")


if __name__ == "__main__":
    watch(sys.argv[1])
