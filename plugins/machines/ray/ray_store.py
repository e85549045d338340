"""The key-value store of Ray's head, in which the controller and the supervisors keep their state."""

import json
import socket

NAMESPACE = "corral"
RESOURCE = "corral"
# Resource of nodes that a person has joined ("corral cluster join"). They are never given back.
JOINED = "corral-joined"


def reachable(address, limit=2.0):
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host.strip("[]"), int(port)), timeout=limit):
        pass


class Store:
    """JSON values by name. Calls fail within seconds while the head is away."""

    def __init__(self, address):
        # Without a head, Ray's client would wait for most of a minute.
        reachable(address)
        from ray._raylet import GcsClient

        self._client = GcsClient(address=address)
        self._space = NAMESPACE.encode()

    def get(self, key):
        found = self._client.internal_kv_get(key.encode(), self._space, timeout=3)
        return None if found is None else json.loads(found)

    def put(self, key, value):
        self._client.internal_kv_put(key.encode(), json.dumps(value, sort_keys=True).encode(), True, self._space, timeout=3)

    def delete(self, key, by_prefix=False):
        self._client.internal_kv_del(key.encode(), by_prefix, self._space, timeout=3)

    def all(self, prefix):
        """Values by the rest of their names after the prefix."""
        keys = self._client.internal_kv_keys(prefix.encode(), self._space, timeout=3)
        found = self._client.internal_kv_multi_get(keys, self._space, timeout=3) if keys else {}
        return {key.decode()[len(prefix) :]: json.loads(value) for key, value in found.items()}

    def nodes(self):
        """Live nodes, by id."""
        found = {}
        for id, node in self._client.get_all_node_info(timeout=3).items():
            if node.state != 0:
                continue
            found[id.hex()] = {
                "name": node.node_name or node.node_manager_address,
                "address": node.node_manager_address,
                "port": node.node_manager_port,
                "host": node.node_manager_hostname,
                "head": node.is_head_node,
                "corral": node.resources_total.get(RESOURCE, 0) >= 1,
                "joined": node.resources_total.get(JOINED, 0) >= 1,
            }
        return found


def forget(store):
    """Empties the store, except for the fact that there are no members."""
    store.put("members", [])
    store.put("sequence", "ended")
    for prefix in ("node/", "beat", "marks", "settings", "want/"):
        store.delete(prefix, by_prefix=True)
