"""What the scripts share: the facts that all clients are tried with, and the lines of JSON that they report."""

import json
import sys
import time
import traceback
import urllib.request
from importlib.metadata import version

GIVEN = json.load(sys.stdin)
PLACE = GIVEN["place"]
ADDRESS = PLACE["address"]
#: A server that asks for a key and has no room for models; None where the address came from outside.
STRICT = PLACE.get("strict")
LISTENER = PLACE.get("listener")
#: A model that ranks; None likewise.
RANKER = PLACE.get("ranker")

FACTS = GIVEN["facts"]
MODEL = FACTS["MODEL"]
ENDLESS = FACTS["ENDLESS"]
QUESTION = FACTS["QUESTION"]
ANSWER = FACTS["ANSWER"]
ASK_WEATHER = FACTS["ASK_WEATHER"]
ASK_TWO = FACTS["ASK_TWO"]
SAY_WEATHER = FACTS["SAY_WEATHER"]
DIMENSION = FACTS["DIMENSION"]
WEATHER = FACTS["WEATHER"]
JSON_SYSTEM = FACTS["JSON_SYSTEM"]
JSON_ANSWER = FACTS["JSON_ANSWER"]
CITY_REPORT = FACTS["CITY_REPORT"]
PNG = FACTS["PNG"]
LONG = FACTS["LONG"]

PARIS = {"city": "Paris"}
BOTH = [{"city": "Paris"}, {"city": "Rome"}]
USER = [{"role": "user", "content": QUESTION}]

NEEDS_STRICT = ("wrong_key", "no_retries")


def report(client, trials, way="", others=()):
    """
    Runs the trials of one client, and prints what became of each.
    :param client: the package
    :param way: which of its ways to a server it takes, where it has several
    :param others: packages that take part
    """
    for feature, trial in trials.items():
        if (feature in NEEDS_STRICT and not STRICT) or (feature == "listener" and not LISTENER):
            continue
        try:
            result, note = "works", trial() or ""
        except Exception:
            result, note = "fails", traceback.format_exc()
        outcome = {
            "client": ", ".join([f"{client} ({way})" if way else client, *others]),
            "version": ", ".join(version(name) for name in (client, *others)),
            "language": "Python",
            "feature": feature,
            "result": result,
            "note": note,
        }
        sys.stdout.write(json.dumps(outcome) + "\n")
        sys.stdout.flush()


def same(actual, expected):
    assert actual == expected, f"{actual!r} is not {expected!r}"


def failure(kind, call):
    """What the call is refused with, which must be of that type."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError("it was answered")


def pieces_of(pieces):
    """That the pieces came one by one and make the answer."""
    pieces = [piece for piece in pieces if piece]
    same("".join(pieces), ANSWER)
    assert len(pieces) > 4, pieces
    return f"{len(pieces)} chunks"


def same_vectors(red, blue, *more):
    """For the texts red, blue and red again, however often."""
    same(len(red), DIMENSION)
    distance = lambda other: max(abs(a - b) for a, b in zip(red, other, strict=True))
    assert more and all(distance(again) < 1e-5 for again in more)
    assert distance(blue) > 1e-2
    return f"{DIMENSION} dimensions; equal texts have equal vectors"


def valid_report(value):
    """That it is what CITY_REPORT asks for."""
    same(sorted(value), ["city", "rank", "warm"])
    assert value["city"] in ("Paris", "Rome") and value["rank"] in ("1", "2") and isinstance(value["warm"], bool), value


#: Tokens of an answer of ENDLESS, and pieces that are read of it.
TOKENS, TAKEN = 3_500, 40


def leaves_in_the_middle(pieces, leave):
    """
    Reads the beginning of an answer that would go on, leaves, and waits until the server runs nothing any more: long
    before the answer would have ended.
    """
    for taken, _ in enumerate(pieces, 1):
        if taken == TAKEN:
            break
    else:
        raise AssertionError("the answer ended")
    leave()
    left = time.monotonic()
    while running():
        assert (time.monotonic() - left) * 1000 < PLACE["leavingLimit"], "the answer still runs after its reader left"
        time.sleep(0.01)
    return "its slot is free immediately"


def running():
    with urllib.request.urlopen(f"{ADDRESS}/api/ps") as reply:
        return sum(model["running"] for model in json.load(reply)["models"] if model["name"] == ENDLESS)
