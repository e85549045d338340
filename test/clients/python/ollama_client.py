import datetime

import ollama
from trials import *

client = ollama.Client(host=f"{ADDRESS}/ollama")
GREEDY = {"temperature": 0}
TAGGED = f"{MODEL}:latest"


def ask(content=QUESTION, at=client, **more):
    asked = {"model": MODEL, "options": GREEDY, "messages": [{"role": "user", "content": content}]}
    return at.chat(**{**asked, **more})


def get_weather(city: str) -> str:
    """Get the current weather in a city

    Args:
      city: The city
    """
    return "sunny"


def calls_of(message):
    return [dict(call.function.arguments) for call in message.tool_calls]


def models():
    listed = next(model for model in client.list().models if model.model == TAGGED)
    same((len(listed.digest), listed.details.format), (64, "gguf"))


def chat():
    reply = ask()
    same((reply.message.content, reply.done, reply.done_reason), (ANSWER, True, "stop"))


def stream():
    return pieces_of([part.message.content for part in ask(stream=True)])


def usage():
    reply = ask()
    same((reply.prompt_eval_count, reply.eval_count), (19, 9))
    assert reply.total_duration > reply.eval_duration > 1000
    return "19 + 9 tokens, durations in nanoseconds"


def stop():
    stopped = ask(options={**GREEDY, "stop": [" of France"]})
    short = ask(options={**GREEDY, "num_predict": 4})
    same((stopped.message.content, stopped.done_reason), ("The capital", "stop"))
    same((short.message.content, short.done_reason), ("The capital of Fra", "length"))


def completions():
    same(client.generate(model=MODEL, options=GREEDY, prompt=QUESTION).response, ANSWER)
    parts = list(client.generate(model=MODEL, options=GREEDY, prompt=QUESTION, stream=True))
    same("".join(part.response for part in parts), ANSWER)
    same(client.generate(model=MODEL, options=GREEDY, system="You are Leo.", prompt="Who are you?").response, "I am Leo.")
    return "generate, whole and streamed, with a system message"


def load():
    same(client.chat(model=MODEL, messages=[]).done_reason, "load")
    same(client.generate(model=MODEL, prompt="", keep_alive=0).done_reason, "unload")
    same(ask().message.content, ANSWER)
    return "with empty messages and keep_alive: 0"


def one_tool():
    first = ask(ASK_WEATHER, tools=[get_weather]).message
    same((first.tool_calls[0].function.name, calls_of(first)), ("get_weather", [PARIS]))
    messages = [
        {"role": "user", "content": ASK_WEATHER},
        first,
        {"role": "tool", "content": get_weather(**first.tool_calls[0].function.arguments), "tool_name": "get_weather"},
    ]
    said = ask(messages=messages, tools=[get_weather]).message.content
    same(said, SAY_WEATHER)
    return f"{said} A Python function is the tool"


def two_tools():
    same(calls_of(ask(ASK_TWO, tools=[get_weather]).message), BOTH)
    return "Paris and Rome"


def streamed_tools():
    parts = [part.message for part in ask(ASK_TWO, tools=[get_weather], stream=True)]
    same([call for message in parts if message.tool_calls for call in calls_of(message)], BOTH)
    return "Paris and Rome, each whole"


def json_mode():
    messages = [{"role": "system", "content": JSON_SYSTEM}, {"role": "user", "content": ASK_WEATHER}]
    same(json.loads(ask(messages=messages, format="json").message.content), JSON_ANSWER)


def schema():
    valid_report(json.loads(ask(format=CITY_REPORT).message.content))
    written = client.generate(model=MODEL, options=GREEDY, prompt=QUESTION, format=CITY_REPORT).response
    valid_report(json.loads(written))
    return "chat and generate"


def logprobs():
    tokens = ask(logprobs=True, top_logprobs=2).logprobs
    same("".join(token.token for token in tokens), ANSWER)
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in tokens)
    return "with two alternatives each"


def embeddings():
    many = client.embed(model=MODEL, input=["red", "blue", "red"]).embeddings
    one = client.embed(model=MODEL, input="red").embeddings
    same(len(client.embeddings(model=MODEL, prompt="red").embedding), DIMENSION)
    return f"embed: {same_vectors(*many, *one)}; embeddings too"


def show():
    shown = client.show(MODEL)
    assert {"completion", "tools"} <= set(shown.capabilities)
    same(shown.modelinfo["general.architecture"], "llama")
    assert shown.modelfile.count("FROM ")
    return "capabilities, model_info, modelfile"


def running_models():
    ask()
    loaded = next(model for model in client.ps().models if model.model == TAGGED)
    assert loaded.expires_at > datetime.datetime.now(datetime.timezone.utc)


def pull():
    same(client.pull(MODEL).status, "success")
    same([part.status for part in client.pull(MODEL, stream=True)][-1], "success")
    return "of an installed model; whole and streamed"


def copy():
    client.copy(MODEL, "clients/python-copy")
    same(ask(model="clients/python-copy").message.content, ANSWER)
    client.delete("clients/python-copy")
    assert all(model.model != "clients/python-copy:latest" for model in client.list().models)


def create():
    name = "clients/python-leo"
    client.create(model=name, from_=MODEL, system="You are Leo.", parameters=GREEDY)
    same(client.chat(model=name, messages=[{"role": "user", "content": "Who are you?"}]).message.content, "I am Leo.")
    client.delete(name)
    return "with a system message and parameters"


def push():
    error = failure(ollama.ResponseError, lambda: client.push(MODEL))
    same(error.status_code, 501)
    return "ResponseError, status 501: there is no registry to push to"


def fails(status, content=QUESTION, **more):
    for streams in (False, True):
        error = failure(ollama.ResponseError, lambda: list(ask(content, stream=streams, **more)))
        same(error.status_code, status)
    return f"ResponseError, status {status}"


def wrong_key():
    at = lambda key: ollama.Client(host=f"{STRICT['address']}/ollama", headers={"authorization": f"Bearer {key}"})
    same(failure(ollama.ResponseError, at("wrong").list).status_code, 401)
    at(STRICT["key"]).list()
    return "ResponseError, status 401; the right key works"


def cancel():
    parts = client.chat(model=ENDLESS, messages=USER, stream=True)
    return leaves_in_the_middle(parts, parts.close)


def bare_name():
    same(ask(model="tiny-chat").message.content, ANSWER)
    return "tiny-chat"


def at(host):
    pieces_of([part.message.content for part in ask(at=ollama.Client(host=host), stream=True)])
    return "streamed chat"


report(
    "ollama",
    {
        "models": models,
        "chat": chat,
        "stream": stream,
        "usage": usage,
        "stop": stop,
        "completions": completions,
        "load": load,
        "tools": one_tool,
        "two_tools": two_tools,
        "streamed_tools": streamed_tools,
        "json": json_mode,
        "schema": schema,
        "logprobs": logprobs,
        "embeddings": embeddings,
        "show": show,
        "running": running_models,
        "pull": pull,
        "copy": copy,
        "create": create,
        "push": push,
        "images": lambda: fails(400, messages=[{"role": "user", "content": "What is this?", "images": [PNG]}]),
        "not_found": lambda: fails(404, model="no/such"),
        "bad_request": lambda: fails(400, options={"temperature": "hot"}),
        "context": lambda: fails(400, LONG),
        "wrong_key": wrong_key,
        "cancel": cancel,
        "bare_name": bare_name,
        "root": lambda: at(ADDRESS),
        "listener": lambda: at(LISTENER),
    },
)
