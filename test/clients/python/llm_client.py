import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from trials import *

home = tempfile.TemporaryDirectory()
os.environ["LLM_USER_PATH"] = home.name
os.environ["OLLAMA_HOST"] = f"{ADDRESS}/ollama"
# As its documentation says how to use a server with the hosted-chat API.
pathlib.Path(home.name, "extra-openai-models.yaml").write_text(
    "\n".join(
        f"- model_id: {name}\n  model_name: {model}\n  api_base: {ADDRESS}/v1\n  supports_tools: true\n  supports_schema: true\n"
        for name, model in (("corral", MODEL), ("endless", ENDLESS), ("unknown", "no/such"))
    )
)

import llm
import openai


def get_weather(city: str) -> str:
    """Get the current weather in a city"""
    return "sunny"


def command(name):
    return [sys.executable, "-m", "llm", "--no-log", "-m", name]


def interrupt(process):
    process.send_signal(signal.SIGINT)
    process.wait()


def trials_of(name, endless):
    # A model's id may be the name of a copy that another client has made meanwhile: the command line is given its own name.
    model = llm.get_model(name)

    def chat():
        same(model.prompt(QUESTION, stream=False, temperature=0).text(), ANSWER)
        asked = [*command(name), "-o", "temperature", "0", QUESTION]
        told = subprocess.run(asked, capture_output=True, text=True)
        same((told.stdout.strip(), told.returncode, told.stderr), (ANSWER, 0, ""))
        return "Python and command line"

    def system():
        same(model.prompt("Who are you?", system="You are Leo.", temperature=0).text(), "I am Leo.")
        conversation = model.conversation()
        conversation.prompt("My name is Rosa.", temperature=0).text()
        same(conversation.prompt("What is my name?", temperature=0).text(), "Your name is Rosa.")

    def stream():
        return pieces_of(list(model.prompt(QUESTION, temperature=0)))

    def usage():
        response = model.prompt(QUESTION, stream=False, temperature=0)
        response.text()
        counts = response.usage()
        same((counts.input, counts.output), (19, 9))
        return "19 + 9 tokens"

    def one_tool():
        chain = model.chain(ASK_WEATHER, tools=[get_weather], options={"temperature": 0})
        said = chain.text()
        same(said, SAY_WEATHER)
        return said

    def two_tools():
        response = model.prompt(ASK_TWO, tools=[get_weather], temperature=0)
        same([call.arguments for call in response.tool_calls()], BOTH)
        return "Paris and Rome"

    def schema():
        valid_report(json.loads(model.prompt(QUESTION, schema=CITY_REPORT, temperature=0).text()))

    def cancel():
        asked = subprocess.Popen([*command(endless), QUESTION], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        with asked:
            pieces = iter(lambda: os.read(asked.stdout.fileno(), 1), b"")
            return f"the command line, by Ctrl+C: {leaves_in_the_middle(pieces, lambda: interrupt(asked))}"

    return {
        "chat": chat,
        "system": system,
        "stream": stream,
        "usage": usage,
        "tools": one_tool,
        "two_tools": two_tools,
        "schema": schema,
        "cancel": cancel,
    }


def not_found():
    error = failure(openai.NotFoundError, lambda: llm.get_model("unknown").prompt(QUESTION, stream=False).text())
    return type(error).__name__


hosted = trials_of("corral", "endless")
report("llm", {**hosted, "not_found": not_found}, way="api_base")
ollamas = trials_of(f"ollama/{MODEL}", f"ollama/{ENDLESS}")
report("llm", ollamas, way="llm-ollama", others=["llm-ollama"])
