import asyncio
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from trials import *

provider = OpenAIProvider(base_url=f"{ADDRESS}/v1", api_key="any")


class CityReport(BaseModel):
    city: Literal["Paris", "Rome"]
    warm: bool
    rank: Literal["1", "2"]


def agent(name=MODEL, **more):
    return Agent(OpenAIChatModel(name, provider=provider), model_settings={"temperature": 0}, **more)


def chat():
    same(agent().run_sync(QUESTION).output, ANSWER)


def system():
    same(agent(system_prompt="You are Leo.").run_sync("Who are you?").output, "I am Leo.")


def stream():
    async def pieces():
        async with agent().run_stream(QUESTION) as result:
            return [piece async for piece in result.stream_text(delta=True, debounce_by=None)]

    return pieces_of(asyncio.run(pieces()))


def usage():
    counts = agent().run_sync(QUESTION).usage
    same((counts.input_tokens, counts.output_tokens), (19, 9))
    return "19 + 9 tokens"


def one_tool():
    asked = []
    weather = agent()

    @weather.tool_plain
    def get_weather(city: str) -> str:
        """Get the current weather in a city"""
        asked.append(city)
        return "sunny"

    said = weather.run_sync(ASK_WEATHER).output
    same((asked, said), (["Paris"], SAY_WEATHER))
    return said


def schema():
    assert isinstance(agent(output_type=NativeOutput(CityReport)).run_sync(QUESTION).output, CityReport)
    return "NativeOutput with pydantic"


def not_found():
    error = failure(ModelHTTPError, lambda: agent("no/such").run_sync(QUESTION))
    same(error.status_code, 404)
    return "ModelHTTPError, status 404"


report(
    "pydantic-ai-slim",
    {
        "chat": chat,
        "system": system,
        "stream": stream,
        "usage": usage,
        "tools": one_tool,
        "schema": schema,
        "not_found": not_found,
    },
)
