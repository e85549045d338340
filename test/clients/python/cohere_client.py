import cohere
from cohere.errors import NotFoundError
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from trials import *

DOCUMENTS = [ANSWER, "Cheese is made of milk.", "Rome is warm."]
client = cohere.ClientV2(base_url=ADDRESS, api_key="any")


def rerank():
    ranked = client.rerank(model=RANKER, query=QUESTION, documents=DOCUMENTS).results
    scores = [one.relevance_score for one in ranked]
    same(scores, sorted(scores, reverse=True))
    same(sorted(one.index for one in ranked), [0, 1, 2])
    best = client.rerank(model=RANKER, query=QUESTION, documents=DOCUMENTS, top_n=1).results
    same([one.index for one in best], [ranked[0].index])
    return "by score; top_n"


def rerank_not_found():
    failure(NotFoundError, lambda: client.rerank(model="no/such", query=QUESTION, documents=DOCUMENTS))
    return "NotFoundError"


report("cohere", {**({"rerank": rerank} if RANKER else {}), "not_found": rerank_not_found})

hub = InferenceClient(base_url=f"{ADDRESS}/v1", api_key="any")
tools = [{"type": "function", "function": WEATHER}]


def ask(content=QUESTION, **more):
    asked = {"model": MODEL, "temperature": 0, **more}
    return hub.chat.completions.create(messages=[{"role": "user", "content": content}], **asked)


def chat():
    choice = ask().choices[0]
    same((choice.message.content, choice.finish_reason), (ANSWER, "stop"))


def stream():
    return pieces_of([chunk.choices[0].delta.content for chunk in ask(stream=True) if chunk.choices])


def usage():
    same((ask().usage.prompt_tokens, ask().usage.completion_tokens), (19, 9))
    return "19 + 9 tokens"


def two_tools():
    calls = ask(ASK_TWO, tools=tools).choices[0].message.tool_calls
    same([json.loads(call.function.arguments) for call in calls], BOTH)
    return "Paris and Rome"


def schema():
    wanted = {"type": "json_schema", "json_schema": {"name": "city_report", "schema": CITY_REPORT, "strict": True}}
    valid_report(json.loads(ask(response_format=wanted).choices[0].message.content))
    return "response_format"


def not_found():
    same(failure(HfHubHTTPError, lambda: ask(model="no/such")).response.status_code, 404)
    return "HfHubHTTPError, status 404"


def cancel():
    pieces = ask(model=ENDLESS, stream=True, max_tokens=TOKENS)
    return leaves_in_the_middle(pieces, pieces.close)


report(
    "huggingface_hub",
    {
        "chat": chat,
        "stream": stream,
        "usage": usage,
        "two_tools": two_tools,
        "schema": schema,
        "not_found": not_found,
        "cancel": cancel,
    },
)
