from typing import Literal

import instructor
from haystack.components.embedders import OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret
from openai import NotFoundError, OpenAI
from pydantic import BaseModel
from trials import *

BASE = f"{ADDRESS}/v1"


class CityReport(BaseModel):
    city: Literal["Paris", "Rome"]
    warm: bool
    rank: Literal["1", "2"]


class Weather(BaseModel):
    """Get the current weather in a city"""

    city: str


def extractor(mode):
    return instructor.from_openai(OpenAI(base_url=BASE, api_key="any"), mode=mode)


def extract(mode, model, text=QUESTION, name=MODEL):
    ask = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_retries": 1}
    return extractor(mode).chat.completions.create(model=name, response_model=model, **ask)


def extracted_schema():
    assert isinstance(extract(instructor.Mode.JSON_SCHEMA, CityReport), CityReport)
    return "Mode.JSON_SCHEMA"


def extracted_tool():
    same(extract(instructor.Mode.TOOLS, Weather, ASK_WEATHER).city, "Paris")
    return "Mode.TOOLS"


def extracted_parts():
    client = extractor(instructor.Mode.JSON_SCHEMA)
    parts = list(client.chat.completions.create_partial(model=MODEL, response_model=CityReport, messages=USER, temperature=0))
    valid_report(parts[-1].model_dump())
    assert len(parts) > 2, parts
    return "growing objects"


def extracted_not_found():
    error = failure(Exception, lambda: extract(instructor.Mode.JSON_SCHEMA, CityReport, name="no/such"))
    assert "model_not_found" in str(error), error
    return "the message says so"


report(
    "instructor",
    {
        "forced_tool": extracted_tool,
        "schema": extracted_schema,
        "streamed_schema": extracted_parts,
        "not_found": extracted_not_found,
    },
)


def generator(name=MODEL, **more):
    settings = {"generation_kwargs": {"temperature": 0}, "max_retries": 0}
    return OpenAIChatGenerator(api_key=Secret.from_token("any"), model=name, api_base_url=BASE, **settings, **more)


def answered(messages, **more):
    return generator(**more).run(messages)["replies"][0]


def chat():
    reply = answered([ChatMessage.from_user(QUESTION)])
    same((reply.text, reply.meta["finish_reason"]), (ANSWER, "stop"))


def system():
    same(answered([ChatMessage.from_system("You are Leo."), ChatMessage.from_user("Who are you?")]).text, "I am Leo.")


def stream():
    pieces = []
    answered([ChatMessage.from_user(QUESTION)], streaming_callback=lambda chunk: pieces.append(chunk.content))
    return pieces_of(pieces)


def one_tool():
    weather = Tool(WEATHER["name"], WEATHER["description"], WEATHER["parameters"], lambda city: "sunny")
    asked = [ChatMessage.from_user(ASK_WEATHER)]
    reply = answered(asked, tools=[weather])
    same([call.arguments for call in reply.tool_calls], [PARIS])
    result = ChatMessage.from_tool("sunny", origin=reply.tool_calls[0])
    same(answered([*asked, reply, result], tools=[weather]).text, SAY_WEATHER)
    return SAY_WEATHER


def embeddings():
    embedder = OpenAITextEmbedder(api_key=Secret.from_token("any"), model=MODEL, api_base_url=BASE)
    return same_vectors(*(embedder.run(text)["embedding"] for text in ("red", "blue", "red")))


def not_found():
    failure(NotFoundError, lambda: generator("no/such").run([ChatMessage.from_user(QUESTION)]))
    return "NotFoundError"


report(
    "haystack-ai",
    {"chat": chat, "system": system, "stream": stream, "tools": one_tool, "embeddings": embeddings, "not_found": not_found},
)
