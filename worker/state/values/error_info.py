"""`ErrorInfo`: an error as data. A stored state never names a class that a reader would have to import."""

from __future__ import annotations

from .field_types import Flag, Text
from .frozen import FrozenDict
from .value import Value


class ErrorInfo(Value):
    """An error in words that hold no secret.

    Attributes:
        kind: A short stable name, such as `tool_error`, `timeout`, `rate_limit`.
        message: For a person or a model.
        retryable: Trying again later may help.
        details: More, as JSON: an exception's class name, an HTTP status.
    """

    kind: Text
    message: Text = ""
    retryable: Flag = False
    details: FrozenDict = FrozenDict()
