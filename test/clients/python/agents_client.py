import asyncio
import os
from typing import Literal

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
from openai import AsyncOpenAI, NotFoundError
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel
from smolagents import OpenAIModel, Tool
from trials import *

BASE = f"{ADDRESS}/v1"


class CityReport(BaseModel):
    city: Literal["Paris", "Rome"]
    warm: bool
    rank: Literal["1", "2"]


def trials_of(model_of):
    """What is tried by one of its two APIs."""
    asked = []

    @function_tool
    def get_weather(city: str) -> str:
        """Get the current weather in a city"""
        asked.append(city)
        return "sunny"

    def run(text=QUESTION, name=MODEL, **more):
        # A client of the last run belongs to an event loop that is closed.
        model = model_of(name, AsyncOpenAI(base_url=BASE, api_key="any", max_retries=0))
        agent = Agent(name="agent", model=model, model_settings=ModelSettings(temperature=0), **more)
        return Runner.run_sync(agent, text)

    def chat():
        same(run().final_output, ANSWER)

    def system():
        same(run("Who are you?", instructions="You are Leo.").final_output, "I am Leo.")

    def stream():
        async def pieces():
            model = model_of(MODEL, AsyncOpenAI(base_url=BASE, api_key="any"))
            agent = Agent(name="agent", model=model, model_settings=ModelSettings(temperature=0))
            events = Runner.run_streamed(agent, QUESTION).stream_events()
            data = [event.data async for event in events if event.type == "raw_response_event"]
            return [one.delta for one in data if isinstance(one, ResponseTextDeltaEvent)]

        return pieces_of(asyncio.run(pieces()))

    def usage():
        counts = run().context_wrapper.usage
        same((counts.input_tokens, counts.output_tokens), (19, 9))
        return "19 + 9 tokens"

    def one_tool():
        asked.clear()
        said = run(ASK_WEATHER, tools=[get_weather]).final_output
        same((asked, said), (["Paris"], SAY_WEATHER))
        return said

    def schema():
        assert isinstance(run(output_type=CityReport).final_output, CityReport)
        return "output_type with pydantic"

    def not_found():
        failure(NotFoundError, lambda: run(name="no/such"))
        return "NotFoundError"

    return {
        "chat": chat,
        "system": system,
        "stream": stream,
        "usage": usage,
        "tools": one_tool,
        "schema": schema,
        "not_found": not_found,
    }


report("openai-agents", trials_of(OpenAIChatCompletionsModel), way="chat completions")
report("openai-agents", trials_of(OpenAIResponsesModel), way="Responses API")


def small(name=MODEL):
    return OpenAIModel(model_id=name, api_base=BASE, api_key="any", temperature=0, client_kwargs={"max_retries": 0})


class GetWeather(Tool):
    name = WEATHER["name"]
    description = WEATHER["description"]
    inputs = {"city": {"type": "string", "description": "the city"}}
    output_type = "string"

    def forward(self, city: str):
        return "sunny"


def said(text):
    return [{"role": "user", "content": [{"type": "text", "text": text}]}]


def small_chat():
    reply = small().generate(said(QUESTION))
    same((reply.content, reply.token_usage.input_tokens), (ANSWER, 19))


def small_stream():
    return pieces_of([delta.content for delta in small().generate_stream(said(QUESTION))])


def small_tool():
    reply = small().generate(said(ASK_WEATHER), tools_to_call_from=[GetWeather()])
    call = reply.tool_calls[0].function
    arguments = call.arguments if isinstance(call.arguments, dict) else json.loads(call.arguments)
    same((call.name, arguments), (WEATHER["name"], PARIS))
    return "required by the client"


def small_not_found():
    error = failure(Exception, lambda: small("no/such").generate(said(QUESTION)))
    assert "model_not_found" in str(error), error
    return type(error).__name__


report(
    "smolagents",
    {"chat": small_chat, "stream": small_stream, "forced_tool": small_tool, "not_found": small_not_found},
)
