"""Uses corral's MCP server with the official client, and prints what it got as JSON.

Arguments: the protocol ("auto" or "legacy"), then an address, or a command with its arguments.
"""

import asyncio
import json
import os
import sys

from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters

MODEL = "corral/tiny-chat"


async def main(mode, target):
    where = target[0]
    if len(target) > 1:
        where = StdioServerParameters(command=where, args=target[1:], env=dict(os.environ))
    steps = []

    async def progress(step, total, message):
        steps.append([step, total, message])

    async with Client(where, mode=mode) as client:
        tools = await client.list_tools()
        answer = await client.call_tool(
            "chat",
            {"model": MODEL, "prompt": "What is the capital of France?", "temperature": 0},
            progress_callback=progress,
        )
        loaded = await client.call_tool("load_model", {"model": MODEL, "num_ctx": 1024}, progress_callback=progress)
        refused = await client.call_tool("chat", {"model": "no/such", "prompt": "x"})
        resources = await client.list_resources()
        card = await client.read_resource(str(resources.resources[0].uri))
        try:
            await client.read_resource("corral://models/no/such")
            missing = None
        except MCPError as error:
            missing = error.error.code
        print(
            json.dumps(
                {
                    "tools": sorted(tool.name for tool in tools.tools),
                    "text": answer.content[0].text,
                    "data": answer.structured_content,
                    "loaded": loaded.structured_content,
                    "steps": steps,
                    "refused": [refused.is_error, refused.structured_content],
                    "card": card.contents[0].text,
                    "missing": missing,
                }
            )
        )


asyncio.run(main(sys.argv[1], sys.argv[2:]))
