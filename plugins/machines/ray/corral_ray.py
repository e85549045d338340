"""Runs a corral on every node of a Ray cluster that has the resource "corral", and reports them to gateways.

The controller (an actor) starts a supervisor (an actor) on each such node, also on those that join later. The supervisor
keeps one corral alive there. Both are detached: they belong to no driver, and Ray restarts them when they die. Their state
is in the key-value store of Ray's head. A gateway reads it there, without a Ray node of its own, and writes how many
members it wants. In this file a "node" is Ray's, and the corral on it is a "member".

The program gets the name of a command and its options as JSON, which contain no secrets. It prints lines of JSON: with a
prefix on standard output, where Ray prints too, and on file descriptor 3 when it watches. Nothing imports Ray at the top,
so the decisions can be tested without it. It is one file because Ray ships it to all nodes.

Sections: decisions, the store, the supervisor, the controller, commands, a Ray started by corral.
"""

import collections
import contextlib
import fcntl
import hashlib
import json
import logging
import logging.handlers
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

NAMESPACE = "corral"
CONTROLLER = "controller"
RESOURCE = "corral"
# Resource of nodes that a person has joined ("corral cluster join"). They are never given back.
JOINED = "corral-joined"
KEY_NAME = "cluster"
# Seconds.
PASS = 1.0  # between two passes of the controller
CHECK = 5.0  # between two checks that supervisors are alive
LOOK = 0.25  # between two reads of the store
SILENT = 15.0  # without a sign of the controller, a gateway reports it
WANT_BEAT = 10.0  # between two signs of a gateway that wants members
REQUEST_BEAT = 60.0  # between two requests for the same machines
WANT_ENDS = 600.0  # without a sign, the wish of a gateway is dropped
HANGS = 60.0  # without an answer, a corral is restarted
DEATH_KNOWN = 60.0  # within which Ray notices that a node has died
LEAVES = 900  # for the answers of a member that is given back
FIRST_WAIT, MAX_WAIT = 0.2, 10.0  # before a corral that ended is restarted
GOOD_RUN = 60.0  # after which a corral that ends is restarted at once


class Mistake(Exception):
    """An error message for the user, with a code for programs."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


# --- Decisions: pure functions. ---


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


# --- The store: the key-value store of Ray's head. ---


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


# --- On each node: the supervisor. ---

# Executes a program that the kernel kills when the thread that started it ends. Ray gives its workers low priority
# (`RAY_worker_niceness`, 15), which only root can undo here.
LAUNCH = """
import ctypes, os, sys
ctypes.CDLL(None, use_errno=True).prctl(1, 9, 0, 0, 0)
try: os.setpriority(os.PRIO_PROCESS, 0, 0)
except OSError: pass
if os.getppid() != int(sys.argv[1]): os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def start_bound(command, **options):
    """Starts a program that dies with the calling thread, and so with its process."""
    launcher = [sys.executable, "-I", "-S", "-c", LAUNCH, str(os.getpid()), *command]
    return subprocess.Popen(launcher, stdin=subprocess.DEVNULL, **options)


def parent_environment():
    """The raylet's environment. Ray changes that of its workers, such as the number of threads."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{os.getppid()}/environ", "rb") as file:
            pairs = [part.partition(b"=") for part in file.read().split(b"\0")]
            return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name}
    return dict(os.environ)


def call(url, method="GET", key=None, limit=5.0):
    """Sends a request to a corral and returns the JSON reply. Only gateways know its certificate, so it is not verified."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(url, method=method, headers=headers)
    context = ssl._create_unverified_context()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with opener.open(request, timeout=limit) as reply:
        return json.load(reply)


def is_accepted(url, key):
    """Whether a corral accepts the key, which may have been revoked."""
    try:
        call(f"{url}/api/whoami", key=key)
    except urllib.error.HTTPError as error:
        return error.code != 401
    return True


