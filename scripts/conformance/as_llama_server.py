"""
What llama.cpp's tests start in the place of llama-server: has the conformance run start corral with the same flags, lives
as long as that does, and ends it by SIGTERM.
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
