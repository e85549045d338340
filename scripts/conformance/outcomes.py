"""
A plugin of pytest that leaves llama.cpp's tests as they are: it writes the outcome of each test as a line of JSON to the
file that OUTCOMES names, and has requests for huggingface.co answered by the hub that HF_ENDPOINT names.
"""

import json
import os

import requests

HUB = "https://huggingface.co/"
_request = requests.Session.request


def _request_of_hub(self, method, url, *args, **kwargs):
    if url.startswith(HUB) and "HF_ENDPOINT" in os.environ:
        url = os.environ["HF_ENDPOINT"].rstrip("/") + "/" + url[len(HUB):]
    return _request(self, method, url, *args, **kwargs)


requests.Session.request = _request_of_hub


def pytest_collection_finish(session):
    if "MODELS_ARE_THERE" not in os.environ:
        return
    from utils import ServerPreset

    # It starts a server for each model to have it downloaded.
    ServerPreset.load_all = staticmethod(lambda: None)


def _message(report):
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message if crash else str(report.longrepr or "")


def pytest_runtest_logreport(report):
    # A passing test reports three phases. Of set-up and tear-down, only failures matter.
    if report.when != "call" and report.outcome == "passed":
        return
    if report.skipped and isinstance(report.longrepr, tuple):
        message = report.longrepr[2]
    else:
        message = "" if report.passed else _message(report)
    line = {"id": report.nodeid, "outcome": report.outcome, "message": message, "seconds": round(report.duration, 2)}
    with open(os.environ["OUTCOMES"], "a") as file:
        file.write(json.dumps(line) + "\n")