def find_command(given, path):
    """Returns the command that starts corral here: the given one if it is installed, else the one on the PATH."""
    if given and all(os.path.exists(part) for part in given):
        return given
    found = shutil.which("corral", path=path)
    if found:
        return [found]
    told = f"{' '.join(given)} does not exist, and " if given else ""
    raise Mistake("not_installed", f"corral is not installed on this node: {told}there is no corral on the PATH.")


class Supervisor:
    """Keeps one corral alive on its node, and describes it in the store."""

    def __init__(self, node_id, node, name, settings):
        environ = parent_environment()
        own = json.loads(environ.get("CORRAL_CLUSTER_MEMBER", "{}"))
        self._settings = {**settings, **own}
        self._environ = corral_environment(environ)
        self._key = f"node/{node_id}"
        self._record = {"name": name, "address": node["address"], "host": socket.gethostname(), "starts": 0}
        self._store = None
        self._child = None
        self._ending = threading.Event()
        self._ended = threading.Event()
        self._tail = collections.deque(maxlen=40)
        # The corral dies with the thread that started it. This thread lives as long as the actor.
        threading.Thread(target=self._run, daemon=True).start()

    def about(self):
        return {name: value for name, value in self._record.items() if name != "key"}

    def end(self, grace):
        """Ends the corral, which has `grace` seconds to finish its answers."""
        self._ending.set()
        child = self._child
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
        if not self._ended.wait(grace) and child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            self._ended.wait(5)

    def _tell(self, **changes):
        self._record = {**self._record, **changes, "since": round(time.time(), 1)}
        self._publish()

    def _publish(self):
        import ray

        # Without the head, this is repeated when it is back.
        with contextlib.suppress(Exception):
            self._store = self._store or Store(ray.get_runtime_context().gcs_address)
            if self._store.get(self._key) != self._record:
                self._store.put(self._key, self._record)

    def _recall(self):
        """Continues with the record of the previous supervisor, so that gateways do not forget the member."""
        import ray

        with contextlib.suppress(Exception):
            self._store = Store(ray.get_runtime_context().gcs_address)
            self._record = {**(self._store.get(self._key) or {}), **self._record, "starts": 0}

    def _run(self):
        wait = 0.0
        self._recall()
        while not self._ending.is_set():
            began = time.monotonic()
            try:
                reason = self._run_once()
            except Mistake as error:
                reason = str(error)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
            if self._ending.is_set():
                break
            wait = next_wait(wait, time.monotonic() - began)
            self._tell(state="restarting", reason=reason, pid=None)
            self._ending.wait(wait)
        self._tell(state="ended", reason=None, pid=None)
        self._ended.set()

    def _run_once(self):
        """Runs a corral until it ends. Returns why it ended."""
        settings = self._settings
        home = os.path.expanduser(settings.get("home") or "~/.corral")
        os.makedirs(home, mode=0o700, exist_ok=True)
        command = find_command(settings.get("command"), self._environ.get("PATH"))
        address, port = self._record["address"], settings["port"]
        given = settings.get("environment", {})
        environ = {**self._environ, **given, "CORRAL_HOME": home, "CORRAL_HOST": address, "CORRAL_PORT": str(port)}
        key = self._operator_key(command, home, environ)
        self._tail.clear()
        self._tell(state="starting", starts=self._record["starts"] + 1)
        child = start_bound([*command, "serve"], env=environ, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self._child = child
        threading.Thread(target=self._log, args=(child.stdout, home), daemon=True).start()
        heard = time.monotonic()
        is_up = False
        told = 0.0
        while child.poll() is None:
            owner = self._owner(home, child.pid)
            url = owner.get("address") or f"http://{address}:{port}"
            with contextlib.suppress(OSError, ValueError):
                call(f"{url}/api/health")
                heard = time.monotonic()
                if not is_up and owner:
                    is_up = True
                    if not is_accepted(url, key):
                        key = self._operator_key(command, home, environ, again=True)
                    self._tell(
                        state="up", reason=None, url=url, key=key, pid=child.pid, version=owner.get("version"), home=home
                    )
            if time.monotonic() - heard > settings.get("hangs_after", HANGS):
                child.kill()
                child.wait()
                return "it did not answer any longer, and was ended"
            if time.monotonic() - told > CHECK:
                told = time.monotonic()
                self._publish()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1.0 if is_up else 0.2)
        how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
        last = self._tail[-1][:500] if self._tail else "it printed nothing"
        return f"it ended with {how}: {last}"

    def _operator_key(self, command, home, environ, again=False):
        """The key that gateways use here, created once. It never appears on a command line."""
        path = os.path.join(home, "cluster.key")
        if not again:
            with contextlib.suppress(FileNotFoundError):
                with open(path) as file:
                    return file.read().strip()
        try:
            key = self._corral(command, ["key", "create", KEY_NAME, "--role", "operator", "--yes"], environ)
        except Mistake:
            key = self._corral(command, ["key", "rotate", KEY_NAME], environ)
        temporary = f"{path}.{os.getpid()}"
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(f"{key}\n")
        os.replace(temporary, path)
        return key

    def leave(self, limit):
        """Drains the corral, and waits up to `limit` seconds for its answers."""
        with contextlib.suppress(Mistake, subprocess.TimeoutExpired):
            self._ask(["drain", "--wait", "--timeout", f"{limit}s"], limit + 60)

    def stay(self):
        """Resumes the corral after `leave`."""
        with contextlib.suppress(Mistake, subprocess.TimeoutExpired):
            self._ask(["drain", "--undo"])

    def _ask(self, args, limit=120):
        home = os.path.expanduser(self._settings.get("home") or "~/.corral")
        command = find_command(self._settings.get("command"), self._environ.get("PATH"))
        self._corral(command, args, {**self._environ, "CORRAL_HOME": home}, limit)

    def _corral(self, command, args, environ, limit=120):
        # Keys are created in the data directory, whatever address is set.
        local = {name: value for name, value in environ.items() if name not in ("CORRAL_HOST", "CORRAL_PORT")}
        done = subprocess.run(
            [*command, *args], env=local, cwd=environ["CORRAL_HOME"], stdin=subprocess.DEVNULL, capture_output=True, timeout=limit
        )
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()[-500:]
            raise Mistake("corral_failed", f"corral {' '.join(args[:2])} failed: {said}")
        return done.stdout.decode().strip()

    def _owner(self, home, pid):
        """The address at which the corral listens."""
        with contextlib.suppress(OSError, ValueError):
            with open(os.path.join(home, "owner.json")) as file:
                owner = json.load(file)
            if owner.get("pid") == pid and owner.get("socket"):
                return owner
        return {}

    def _log(self, stream, home):
        folder = os.path.join(home, "logs")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        handler = logging.handlers.RotatingFileHandler(
            os.path.join(folder, "member.log"), maxBytes=10_000_000, backupCount=2
        )
        for line in stream:
            text = line.decode(errors="replace").rstrip("\n")
            if text.strip():
                self._tail.append(text)
            with contextlib.suppress(OSError):
                handler.emit(logging.makeLogRecord({"msg": text, "levelno": logging.INFO}))
        handler.close()


