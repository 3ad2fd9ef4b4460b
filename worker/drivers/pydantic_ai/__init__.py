"""A model of any provider, through pydantic-ai.

    driver    the two verbs: ask once, read the answer
    models    from a model's name to a client of its provider
    history   from our messages to pydantic-ai's, and what a provider needs back of its own answers
    answers   how an answer is journaled, and read
    output    structured output
    failures  the one table of what can go wrong

Nothing here imports pydantic-ai before a driver is used: it is an extra, and takes a second.
"""

from __future__ import annotations

from ...lazy_names import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
