"""Search every interleaving of the model: `cd tests && python -m model.explore --help`.

States that differ only in which worker is which are one state.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Final

from .command_line import show_searches
from .events import EVENTS
from .invariants import is_prefix, violations
from .protocol_model import successors
from .search import Goal, Rules, Search, search
from .values import Config, Effect, State, canonical, finished, initial

_OUTCOMES = ("no call", "ok", "unknown", "not run")
_CLAIMS = ("nobody", "worker 1", "worker 2", "a dead claim")


def explore(config: Config, *, limit: int | None = None) -> Search[State, Config]:
    """Search one configuration, or up to `limit` of its states.

    Without another fault, and without a client doing anything, each state must be able to finish.
    """
    return search(RULES, config, limit=limit)


def _histories(before: State, after: State) -> Iterator[str]:
    if after.ghost is not before.ghost and not is_prefix(before, after):
        yield "I1: the history seen before is not a prefix of this one"


def _happens_by_itself(event: str) -> bool:
    return not event.startswith(("fault.", "user.", "stop.", "delete.", "submit.")) and not event.endswith("reply lost")


def _describe(state: State) -> str:
    session = state.session
    words = [
        "deleted"
        if session.deleted
        else "over"
        if session.over
        else f"step {session.position + 1}"
        if session.position < 2
        else "second execution"
    ]
    if session.claim:
        words.append(f"claim: {_CLAIMS[session.claim]}{'' if session.lease else ' without lease'}")
    if session.cancel:
        words.append("cancel")
    if session.answer:
        words.append("answer journaled")
    if session.begun or session.ended:
        words.append(f"call {'ended' if session.ended else f'begun by {_CLAIMS[session.begun]}'}")
    if session.inbox:
        words.append(f"inbox: {session.inbox}")
    queued = [str(position + 1) for position, count in enumerate(state.queue) for _ in range(count)]
    words.append(f"queue: {' '.join(queued) or 'empty'}")
    if any(state.ghost.effects):
        words.append(f"effects: {state.ghost.effects[0]} {state.ghost.effects[1]}")
    if state.ghost.history:
        history = ", ".join(f"{position + 1} {_OUTCOMES[outcome]}" for position, outcome in state.ghost.history)
        words.append(f"history: {history}")
    return " · ".join(words)


RULES: Final = Rules(
    initial=initial,
    successors=successors,
    violations=violations,
    change_violations=_histories,
    canonical=canonical,
    goals=(Goal("I2: from here nothing can finish any more", lambda state, _: finished(state), _happens_by_itself),),
    events=EVENTS,
    describe=_describe,
)


def configurations(effects: tuple[Effect, ...] = tuple(Effect), *, faults: int = 1) -> Iterator[tuple[str, Config]]:
    """The configurations of a whole run, each with its name."""
    for effect in effects:
        for fused in (True, False):
            publish = "fused" if fused else "separate publish"
            for message, stop in ((False, False), (True, False), (False, True), (True, True)):
                clients = " + ".join(name for name, there in (("message", message), ("stop", stop)) if there)
                name = f"{effect}, {clients or 'alone'}, {publish}"
                yield name, Config(effect, message=message, stop=stop, fused=fused, faults=faults)
    yield "answer that cannot be parsed", Config(message=True, unusable=True, faults=faults)
    yield "budget of no step", Config(budget=0, message=True, faults=faults)
    yield "budget of one step", Config(budget=1, message=True, faults=faults)
    yield "unsafe, stop, a trusted clock", Config(Effect.UNSAFE, stop=True, clock=True, faults=faults)
    yield "message, stop and deletion", Config(message=True, stop=True, delete=True, faults=faults)
    yield "unsafe, deletion", Config(Effect.UNSAFE, delete=True, faults=faults)
    yield "a long step in front of it in the due index", Config(neighbour=True, faults=faults)


def main(arguments: list[str] | None = None) -> int:
    """Search, print, and say by the exit code whether everything holds."""
    options = _options(arguments)
    effects = (options.effect,) if options.effect else tuple(Effect)
    return show_searches(
        (name, explore(_with_options(config, options), limit=options.limit))
        for name, config in configurations(effects, faults=options.faults)
        if not (options.one_client and config.message and config.stop)
    )


def _with_options(config: Config, options: argparse.Namespace) -> Config:
    return config._replace(
        crashes=options.crashes,
        pauses=options.pauses,
        replies=options.replies,
        messages=options.messages,
        clock=options.clock or config.clock,
    )


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m model.explore", description="Search every interleaving of the model."
    )
    parser.add_argument("--faults", type=int, default=1, help="faults of all kinds together (1)")
    parser.add_argument("--crashes", type=int, default=2, help="of them at most so many crashes (2)")
    parser.add_argument("--pauses", type=int, default=2, help="pauses longer than the lease (2)")
    parser.add_argument("--replies", type=int, default=1, help="lost replies (1)")
    parser.add_argument("--messages", type=int, default=1, help="lost or repeated messages (1)")
    parser.add_argument("--effect", type=Effect, choices=list(Effect), help="only this effect class")
    parser.add_argument("--one-client", action="store_true", help="not both a message and a stop")
    parser.add_argument("--clock", action="store_true", help="let workers trust their own clocks")
    parser.add_argument("--limit", type=int, help="most states of one configuration")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