# --- Somewhere in the cluster: the controller. ---


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


# --- Commands. ---


def report(value, file=1):
    """Prints one line of JSON for the parent process."""
    mark = "corral-ray: " if file == 1 else ""
    left = f"{mark}{json.dumps(value)}\n".encode()
    while left:
        left = left[os.write(file, left) :]


def is_here(address):
    """Whether an address belongs to this machine."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return True
    return False


def is_open(host, port):
    """Whether something listens at this port of this machine."""
    with contextlib.suppress(OSError):
        reachable(f"{host}:{port}")
        return True
    return False


def open_store(address):
    """Opens the store. Raises Mistake with the reason if the head cannot be used."""
    try:
        store = Store(address)
        store.get("beat")
        return store
    except OSError as error:
        raise Mistake("no_head", f"Ray's head does not answer at {address} ({error}).") from error
    except Exception as error:
        if type(error).__name__ == "AuthenticationError":
            raise Mistake(
                "refused", f"Ray's head at {address} does not accept the token: RAY_AUTH_TOKEN_PATH names a file with another."
            ) from error
        raise Mistake("no_head", f"Ray's head at {address} does not answer ({type(error).__name__}).") from error


def has_authentication(address):
    """Whether the cluster refuses clients without a token. Ray reads that setting once per process."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    code = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1]).get_all_node_info(timeout=3)"
    done = subprocess.run(
        [sys.executable, "-c", code, address],
        env={**environ, "RAY_AUTH_MODE": "disabled"},
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    if done.returncode == 0:
        return False
    return True if b"AuthenticationError" in done.stderr else None


@contextlib.contextmanager
def driver(store, options):
    """Connects to Ray as a driver. Drivers need a node on their machine: if there is none, a temporary one without
    resources is started."""
    import ray

    address, temporary = options["address"], None
    here = next((node for node in store.nodes().values() if is_here(node["address"])), None)
    try:
        if here is None:
            host, port = address.rsplit(":", 1)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host, int(port)))
                own = probe.getsockname()[0]
            temporary = start_bound(
                [*node_command(own, options["temp"]), f"--address={address}", "--num-cpus=0", "--block"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            until = time.monotonic() + 60
            while here is None:
                if temporary.poll() is not None or time.monotonic() > until:
                    raise Mistake("no_node", f"This machine could not join the cluster at {address} for the command.")
                time.sleep(0.5)
                here = next((node for node in store.nodes().values() if node["address"] == own), None)
        try:
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, _node_ip_address=here["address"])
        except RuntimeError as error:
            if "Version mismatch" in str(error):
                told = " ".join(str(error).split())
                raise Mistake(
                    "other_version",
                    f"{told} Name a Python with the cluster's version of Ray as cluster-ray.python in config.yaml.",
                ) from error
            raise
        yield ray
    finally:
        ray.shutdown()
        if temporary:
            temporary.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                temporary.wait(10)
            temporary.kill()


def actor_of(ray, name):
    with contextlib.suppress(ValueError):
        return ray.get_actor(name, namespace=NAMESPACE)
    return None


def end_actors(ray, grace):
    """Ends the controller and everything that it started, even if it no longer answers."""
    controller = actor_of(ray, CONTROLLER)
    if controller:
        with contextlib.suppress(Exception):
            ray.get(controller.end.remote(grace), timeout=grace + 60)
        ray.kill(controller, no_restart=True)
    for each in ray.util.list_named_actors(all_namespaces=True):
        if each["namespace"] == NAMESPACE and each["name"].startswith("node-"):
            with contextlib.suppress(Exception):
                ray.kill(ray.get_actor(each["name"], namespace=NAMESPACE), no_restart=True)


def up(options):
    """Starts the controller, or replaces one with other code or settings. Members continue unless their start options
    have changed. With `keep`, a running controller stays."""
    store = open_store(options["address"])
    settings = {name: options.get(name) for name in ("port", "home", "command", "hangs_after") if options.get(name) is not None}
    with open(__file__, "rb") as file:
        settings["code"] = hashlib.sha256(file.read()).hexdigest()[:12]
    with driver(store, options) as ray:
        controller = actor_of(ray, CONTROLLER)
        before = store.get("settings") or {}
        if controller and before != settings and not options.get("keep"):
            if {**before, "code": ""} == {**settings, "code": ""}:
                ray.kill(controller, no_restart=True)
            else:
                end_actors(ray, 15)
            controller = None
            # The name is free only after its actor is gone.
            while actor_of(ray, CONTROLLER):
                time.sleep(0.1)
        if controller is None:
            store.put("settings", settings)
            controller = (
                ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=4)(Controller)
                .options(name=CONTROLLER, namespace=NAMESPACE, lifetime="detached", get_if_exists=True)
                .remote(options["address"], settings)
            )
        ray.get(controller.settings.remote(), timeout=60)
    report({"controller": "up", "nodes": list(store.nodes().values())})


