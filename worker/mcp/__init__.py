"""Tools of MCP servers: which servers an agent has, their lists of tools, the connections to them, and their calls.

The library `mcp` is imported in `session.py` and the modules below it only, and those inside functions: an agent is
defined without it. Journals, requests and effect classes belong to the engine.
"""

from .connections import ServerConnections
from .lists import RemoteTool, ToolList, read_list
from .server import MCPServer, check_servers, require_servers
from .tool import MCPTool, tools_of

__all__ = [
    "MCPServer",
    "MCPTool",
    "RemoteTool",
    "ServerConnections",
    "ToolList",
    "check_servers",
    "read_list",
    "require_servers",
    "tools_of",
]
