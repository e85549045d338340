import gc
from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike
from ollama import ResponseError
from openai import NotFoundError
from pydantic import BaseModel
from trials import *

BASE = f"{ADDRESS}/v1"


class CityReport(BaseModel):
    city: Literal["Paris", "Rome"]
    warm: bool
    rank: Literal["1", "2"]


def get_weather(city: str) -> str:
    """Get the current weather in a city"""
    return "sunny"


def trials_of(model_of, refusal):
    model = model_of(MODEL)

    def said(text, role="user"):
        return ChatMessage(role=role, content=text)

    def chat():
        same(model.chat([said(QUESTION)]).message.content, ANSWER)

    def system():
        same(model.chat([said("You are Leo.", "system"), said("Who are you?")]).message.content, "I am Leo.")

    def stream():
        return pieces_of([part.delta for part in model.stream_chat([said(QUESTION)])])

    def two_tools():
        reply = model.chat_with_tools([FunctionTool.from_defaults(get_weather)], ASK_TWO, allow_parallel_tool_calls=True)
        same([call.tool_kwargs for call in model.get_tool_calls_from_response(reply)], BOTH)
        return "Paris and Rome"

    def not_found():
        failure(refusal, lambda: model_of("no/such").chat([said(QUESTION)]))
        return refusal.__name__

    def cancel():
        pieces = model_of(ENDLESS).stream_chat([said(QUESTION)])

        def leave():
            pieces.close()
            # The one for the hosted-chat API leaves its connection to the garbage collector.
            gc.collect()

        return f"{leaves_in_the_middle(pieces, leave)}, at the latest when Python collects garbage"

    return {
        "chat": chat,
        "system": system,
        "stream": stream,
        "two_tools": two_tools,
        "not_found": not_found,
        "cancel": cancel,
    }


def hosted(name):
    kind = {"is_chat_model": True, "is_function_calling_model": True, "max_retries": 0, "timeout": 600}
    return OpenAILike(model=name, api_base=BASE, api_key="any", temperature=0, **kind)


def schema():
    model = Ollama(model=MODEL, base_url=f"{ADDRESS}/ollama", temperature=0, request_timeout=600)
    assert isinstance(model.as_structured_llm(CityReport).complete(QUESTION).raw, CityReport)
    return "as_structured_llm"


def embeddings():
    model = OpenAILikeEmbedding(model_name=MODEL, api_base=BASE, api_key="any")
    return same_vectors(*model.get_text_embedding_batch(["red", "blue", "red"]))


report("llama-index-llms-openai-like", trials_of(hosted, NotFoundError))
report("llama-index-embeddings-openai-like", {"embeddings": embeddings})
ollamas = trials_of(
    lambda name: Ollama(model=name, base_url=f"{ADDRESS}/ollama", temperature=0, request_timeout=600), ResponseError
)
report("llama-index-llms-ollama", {**ollamas, "schema": schema})
