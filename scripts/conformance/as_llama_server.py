"""
llama.cpp's tests start this instead of llama-server. It lets the conformance run start corral with the same flags, runs as
long as corral does, and stops it at SIGTERM.
"""

import json
import os
import signal
import socket
import sys

connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["CORRAL_LAUNCHER"])
signal.signal(signal.SIGTERM, lambda *_: connection.shutdown(socket.SHUT_WR))
connection.sendall((json.dumps({"args": sys.argv[1:], "cwd": os.getcwd()}) + "\n").encode())
failure = connection.makefile().read()
if failure:
    sys.exit(failure)
