"""A pytest plugin: pydantic as a version could be that lacks what `Internals` uses."""

from __future__ import annotations

from pydantic import BaseModel

# Without the mark pydantic builds every nested value by its constructor.
del BaseModel.__init__.__pydantic_base_init__  # pyright: ignore
