"""The decisions about members on Ray: pure functions, which can be tested without Ray."""

import collections

# Seconds.
WANT_ENDS = 600.0  # without a sign, the wish of a gateway is dropped
FIRST_WAIT, MAX_WAIT = 0.2, 10.0  # before a corral that ended is restarted
GOOD_RUN = 60.0  # after which a corral that ends is restarted at once


class Mistake(Exception):
    """An error message for the user, with a code for programs."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def next_wait(wait, ran):
    """Seconds until a corral that ran for `ran` seconds is restarted, after a last wait of `wait`."""
    return FIRST_WAIT if ran >= GOOD_RUN else min(MAX_WAIT, max(FIRST_WAIT, wait * 2))


def member_names(nodes):
    """Names by node id: the node's own name, with its address if two have the same."""
    count = collections.Counter(node["name"] for node in nodes.values())
    return {
        id: node["name"] if count[node["name"]] == 1 else f"{node['name']}-{node['address']}" for id, node in nodes.items()
    }


def decide(nodes, marks, wanted):
    """Decides which nodes have a member. Returns (marks, ids of the nodes that have a member).

    nodes: live nodes with the resource, by id. marks: the previous result: `known` nodes, nodes that were `asked` for
    because members were wanted, and `released` nodes. wanted: the minimum number of members, or None.

    Only nodes that were asked for are given back. Nodes that were there before, came unasked or were joined by a person
    stay.
    """
    known = marks.get("known")
    asked = set(marks.get("asked", ())) & set(nodes)
    released = set(marks.get("released", ())) & set(nodes)
    if known is not None:
        missing = (wanted or 0) - len(set(known) & set(nodes))
        new = sorted(id for id in set(nodes) - set(known) if not nodes[id].get("joined"))
        asked |= set(new[: max(0, missing)])
    if wanted is not None:
        active = set(nodes) - released
        back = sorted(released)[: max(0, wanted - len(active))]
        released -= set(back)
        surplus = len(active) + len(back) - wanted
        candidates = sorted((asked - released) - set(back))
        released |= set(candidates[len(candidates) - max(0, min(surplus, len(candidates))) :])
    marks = {"known": sorted(nodes), "asked": sorted(asked), "released": sorted(released)}
    return marks, sorted(set(nodes) - released)


class Wants:
    """The number of members that gateways want: the maximum of their wishes. Their clocks are not compared."""

    def __init__(self):
        self._seen = {}

    def total(self, said, now):
        """said: the entry of each gateway in the store; now: seconds. Returns None without any entry."""
        for front, value in said.items():
            if self._seen.get(front, (None, 0))[0] != value["beat"]:
                self._seen[front] = (value["beat"], now)
        living = [value["members"] for front, value in said.items() if now - self._seen[front][1] < WANT_ENDS]
        return max(living) if living else (0 if said else None)


def table_of(records, active):
    """The table of members for gateways: those that have answered at least once, with address and key."""
    rows = [
        {"name": record["name"], "url": record["url"], "key": record["key"]}
        for id, record in records.items()
        if id in active and record.get("url") and record.get("key")
    ]
    return sorted(rows, key=lambda row: row["name"])


def corral_environment(environ):
    """The environment of a corral: that of Ray's process without settings of Ray and Python."""
    dropped = ("RAY_", "PYTHON", "VIRTUAL_ENV", "CORRAL_", "MALLOC_CONF")
    kept = {name: value for name, value in environ.items() if not name.startswith(dropped)}
    # Ray preloads an allocator into its processes. Others must not get it.
    loaded = [each for each in kept.pop("LD_PRELOAD", "").split(":") if each and "/ray/core/" not in each]
    return {**kept, **({"LD_PRELOAD": ":".join(loaded)} if loaded else {})}
