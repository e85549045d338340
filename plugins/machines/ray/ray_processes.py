"""The processes of a Ray that corral starts on this machine."""

import contextlib
import fcntl
import os
import signal
import socket
import sys
import time

from ray_store import reachable


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
