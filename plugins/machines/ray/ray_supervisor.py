"""The supervisor: the actor that keeps one corral alive on its node of the Ray cluster."""

import collections
import contextlib
import json
import logging
import logging.handlers
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

from ray_decisions import corral_environment, Mistake, next_wait
from ray_store import Store

KEY_NAME = "cluster"
# Seconds.
CHECK = 5.0  # between two checks that supervisors are alive
HANGS = 60.0  # without an answer, a corral is restarted


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
