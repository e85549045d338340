"""The controller: the actor that keeps a supervisor on every node that should have a member."""

import contextlib
import hashlib
import json
import os
import sys
import threading
import time

from ray_decisions import decide, member_names, table_of, Wants
from ray_store import forget, NAMESPACE, RESOURCE, Store
from ray_supervisor import CHECK, Supervisor

# Seconds.
PASS = 1.0  # between two passes of the controller
REQUEST_BEAT = 60.0  # between two requests for the same machines
LEAVES = 900  # for the answers of a member that is given back


class Controller:
    """Keeps a supervisor on every node that should have a member, and writes the table of members."""

    def __init__(self, address, settings):
        self._address = address
        self._settings = settings
        self._store = None
        self._supervisors = {}
        self._names = {}
        self._wants = Wants()
        self._requested, self._requested_at = None, 0.0
        self._leaving = {}
        self._table = None
        self._beat = 0
        self._checked = 0.0
        self._ending = threading.Event()
        self._ended = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def settings(self):
        return self._settings

    def end(self, grace):
        """Ends all supervisors and their corrals, and empties the store."""
        import ray

        self._ending.set()
        self._ended.wait(30)
        self._stop(list(self._supervisors), grace)
        from ray.autoscaler.sdk import request_resources

        with contextlib.suppress(Exception):
            request_resources(bundles=[])
        forget(Store(self._address))

    def _run(self):
        while not self._ending.is_set():
            try:
                self._pass()
            except Exception as error:
                # Nothing can be done while the head is away. The members continue.
                self._store = None
                print(f"corral controller: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            self._ending.wait(PASS)
        self._ended.set()

    def _pass(self):
        store = self._store = self._store or Store(self._address)
        nodes = {id: node for id, node in store.nodes().items() if node["corral"]}
        marks = store.get("marks") or {}
        wanted = self._wants.total(store.all("want/"), time.monotonic())
        new_marks, active = decide(nodes, marks, wanted)
        if new_marks != marks:
            store.put("marks", new_marks)
        self._request(wanted)
        names = {**member_names(nodes), **{id: name for id, name in self._names.items() if id in nodes}}
        self._names = names
        for id in active:
            if id in self._leaving:
                self._leaving[id].set()
            elif id not in self._supervisors:
                self._supervisors[id] = self._start(id, nodes[id], names[id])
        for id in new_marks["released"]:
            if id in self._supervisors and id not in self._leaving:
                self._leaving[id] = threading.Event()
                threading.Thread(target=self._release, args=(id,), daemon=True).start()
        for id in [id for id in self._supervisors if id not in nodes]:
            del self._supervisors[id]
        self._check()
        records = store.all("node/")
        for id in [id for id in records if id not in nodes]:
            store.delete(f"node/{id}")
        staying = {*active, *self._leaving}
        table = table_of(records, staying)
        if table != self._table:
            store.put("members", table)
            store.put("sequence", hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest())
            self._table = table
        self._beat += 1
        store.put("beat", f"{os.getpid()}.{self._beat}")

    def _start(self, id, node, name):
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        actor = ray.remote(num_cpus=0, max_restarts=-1, max_concurrency=4)(Supervisor)
        return actor.options(
            name=f"node-{id}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            resources={RESOURCE: 1},
            scheduling_strategy=NodeAffinitySchedulingStrategy(id, soft=False),
        ).remote(id, node, name, self._settings)

    def _check(self):
        """Forgets dead supervisors, so that the next pass creates new ones."""
        import ray

        if time.monotonic() - self._checked < CHECK:
            return
        self._checked = time.monotonic()
        asked = {supervisor.about.remote(): id for id, supervisor in self._supervisors.items()}
        if not asked:
            return
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=1)
        for reference in ready:
            try:
                ray.get(reference)
            except ray.exceptions.ActorDiedError:
                self._supervisors.pop(asked[reference], None)
            except Exception:
                # It is being restarted.
                continue

    def _request(self, wanted):
        """Asks Ray's autoscaler, if any, for machines."""
        # A restarted head may have forgotten it.
        if wanted == self._requested and (not wanted or time.monotonic() - self._requested_at < REQUEST_BEAT):
            return
        from ray.autoscaler.sdk import request_resources

        request_resources(bundles=[{RESOURCE: 1}] * (wanted or 0))
        self._requested, self._requested_at = wanted, time.monotonic()

    def _release(self, id):
        """Drains and ends a member, so that its idle machine is removed. Stops if it is wanted again."""
        import ray

        back, supervisor = self._leaving[id], self._supervisors[id]
        try:
            # A gateway's key may not do that, so the supervisor asks its corral as the user who runs it.
            drained, left = [], [supervisor.leave.remote(LEAVES)]
            while left and not back.is_set():
                drained, left = ray.wait(left, timeout=1)
            if back.is_set():
                ray.get(supervisor.stay.remote(), timeout=180)
                return
            self._stop([id], 15)
            self._supervisors.pop(id, None)
        except Exception as error:
            # Its node may be gone. The next pass decides again.
            print(f"corral controller: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            self._leaving.pop(id, None)

    def _stop(self, ids, grace):
        import ray

        actors = [self._supervisors[id] for id in ids if id in self._supervisors]
        ray.wait([actor.end.remote(grace) for actor in actors], num_returns=len(actors), timeout=grace + 10) if actors else None
        for actor in actors:
            with contextlib.suppress(Exception):
                ray.kill(actor, no_restart=True)
        for id in ids:
            with contextlib.suppress(Exception):
                self._store.delete(f"node/{id}")
