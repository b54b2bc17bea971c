"""Processes, ports, an upstream, and HTTP requests, all on loopback."""

import contextlib
import http.client
import http.server
import os
import random
import signal
import socket
import subprocess
import threading
import time
from typing import NamedTuple

START_SECONDS = 60
STOP_SECONDS = 30


class Failed(Exception):
    """A check is false, or a program does not start."""


def free_address():
    """An address with a port that no outgoing connection gets."""
    for _ in range(100):
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return f"127.0.0.1:{port}"
    raise Failed("found no free port in 100 attempts")


def accepts(where):
    """Whether HOST:PORT or unix:PATH accepts connections."""
    with contextlib.suppress(OSError):
        if where.startswith("unix:"):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(5)
                probe.connect(where.removeprefix("unix:"))
                return True
        host, port = where.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=5):
            return True
    return False


class Process:
    """A process that a `with` block ends, by its id."""

    def __init__(self, name, command, log, addresses, env=None, cwd=None):
        self.name, self.command, self.log, self.addresses = name, command, log, addresses
        self.options = {"env": env, "cwd": cwd}
        self.process = None

    def start(self):
        with open(self.log, "ab") as log:
            # The signal is for the case that something kills the trial: it cannot end its processes then.
            command = ["setpriv", "--pdeathsig", "KILL", *self.command]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self.options)
        deadline = time.monotonic() + START_SECONDS
        for where in self.addresses:
            while not accepts(where):
                if self.process.poll() is not None:
                    raise Failed(f"{self.name} ended while starting:\n{self.tail()}")
                if time.monotonic() > deadline:
                    raise Failed(f"{self.name} does not accept connections at {where}:\n{self.tail()}")
                time.sleep(0.05)

    def stop(self):
        """Ends the process and returns its exit code."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()

    def tail(self):
        with open(self.log, errors="replace") as log:
            return "".join(log.readlines()[-20:])

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()


class Upstream:
    """An HTTP server behind the proxies that counts the requests that reach it."""

    def __init__(self):
        upstream = self
        self.requests = 0

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                upstream.requests += 1
                self.send_response(200)
                self.send_header("Content-Length", "8")
                self.end_headers()
                self.wfile.write(b"upstream")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes


def fetch(where, path, headers=None, method="GET", body=None, source=None):
    """The answer of HOST:PORT to one request. SOURCE is the address to call from."""
    host, port = where.rsplit(":", 1)
    source_address = (source, 0) if source else None
    connection = http.client.HTTPConnection(host, int(port), timeout=30, source_address=source_address)
    with contextlib.closing(connection):
        connection.request(method, path, body=body, headers=headers or {})
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())


def environment(directory):
    """The environment without a database, a proxy, or settings of tollgate, and with DIRECTORY as home."""
    dropped = ("DATABASE_URL", "TOLLGATE_", "XDG_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "GRPC_", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(dropped)}
    return {**kept, "HOME": str(directory), "XDG_DATA_HOME": str(directory), "XDG_CONFIG_HOME": str(directory)}
