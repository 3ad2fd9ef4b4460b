"""Agents of pydantic-ai as durable agents: one step is one request to the model and the tool calls of its answer.

    durability    the capability that marks an agent, and its options
    definition    what is read from such an agent when its module is imported, and what is refused
    driver        asks the agent's model once, through the agent's own run
    deferring     calls that wait for a person or for a service, as requests
    tool          carries out one tool call of an answer, through the agent's own toolsets
    conversation  from the messages of a session to pydantic-ai's, and back
    internals     the attributes of pydantic-ai that carry no promise

Nothing here imports pydantic-ai before such an agent is found: it is an extra, and takes a second.
"""

from __future__ import annotations

from ..lazy_names import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
