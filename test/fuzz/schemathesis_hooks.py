"""What schemathesis must know of corral: a model that is there, what must stay, and which failures are explained."""

import json
import os
import zlib

import schemathesis

MODEL = os.environ["FUZZ_MODEL"]
#: Codes of failures with a status of 500 and above that a request may bring about, by their status.
EXPLAINED = json.loads(os.environ["FUZZ_EXPLAINED"])
#: Requests that would take the model away from all others.
ENDING = ("/delete", "/stop", "/create", "/copy", "/default")


@schemathesis.hook
def map_body(ctx, body):
    """Most requests name the model that is there, so that they get past the look for it; answers stay short."""
    if not isinstance(body, dict) or ctx.operation.path.endswith(ENDING):
        return body
    chance = zlib.crc32(repr(body).encode("utf-8", "replace"))
    if chance % 4 and "model" in body:
        body = {**body, "model": MODEL}
    return body


@schemathesis.hook
def map_path_parameters(ctx, path_parameters):
    """The same for models that are named in the path."""
    if isinstance(path_parameters, dict):
        for name, value in path_parameters.items():
            if name in ("name", "model", "*") and isinstance(value, str) and len(value) % 2:
                path_parameters = {**path_parameters, name: MODEL}
    return path_parameters


@schemathesis.hook
def map_query(ctx, query):
    """A log that is followed does not end: reading it would take until the request's time is over."""
    return {name: value for name, value in query.items() if name != "follow"} if isinstance(query, dict) else query


@schemathesis.hook
def filter_body(ctx, body):
    """The model stays."""
    if ctx.operation.path.endswith(ENDING) and isinstance(body, dict):
        return MODEL.split("/")[1] not in json.dumps(body, default=str)
    return True


@schemathesis.hook
def before_call(ctx, case, **kwargs):
    """Examples are not filtered, and those of one operation are tried with others: the model stays all the same."""
    if case.operation.path.endswith(ENDING) and isinstance(case.body, dict):
        case.body = {
            name: "me/other" if isinstance(value, str) and MODEL.split("/")[1] in value else value
            for name, value in case.body.items()
        }
    if case.method == "DELETE" and isinstance(case.query, dict):
        case.query = {
            name: "me/other" if isinstance(value, str) and MODEL.split("/")[1] in value else value
            for name, value in case.query.items()
        }


@schemathesis.check
def failures_are_explained(ctx, response, case):
    """A 5xx has a code that belongs to its status; 500 is none but for what a request can bring about."""
    if response.status_code < 500:
        return
    try:
        body = response.json()
    except ValueError:
        raise AssertionError(f"status {response.status_code} without JSON: {response.text[:200]}")
    error = body.get("error")
    # llama-server's own errors have the status as their code, and corral's beside it.
    code = body.get("code") or (error.get("corral_code", error.get("code")) if isinstance(error, dict) else None)
    if code not in EXPLAINED.get(str(response.status_code), []):
        raise AssertionError(f"status {response.status_code} with code {code}: {json.dumps(body)[:300]}")
