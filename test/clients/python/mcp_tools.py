"""A server of tools with the official SDK.

Arguments: the protocol ("auto" or "legacy"), and for HTTP a port; otherwise it uses standard input and output.
"""

import sys

from mcp import MCPError
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import METHOD_NOT_FOUND, RequestParams, ToolAnnotations

server = MCPServer("python-tools")
reads = ToolAnnotations(read_only_hint=True)


@server.tool(annotations=reads)
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool(annotations=reads)
async def version(context: Context) -> str:
    """Says which version of the protocol is spoken."""
    await context.report_progress(1, 2)
    return context.protocol_version


@server.tool(annotations=reads)
def fail() -> str:
    """Fails."""
    raise ValueError("This never works.")


@server.tool(annotations=reads)
def picture() -> Image:
    """Returns a picture."""
    return Image(data=b"1234", format="png")


async def refuse(context, params):
    raise MCPError(METHOD_NOT_FOUND, "Method not found")


mode, *port = sys.argv[1:]
if mode == "legacy":
    server._lowlevel_server.add_request_handler("server/discover", RequestParams, refuse)
if port:
    server.run("streamable-http", host="127.0.0.1", port=int(port[0]))
else:
    server.run()
