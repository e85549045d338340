import json

import httpx
import openai
from pydantic import BaseModel
from trials import *
from typing import Literal

client = openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key="any")
create = client.chat.completions.create
tools = [{"type": "function", "function": WEATHER}]
response_tool = {"type": "function", **WEATHER, "strict": True}


class CityReport(BaseModel):
    city: Literal["Paris", "Rome"]
    warm: bool
    rank: Literal["1", "2"]


def ask(content=QUESTION, **more):
    return create(model=MODEL, temperature=0, messages=[{"role": "user", "content": content}], **more)


def calls_of(message):
    return [json.loads(call.function.arguments) for call in message.tool_calls]


def models():
    assert MODEL in [model.id for model in client.models.list()]
    same(client.models.retrieve(MODEL).id, MODEL)
    return "and one by its id"


def chat():
    choice = ask().choices[0]
    same((choice.message.content, choice.finish_reason), (ANSWER, "stop"))


def stream():
    with ask(stream=True) as chunks:
        return pieces_of(chunk.choices[0].delta.content for chunk in chunks if chunk.choices)


def usage():
    whole = ask().usage
    streamed = [chunk.usage for chunk in ask(stream=True, stream_options={"include_usage": True}) if chunk.usage]
    same(len(streamed), 1)
    for counts in (whole, streamed[0]):
        same((counts.prompt_tokens, counts.completion_tokens, counts.total_tokens), (19, 9, 28))
    return "whole and streamed: 19 + 9 tokens"


def stop():
    stopped, short = ask(stop=[" of France"]).choices[0], ask(max_tokens=4).choices[0]
    same((stopped.message.content, stopped.finish_reason), ("The capital", "stop"))
    same((short.message.content, short.finish_reason), ("The capital of Fra", "length"))


def choices():
    same([choice.message.content for choice in ask(n=2).choices], [ANSWER, ANSWER])
    return "n: 2"


def logprobs():
    tokens = ask(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    same("".join(token.token for token in tokens), ANSWER)
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in tokens)
    return "with two alternatives each"


def completions():
    asked = {"model": MODEL, "temperature": 0, "prompt": "The capital of", "max_tokens": 6}
    whole = client.completions.create(**asked).choices[0].text
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True) if chunk.choices)
    assert whole
    same(streamed, whole)
    return "whole and streamed"


def one_tool():
    choice = ask(ASK_WEATHER, tools=tools).choices[0]
    same((calls_of(choice.message), choice.finish_reason), ([PARIS], "tool_calls"))
    result = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "sunny"}
    messages = [{"role": "user", "content": ASK_WEATHER}, choice.message, result]
    said = create(model=MODEL, temperature=0, messages=messages, tools=tools).choices[0].message.content
    same(said, SAY_WEATHER)
    return said


def two_tools():
    same(calls_of(ask(ASK_TWO, tools=tools).choices[0].message), BOTH)
    return "Paris and Rome"


def streamed_tools():
    messages = [{"role": "user", "content": ASK_TWO}]
    with client.chat.completions.stream(model=MODEL, temperature=0, messages=messages, tools=tools) as events:
        message = events.get_final_completion().choices[0].message
    same(calls_of(message), BOTH)
    return "two, assembled by the helper"


def json_mode():
    messages = [{"role": "system", "content": JSON_SYSTEM}, {"role": "user", "content": ASK_WEATHER}]
    reply = create(model=MODEL, temperature=0, messages=messages, response_format={"type": "json_object"})
    same(json.loads(reply.choices[0].message.content), JSON_ANSWER)


def schema():
    reply = client.chat.completions.parse(model=MODEL, temperature=0, messages=USER, response_format=CityReport)
    assert isinstance(reply.choices[0].message.parsed, CityReport)
    return "parsed by the helper for pydantic"


def embeddings():
    decoded = client.embeddings.create(model=MODEL, input=["red", "blue", "red"])
    plain = client.embeddings.create(model=MODEL, input="red", encoding_format="float")
    return same_vectors(*(item.embedding for item in [*decoded.data, *plain.data]))


def responses():
    asked = {"model": MODEL, "temperature": 0}
    first = client.responses.create(**asked, input=QUESTION)
    same((first.output_text, first.usage.input_tokens, first.usage.output_tokens), (ANSWER, 19, 9))
    called = client.responses.create(**asked, input=ASK_WEATHER, tools=[response_tool])
    call = next(item for item in called.output if item.type == "function_call")
    same(json.loads(call.arguments), PARIS)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    turns = [{"role": "user", "content": ASK_WEATHER}, *called.output, result]
    same(client.responses.create(**asked, input=turns, tools=[response_tool]).output_text, SAY_WEATHER)
    parsed = client.responses.parse(**asked, input=QUESTION, text_format=CityReport).output_parsed
    assert isinstance(parsed, CityReport)
    return "text, tool call and its result, JSON schema"


def streamed_responses():
    events = list(client.responses.create(model=MODEL, temperature=0, input=QUESTION, stream=True))
    same(events[-1].type, "response.completed")
    same([event.sequence_number for event in events], list(range(len(events))))
    note = pieces_of(event.delta for event in events if event.type == "response.output_text.delta")
    with client.responses.stream(model=MODEL, temperature=0, input=QUESTION) as helper:
        same(helper.get_final_response().output_text, ANSWER)
    return f"{note}; the helper too"


def fails(kind, content=QUESTION, **more):
    for streams in (False, True):
        asked = {"model": MODEL, "temperature": 0, "messages": [{"role": "user", "content": content}], "stream": streams}
        error = failure(kind, lambda: create(**{**asked, **more}))
    return f"{kind.__name__}, {error.code}"


def images():
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    return fails(openai.BadRequestError, [picture])


def wrong_key():
    at = lambda key: openai.OpenAI(base_url=f"{STRICT['address']}/v1", api_key=key)
    failure(openai.AuthenticationError, at("wrong").models.list)
    at(STRICT["key"]).models.list()
    return "AuthenticationError; the right key works"


def no_retries():
    sent = []
    counting = openai.DefaultHttpxClient(event_hooks={"request": [sent.append]})
    at = openai.OpenAI(base_url=f"{STRICT['address']}/v1", api_key=STRICT["key"], http_client=counting)
    error = failure(openai.InternalServerError, lambda: at.chat.completions.create(model=MODEL, messages=USER))
    same(len(sent), 1)
    return f"InternalServerError, {error.code}: sent once"


def cancel():
    chunks = create(model=ENDLESS, messages=USER, stream=True)
    return leaves_in_the_middle(chunks, chunks.close)


report(
    "openai",
    {
        "models": models,
        "chat": chat,
        "stream": stream,
        "usage": usage,
        "stop": stop,
        "choices": choices,
        "logprobs": logprobs,
        "completions": completions,
        "tools": one_tool,
        "two_tools": two_tools,
        "streamed_tools": streamed_tools,
        "json": json_mode,
        "schema": schema,
        "embeddings": embeddings,
        "responses": responses,
        "streamed_responses": streamed_responses,
        "images": images,
        "not_found": lambda: fails(openai.NotFoundError, model="no/such"),
        "bad_request": lambda: fails(openai.BadRequestError, temperature="hot"),
        "context": lambda: fails(openai.BadRequestError, LONG),
        "wrong_key": wrong_key,
        "no_retries": no_retries,
        "cancel": cancel,
    },
)
