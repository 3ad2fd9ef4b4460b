"""The ways in which a call to a server fails: it was never sent, its outcome is not known, or the server refused it."""

from __future__ import annotations

from typing import Final

AWAY: Final = "is away"
REFUSES: Final = "refuses the credentials"
UNUSABLE: Final = "cannot be used"


class ServerAway(Exception):
    """The server cannot be used now, and the call was not carried out: it may be made again.

    Attributes:
        server: Name of the server.
        why: The reason, for people and for the model.
        seconds: Time after which another try is worth while.
        trouble: What is wrong, in the words of a sentence about the server: it is away, refuses, or is unusable.
    """

    def __init__(self, server: str, why: str, seconds: float = 1.0, *, trouble: str = AWAY) -> None:
        super().__init__(f"the MCP server {server!r} {trouble}: {why}")
        self.server = server
        self.why = why
        self.seconds = seconds
        self.trouble = trouble


class ConnectionLost(Exception):
    """The connection ended during a call: the server may have carried it out.

    Attributes:
        server: Name of the server.
    """

    def __init__(self, server: str, why: str) -> None:
        super().__init__(f"the connection to the MCP server {server!r} ended during the call: {why}")
        self.server = server


class MCPToolError(Exception):
    """The server has answered a call with an error, which the model reads."""


class ToolFailed(MCPToolError):
    """The tool itself has said that the call failed: its outcome is known, whatever earlier tries came to."""


class AnswerUnreadable(MCPToolError):
    """The server has answered with something that is no answer of the protocol: it may have carried out the call."""


class AnswerTooLarge(MCPToolError):
    """The server's answer is longer than a message may be, and was not read."""


class CallRefused(MCPToolError):
    """The server does not allow the call with these credentials."""
