"""The step protocol as a small set of rules over one immutable state, for exhaustive search.

Two workers, one session. Its first execution has two steps, the second of them final, each with one tool call; a
message that comes too late for it starts a second execution of one step. Beside the workers there are the sweep, a
client that sends one message, one that stops the first execution and one that deletes the session, time (a dead worker's lease ends) and faults:
crashes, pauses longer than the lease, lost replies, lost, repeated and reordered messages.

One rule is one round trip to Redis, or one thing that happens outside. WATCH is modelled as what it does: whoever
writes a watched key throws the watcher back to its reading (`_touch`). There are no clocks: whatever time may bring
can happen at any moment.

A rule yields `(event, who, next state)`; `EVENTS` says each event in words. `violations` are the invariants of
docs/protocol.md. `Mutant` breaks one rule at a time, and each has to be found. `explore.py` searches.
"""

from __future__ import annotations

from .values import Config, Moves, State
from .worker import moves_of_worker
from .world import moves_of_delete, moves_of_queue, moves_of_stop, moves_of_sweep, moves_of_time, moves_of_user


def successors(state: State, config: Config) -> Moves:
    """Every next state, with the event that leads there and who did it (0: not a worker)."""
    for index in (0, 1):
        yield from moves_of_worker(state, config, index)
    yield from moves_of_time(state)
    yield from moves_of_sweep(state, config)
    yield from moves_of_queue(state)
    if config.message:
        yield from moves_of_user(state, config)
    if config.stop:
        yield from moves_of_stop(state, config)
    if config.delete:
        yield from moves_of_delete(state, config)