def down(options):
    """Ends the controller, the supervisors and their corrals, but not Ray."""
    store = open_store(options["address"])
    with driver(store, options) as ray:
        end_actors(ray, options.get("grace", 15))
    forget(store)
    report({"ended": True})


def status(options):
    """Reports the members and the cluster, as described in the store."""
    import ray

    store = open_store(options["address"])
    nodes = store.nodes()
    records = store.all("node/")
    before = store.get("beat")
    marks = store.get("marks") or {}
    authentication = has_authentication(options["address"])
    until = time.monotonic() + 4
    while before is not None and store.get("beat") == before and time.monotonic() < until:
        time.sleep(LOOK)
    controller = "none" if before is None else "silent" if store.get("beat") == before else "up"
    rows = []
    for id, node in sorted(nodes.items(), key=lambda item: item[1]["name"]):
        record = {name: value for name, value in records.get(id, {}).items() if name != "key"}
        if id in marks.get("released", ()):
            record["state"] = "released"
        rows.append({"id": id, **node, **({"member": record} if record else {})})
    report(
        {
            "address": options["address"],
            "ray": ray.__version__,
            "authentication": authentication,
            "controller": controller,
            "wanted": max([each["members"] for each in store.all("want/").values()], default=0),
            "nodes": rows,
        }
    )


