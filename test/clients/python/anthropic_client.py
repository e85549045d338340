import anthropic
from trials import *

client = anthropic.Anthropic(base_url=ADDRESS, api_key="any")
tools = [{"name": WEATHER["name"], "description": WEATHER["description"], "input_schema": WEATHER["parameters"]}]


def asking(content=QUESTION, **more):
    return {
        "model": MODEL,
        "max_tokens": 200,
        # The SDK has no field for it any more.
        "extra_body": {"temperature": 0},
        "messages": [{"role": "user", "content": content}],
        **more,
    }


def ask(content=QUESTION, **more):
    return client.messages.create(**asking(content, **more))


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


def uses_of(message):
    return [block for block in message.content if block.type == "tool_use"]


def models():
    assert MODEL in [model.id for model in client.models.list()]
    same(client.models.retrieve(MODEL).type, "model")
    return "and one by its id"


def chat():
    message = ask()
    same((text_of(message), message.stop_reason, message.role), (ANSWER, "end_turn", "assistant"))


def system():
    same(text_of(ask("Who are you?", system="You are Leo.")), "I am Leo.")
    same(text_of(ask("Who are you?", system=[{"type": "text", "text": "You are Leo."}])), "I am Leo.")
    return "as text and as blocks"


def stream():
    with client.messages.stream(**asking()) as events:
        note = pieces_of(list(events.text_stream))
        same(text_of(events.get_final_message()), ANSWER)
    kinds = []
    for event in ask(stream=True):
        if event.type not in kinds:
            kinds.append(event.type)
    order = "message_start content_block_start content_block_delta content_block_stop message_delta message_stop"
    same(kinds, order.split())
    return f"{note}, events in order"


def usage():
    with client.messages.stream(**asking()) as events:
        streamed = events.get_final_message().usage
    for counts in (ask().usage, streamed):
        same((counts.input_tokens + (counts.cache_read_input_tokens or 0), counts.output_tokens), (19, 9))
    return "whole and streamed: 19 + 9 tokens, including cached tokens"


def stop():
    stopped, short = ask(stop_sequences=[" of France"]), ask(max_tokens=4)
    same((text_of(stopped), stopped.stop_reason, stopped.stop_sequence), ("The capital", "stop_sequence", " of France"))
    same((text_of(short), short.stop_reason), ("The capital of Fra", "max_tokens"))


def one_tool():
    first = ask(ASK_WEATHER, tools=tools)
    uses = uses_of(first)
    same(([use.input for use in uses], first.stop_reason), ([PARIS], "tool_use"))
    turns = [
        {"role": "user", "content": ASK_WEATHER},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": uses[0].id, "content": "sunny"}]},
    ]
    said = text_of(ask(tools=tools, messages=turns))
    same(said, SAY_WEATHER)
    return said


def two_tools():
    uses = uses_of(ask(ASK_TWO, tools=tools))
    same([use.input for use in uses], BOTH)
    assert uses[0].id != uses[1].id
    return "Paris and Rome, each with its own id"


def streamed_tools():
    with client.messages.stream(**asking(ASK_TWO, tools=tools)) as events:
        same([use.input for use in uses_of(events.get_final_message())], BOTH)
    return "two, assembled by the helper"


def schema():
    message = ask(output_config={"format": {"type": "json_schema", "schema": CITY_REPORT}})
    valid_report(json.loads(text_of(message)))
    return "output_config"


def count_tokens():
    same(client.messages.count_tokens(model=MODEL, messages=USER).input_tokens, 19)
    return "19 tokens, as in the answer"


def fails(kind, content=QUESTION, **more):
    for streams in (False, True):
        error = failure(kind, lambda: ask(content, stream=streams, **more))
    same(error.body["type"], "error")
    return f"{kind.__name__}, {error.body['error']['type']}"


def images():
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    return fails(anthropic.BadRequestError, [picture])


def wrong_key():
    at = lambda key: anthropic.Anthropic(base_url=STRICT["address"], api_key=key)
    failure(anthropic.AuthenticationError, at("wrong").models.list)
    at(STRICT["key"]).models.list()
    return "AuthenticationError; the right key works"


def no_retries():
    sent = []
    counting = anthropic.DefaultHttpxClient(event_hooks={"request": [sent.append]})
    at = anthropic.Anthropic(base_url=STRICT["address"], api_key=STRICT["key"], http_client=counting)
    error = failure(anthropic.InternalServerError, lambda: at.messages.create(**asking()))
    same(len(sent), 1)
    return f"InternalServerError, {error.body['error']['type']}: sent once"


def cancel():
    events = client.messages.create(model=ENDLESS, max_tokens=TOKENS, messages=USER, stream=True)
    return leaves_in_the_middle(events, events.close)


report(
    "anthropic",
    {
        "models": models,
        "chat": chat,
        "system": system,
        "stream": stream,
        "usage": usage,
        "stop": stop,
        "tools": one_tool,
        "two_tools": two_tools,
        "streamed_tools": streamed_tools,
        "schema": schema,
        "count_tokens": count_tokens,
        "images": images,
        "not_found": lambda: fails(anthropic.NotFoundError, model="no/such"),
        "bad_request": lambda: fails(anthropic.BadRequestError, extra_body={"temperature": "hot"}),
        "context": lambda: fails(anthropic.BadRequestError, LONG),
        "wrong_key": wrong_key,
        "no_retries": no_retries,
        "cancel": cancel,
    },
)
