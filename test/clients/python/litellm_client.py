import os

# The list of prices is the packaged one: nothing but the server under test is asked.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from trials import *

litellm.suppress_debug_info = True
tools = [{"type": "function", "function": WEATHER}]


def trials_of(prefix, api_base):
    """What is tried by one of its providers."""

    def ask(content=QUESTION, model=MODEL, **more):
        asked = {"messages": [{"role": "user", "content": content}], "temperature": 0, **more}
        return litellm.completion(model=f"{prefix}/{model}", api_base=api_base, api_key="any", **asked)

    def calls_of(message):
        return [json.loads(call.function.arguments) for call in message.tool_calls]

    def chat():
        choice = ask().choices[0]
        same((choice.message.content, choice.finish_reason), (ANSWER, "stop"))

    def stream():
        return pieces_of([chunk.choices[0].delta.content for chunk in ask(stream=True)])

    def usage():
        counts = ask().usage
        same((counts.prompt_tokens, counts.completion_tokens), (19, 9))
        return "19 + 9 tokens"

    def one_tool():
        message = ask(ASK_WEATHER, tools=tools).choices[0].message
        same(calls_of(message), [PARIS])
        call = message.tool_calls[0]
        result = {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": "sunny"}
        turns = [{"role": "user", "content": ASK_WEATHER}, message.model_dump(), result]
        said = ask(messages=turns, tools=tools).choices[0].message.content
        same(said, SAY_WEATHER)
        return said

    def two_tools():
        same(calls_of(ask(ASK_TWO, tools=tools).choices[0].message), BOTH)
        return "Paris and Rome"

    def schema():
        wanted = {"type": "json_schema", "json_schema": {"name": "city_report", "schema": CITY_REPORT}}
        valid_report(json.loads(ask(response_format=wanted).choices[0].message.content))
        return "response_format"

    def fails(kind, **more):
        failure(kind, lambda: ask(**more))
        return kind.__name__

    def cancel():
        chunks = ask(model=ENDLESS, stream=True, max_tokens=TOKENS)
        return leaves_in_the_middle(chunks, chunks.completion_stream.close)

    return {
        "chat": chat,
        "stream": stream,
        "usage": usage,
        "tools": one_tool,
        "two_tools": two_tools,
        "schema": schema,
        "not_found": lambda: fails(litellm.NotFoundError, model="no/such"),
        "context": lambda: fails(litellm.BadRequestError, content=LONG),
        "cancel": cancel,
    }


def embeddings_of(prefix, api_base):
    def embeddings():
        inputs = ["red", "blue", "red"]
        reply = litellm.embedding(model=f"{prefix}/{MODEL}", input=inputs, api_base=api_base, api_key="any")
        return same_vectors(*(item["embedding"] for item in reply.data))

    return {"embeddings": embeddings}


def without(trials, *features):
    return {feature: trial for feature, trial in trials.items() if feature not in features}


hosted, ollamas = f"{ADDRESS}/v1", f"{ADDRESS}/ollama"
report("litellm", {**trials_of("openai", hosted), **embeddings_of("openai", hosted)}, way="openai/")
# These two have no way to close a stream.
chats = without(trials_of("ollama_chat", ollamas), "cancel")
report("litellm", {**chats, **embeddings_of("ollama", ollamas)}, way="ollama_chat/, ollama/")
# It makes a schema a tool, which the demo model does not call for a question that no tool is for.
report("litellm", without(trials_of("anthropic", ADDRESS), "cancel", "schema"), way="anthropic/")