def watch(options):
    """Reports the members to a gateway whenever they change, until standard input closes."""
    state = {"want": None, "beat": 0}
    changed = threading.Event()

    def listen():
        for line in sys.stdin:
            with contextlib.suppress(ValueError, KeyError):
                state["want"] = int(json.loads(line)["want"])
                changed.set()
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    address, front = options["address"], f"want/{options['front']}"
    store = sequence = fault = beat = None
    heard, wrote = time.monotonic(), 0.0
    first = True
    while True:
        now = time.monotonic()
        problem = code = None
        try:
            if store is None:
                store, heard = open_store(address), now
            if state["want"] is not None and (changed.is_set() or now - wrote > WANT_BEAT):
                changed.clear()
                state["beat"] += 1
                store.put(front, {"members": state["want"], "beat": f"{os.getpid()}.{state['beat']}"})
                wrote = now
            found, seen = store.get("sequence"), store.get("beat")
            # A head that has lost its state reports no members. The known members stay.
            if found is not None and found != sequence:
                report({"members": store.get("members") or []}, 3)
                sequence = found
            if seen != beat:
                beat, heard = seen, now
            if seen is None:
                code = "no_controller"
                problem = f'Nothing is started by Ray at {address}: run "corral cluster up --ray {address}".'
            elif now - heard > SILENT:
                problem = "The controller in Ray is silent: members that join or leave are not known until it is back."
        except Mistake as error:
            store, problem, code = None, str(error), error.code
        except Exception as error:
            store, problem, code = None, f"Ray's head at {address} does not answer ({type(error).__name__}).", "no_head"
        if problem != fault or first:
            report({"fault": problem, "code": code}, 3)
            fault, first = problem, False
        time.sleep(LOOK)


# --- A Ray that corral starts. ---


def node_command(address, temp):
    """Returns the command that starts a node, without the dashboard and its metrics."""
    return [
        os.path.join(os.path.dirname(sys.executable), "ray"),
        "start",
        f"--node-ip-address={address}",
        f"--temp-dir={temp}",
        "--include-log-monitor=false",
        "--dashboard-agent-listen-port=0",
        "--dashboard-agent-grpc-port=0",
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--object-store-memory=78643200",
        "--disable-usage-stats",
    ]


