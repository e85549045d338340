from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from trials import *


@tool
def get_weather(city: str) -> str:
    """Get the current weather in a city"""
    return "sunny"


def arguments_of(message):
    return [call["args"] for call in message.tool_calls]


def trials_of(make, schema_of, embedder=None):
    """
    What all chat models of LangChain share.
    :param make: gives a chat model at temperature 0
    :param schema_of: what its answers are made to be, and the check of one
    """

    def chat():
        same(make().invoke(QUESTION).text, ANSWER)

    def system():
        same(make().invoke([SystemMessage("You are Leo."), HumanMessage("Who are you?")]).text, "I am Leo.")

    def stream():
        return pieces_of([chunk.text for chunk in make().stream(QUESTION)])

    def usage():
        counts = make().invoke(QUESTION).usage_metadata
        same((counts["input_tokens"], counts["output_tokens"]), (19, 9))
        return "19 + 9 tokens"

    def one_tool():
        model = make().bind_tools([get_weather])
        first = model.invoke(ASK_WEATHER)
        same(arguments_of(first), [PARIS])
        call = first.tool_calls[0]
        result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"], name=call["name"])
        said = model.invoke([HumanMessage(ASK_WEATHER), first, result]).text
        same(said, SAY_WEATHER)
        return said

    def two_tools():
        same(arguments_of(make().bind_tools([get_weather]).invoke(ASK_TWO)), BOTH)
        return "Paris and Rome"

    def schema():
        wanted, check = schema_of
        check(make().with_structured_output({"title": "answer", **wanted}, method="json_schema").invoke(QUESTION))
        return "with_structured_output"

    def embeddings():
        return same_vectors(*embedder.embed_documents(["red", "blue"]), embedder.embed_query("red"))

    def not_found():
        error = failure(Exception, lambda: make(model="no/such").invoke(QUESTION))
        same(error.status_code, 404)
        return "status 404"

    def cancel():
        chunks = make(model=ENDLESS).stream(QUESTION)
        return leaves_in_the_middle(chunks, chunks.close)

    return {
        "chat": chat,
        "system": system,
        "stream": stream,
        "usage": usage,
        "tools": one_tool,
        "two_tools": two_tools,
        "schema": schema,
        **({"embeddings": embeddings} if embedder else {}),
        "not_found": not_found,
        "cancel": cancel,
    }


def hosted(model=MODEL):
    return ChatOpenAI(model=model, temperature=0, base_url=f"{ADDRESS}/v1", api_key="any")


def ollamas(model=MODEL):
    return ChatOllama(model=model, temperature=0, base_url=f"{ADDRESS}/ollama")


def anthropics(model=MODEL):
    return ChatAnthropic(model=model, temperature=0, base_url=ADDRESS, api_key="any", max_tokens=TOKENS)


# It leaves the texts as they are: the server counts tokens by the model's own vocabulary.
by_openai = OpenAIEmbeddings(model=MODEL, base_url=f"{ADDRESS}/v1", api_key="any", check_embedding_ctx_length=False)
by_ollama = OllamaEmbeddings(model=MODEL, base_url=f"{ADDRESS}/ollama")
report("langchain-openai", trials_of(hosted, (CITY_REPORT, valid_report), by_openai), others=["langchain-core"])
report("langchain-ollama", trials_of(ollamas, (CITY_REPORT, valid_report), by_ollama), others=["langchain-core"])
report("langchain-anthropic", trials_of(anthropics, (CITY_REPORT, valid_report)), others=["langchain-core"])
