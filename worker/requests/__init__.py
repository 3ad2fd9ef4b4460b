"""Requests: what a step asks of people and services, as seen by those who ask and those who answer.

The items of a question, the check of an answer, signed tokens and remembered approvals belong here; all are values and
pure functions. The stored values themselves are in `worker.state`, their transactions in `worker.store`, and what a
step does with an answer in `worker.engine`.
"""

from __future__ import annotations

from ..lazy_names import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
