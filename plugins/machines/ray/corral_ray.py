"""Runs a corral on every node of a Ray cluster that has the resource "corral", and reports them to gateways.

The controller (an actor) starts a supervisor (an actor) on each such node, also on those that join later. The supervisor
keeps one corral alive there. Both are detached: they belong to no driver, and Ray restarts them when they die. Their state
is in the key-value store of Ray's head. A gateway reads it there, without a Ray node of its own, and writes how many
members it wants. In these files a "node" is Ray's, and the corral on it is a "member".

The program gets the name of a command and its options as JSON, which contain no secrets. It prints lines of JSON: with a
prefix on standard output, where Ray prints too, and on file descriptor 3 when it watches. Nothing imports Ray at the top,
so the decisions can be tested without it.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
# Python runs isolated (`-I`), without the folder of the program.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from ray_controller import Controller
from ray_decisions import Mistake
from ray_processes import end_processes, is_here, is_open, locked, node_command, processes_of
from ray_store import forget, JOINED, NAMESPACE, reachable, RESOURCE, Store
from ray_supervisor import start_bound

CONTROLLER = "controller"
# Modules with the code of the actors.
ACTOR_MODULES = ("ray_controller", "ray_decisions", "ray_store", "ray_supervisor")
# Seconds.
LOOK = 0.25  # between two reads of the store
SILENT = 15.0  # without a sign of the controller, a gateway reports it
WANT_BEAT = 10.0  # between two signs of a gateway that wants members
DEATH_KNOWN = 60.0  # within which Ray notices that a node has died


def report(value, file=1):
    """Prints one line of JSON for the parent process."""
    mark = "corral-ray: " if file == 1 else ""
    left = f"{mark}{json.dumps(value)}\n".encode()
    while left:
        left = left[os.write(file, left) :]


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
    code = hashlib.sha256()
    for name in ACTOR_MODULES:
        with open(sys.modules[name].__file__, "rb") as file:
            code.update(file.read())
    settings["code"] = code.hexdigest()[:12]
    with driver(store, options) as ray:
        # The nodes do not have these modules, so the actors bring their code.
        for name in ACTOR_MODULES:
            ray.cloudpickle.register_pickle_by_value(sys.modules[name])
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
