"""The ways in which a call to a server fails: it was never sent, its outcome is not known, or the server refused it."""

from __future__ import annotations


class ServerAway(Exception):
    """The server could not be reached, and the call was not sent: it may be made again.

    Attributes:
        server: Name of the server.
        why: The reason, for people and for the model.
        seconds: Time after which another try is worth while.
    """

    def __init__(self, server: str, why: str, seconds: float = 1.0) -> None:
        super().__init__(f"the MCP server {server!r} is away: {why}")
        self.server = server
        self.why = why
        self.seconds = seconds


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


class AnswerTooLarge(MCPToolError):
    """The server's answer is longer than a message may be, and was not read."""