def processes_of(temp):
    """Processes of the Ray with this folder: their command line names it, or they have files in it open. This excludes
    zombies, which have neither."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            is_named = any(f"{temp}/".encode() in word for word in words)
            if is_named or any(opened.startswith(f"{temp}/") for opened in open_files(name)):
                found.append(int(name))
    return found


def open_files(pid):
    for each in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/{pid}/fd/{each}")


def end_processes(temp):
    until = time.monotonic() + 10
    while (left := processes_of(temp)) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


@contextlib.contextmanager
def locked(folder):
    """A lock: one process at a time may start or end this Ray."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with open(os.path.join(folder, "lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def head(options):
    """Ensures that a head runs on this machine. A running one stays, and one that died is restarted with its state."""
    address, temp, folder = options["address"], options["temp"], options["folder"]
    host, port = address.rsplit(":", 1)
    with locked(folder):
        with contextlib.suppress(Mistake):
            store = open_store(address)
            if any(node["head"] for node in store.nodes().values()):
                report({"started": False})
                return
        with contextlib.suppress(OSError):
            reachable(address)
            if not processes_of(temp):
                raise Mistake("port_taken", f"Another program listens on {address}. Choose another port with --ray-port.")
        end_processes(temp)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(temp, "ray_current_cluster"))
        # Remove old sessions, since Ray never does.
        for name in os.listdir(temp) if os.path.isdir(temp) else []:
            if name.startswith("session_"):
                path = os.path.join(temp, name)
                os.unlink(path) if os.path.islink(path) else shutil.rmtree(path, ignore_errors=True)
        member = json.loads(os.environ.get("CORRAL_CLUSTER_MEMBER", "null"))
        resources = [f"--resources={json.dumps({RESOURCE: 1})}"] if member else []
        environ = {**os.environ, "RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": os.path.join(folder, "gcs")}
        command = [*node_command(host, temp), "--head", f"--port={port}", "--include-dashboard=false", "--num-cpus=0"]
        done = subprocess.run(
            [*command, f"--node-name={options['name']}", *resources],
            env=environ,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
            # Its background processes must not end with the command.
            start_new_session=True,
        )
        if done.returncode != 0:
            end_processes(temp)
            said = (done.stderr + done.stdout).decode(errors="replace").strip()[-800:]
            raise Mistake("no_start", f"Ray could not be started on {address}: {said}")
    report({"started": True})


def await_no_node(store, host):
    """Waits until Ray has noticed the death of a node at this address. Raises Mistake if one is alive."""
    until = time.monotonic() + DEATH_KNOWN
    while ports := [node["port"] for node in store.nodes().values() if node["address"] == host]:
        if any(is_open(host, port) for port in ports):
            raise Mistake("joined", f"The cluster has a node at {host} already. Stop it, or choose another address with --bind.")
        if time.monotonic() > until:
            raise Mistake("not_gone", f"The cluster does not know yet that the node at {host} has died. Try again in a minute.")
        time.sleep(LOOK)


def join(options):
    """Runs a node of a cluster with a member, until it is ended."""
    store = open_store(options["address"])
    os.makedirs(options["folder"], mode=0o700, exist_ok=True)
    # Held as long as this process lives. Ray's processes do not inherit it.
    lock = os.open(os.path.join(options["folder"], "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Mistake("joined", f"A node of this data directory runs already: {options['folder']}.") from error
    os.set_inheritable(lock, True)
    await_no_node(store, options["host"])
    # Its processes die with this one. Leftovers of an earlier one are ended first.
    end_processes(options["temp"])
    shutil.rmtree(options["temp"], ignore_errors=True)
    os.makedirs(options["temp"], mode=0o700)
    command = node_command(options["host"], options["temp"])
    report({"joining": options["address"]})
    os.execv(
        command[0],
        [
            *command,
            f"--address={options['address']}",
            f"--node-name={options['name']}",
            "--num-cpus=0",
            f"--resources={json.dumps({RESOURCE: 1, JOINED: 1})}",
            "--block",
        ],
    )


def stop(options):
    """Ends the Ray that corral started on this machine."""
    with locked(options["folder"]):
        end_processes(options["temp"])
        shutil.rmtree(options["temp"], ignore_errors=True)
        shutil.rmtree(os.path.join(options["folder"], "gcs"), ignore_errors=True)
    report({"ended": True})


COMMANDS = {"up": up, "down": down, "status": status, "watch": watch, "head": head, "join": join, "stop": stop}


def main():
    options = json.loads(sys.argv[2])
    try:
        COMMANDS[sys.argv[1]](options)
    except Mistake as error:
        report({"error": str(error), "code": error.code})
        sys.exit(1)


if __name__ == "__main__":
    main()
