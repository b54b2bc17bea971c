"""Checks of the JSON endpoints, request by request."""

import concurrent.futures
import contextlib
import json
import re
import socket
import sqlite3
import time
import uuid
from urllib.parse import urlencode

from expect import check, equal
from programs import fetch
from rls import METHOD

HOUR = 3_600
MAX_BODY = 65_536
CHAT = "60/h; tokens: 1000/h cost tokens"


class Server:
    """A server that speaks JSON at HOST:PORT."""

    def __init__(self, where):
        self.where = where

    def post(self, path, body, headers=None):
        """Sends BODY as JSON, or bytes as they are."""
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        return fetch(self.where, path, {"Content-Type": "application/json", **(headers or {})}, "POST", body)

    def get(self, path, headers=None, **query):
        return fetch(self.where, f"{path}?{urlencode(query)}" if query else path, headers)

    def take(self, *limits, **body):
        return self.post("/v1/take", {"limits": list(limits), **body})

    def available(self, key, index=0, **query):
        return read(self.get("/v1/peek", key=key, **query))["each"][index]["available"]

    def raw(self, data):
        """The answer to these bytes, whole, after which the client sends no more."""
        host, port = self.where.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(MAX_BODY), b""))


def limit(key, text=None, **fields):
    return {"key": key, **({"limit": text} if text else {}), **fields}


def new_id():
    return str(uuid.uuid4())


def read(answer):
    return json.loads(answer.body)


def is_problem(what, answer, status, *texts):
    """Checks the status of an error, its form, and that its detail has these texts."""
    equal(f"{what}: the status is {status}", answer.status, status)
    equal(f"{what}: problem details", answer.headers.get_all("Content-Type"), ["application/problem+json"])
    problem = read(answer)
    equal(f"{what}: the body has the status", problem.get("status"), status)
    equal(f"{what}: and a title and a detail", sorted(problem), ["detail", "status", "title"])
    for text in texts:
        check(f"{what}: the detail has '{text}'", text in problem.get("detail", ""), problem)


def endpoints(server):
    """Each endpoint of /v1, as a client uses it."""
    answers = [server.take(limit("user:1", "2/h burst 2")) for _ in range(3)]
    equal("/v1/take: 2 of 3 pass", [a.status for a in answers], [200, 200, 429])
    equal("/v1/take: the body agrees", [read(a)["granted"] for a in answers], [True, True, False])
    equal("/v1/take: what remains", [read(a)["remaining"] for a in answers], [1, 0, 0])
    denied = read(answers[2])
    seconds = answers[2].headers.get_all("Retry-After", [])
    rounded_up = [str(-(-denied["retry_after_ms"] // 1000))]
    equal("/v1/take: Retry-After is retry_after_ms in whole seconds", seconds, rounded_up)
    check("/v1/take: of at most half an hour", 0 < int(seconds[0]) <= HOUR / 2, seconds)
    check("/v1/take: a granted request has no Retry-After", "Retry-After" not in answers[0].headers)

    tight, wide = limit("user:2", "1/h burst 1"), limit("tenant:2", "10/h")
    answers = [server.take(tight, wide) for _ in range(3)]
    equal("/v1/take: the tighter of two limits denies", [a.status for a in answers], [200, 429, 429])
    equal("/v1/take: the body names it", read(answers[1])["key"], "user:2")
    equal("/v1/take: an answer for each limit", [one["key"] for one in read(answers[1])["each"]], ["user:2", "tenant:2"])
    equal("/v1/take: the denied took nothing from the other", server.available("tenant:2"), 9)

    chat = server.take(limit("chat", CHAT), costs={"tokens": 400})
    found = [(one["limit"], one["remaining"]) for one in read(chat)["each"]]
    equal("/v1/take: a named cost is taken from its limit", found, [(None, 59), ("tokens", 600)])
    statuses = [server.take(limit("chat", CHAT), costs={"tokens": 400}).status for _ in range(2)]
    equal("/v1/take: and exhausts it", statuses, [200, 429])
    equal("/v1/take: the denied took no request", server.available("chat"), 58)

    first = new_id()
    answers = [server.take(limit("once", "10/h"), cost=4, id=first) for _ in range(3)]
    equal("/v1/take: a repeated id passes", [a.status for a in answers], [200] * 3)
    equal("/v1/take: and takes once", server.available("once"), 6)

    own = server.take(limit("own", "10/h", cost=3), limit("other", "10/h"), cost=2)
    equal("/v1/take: a limit's own cost precedes", [one["remaining"] for one in read(own)["each"]], [7, 8])
    kept = [server.take(limit("kept", "10/h"), min_remaining=8).status for _ in range(3)]
    equal("/v1/take: min_remaining leaves tokens", kept, [200, 200, 429])
    modes = {mode: server.take(limit("mode", "10/h", mode=mode)).status for mode in ("off", "shadow", "block")}
    equal("/v1/take: modes", modes, {"off": 200, "shadow": 200, "block": 429})
    blocked = server.take(limit("mode", "10/h", mode="block"))
    check("/v1/take: a blocked request has no Retry-After", "Retry-After" not in blocked.headers)

    for path, spent, field in [("settle", {"used": 1}, 9), ("refund", {"unused": 3}, 8), ("cancel", {}, None)]:
        key, taken = f"by {path}", new_id()
        server.take(limit(key, "10/h"), cost=5, id=taken)
        body = {"id": taken, "key": key, "taken": 5, **spent}
        outcomes = [read(server.post(f"/v1/{path}", body)) for _ in range(2)]
        if field is None:
            # Tokens that were granted at once have no scheduled time to come.
            late = {"outcome": "late", "given_back": 0}
            equal("/v1/cancel: a request that did not wait is late", outcomes, [late, late])
            equal("/v1/cancel: and keeps its tokens", server.available(key), 5)
        else:
            done = {"outcome": "done", "given_back": field - 5}
            equal(f"/v1/{path}: is made once", outcomes, [done, {"outcome": "repeated", "given_back": 0}])
            equal(f"/v1/{path}: the bucket has the tokens", server.available(key), field)
    taken = new_id()
    server.take(limit("settled", CHAT), costs={"tokens": 100}, id=taken)
    body = {"id": taken, "key": "settled", "limit_name": "tokens", "taken": 100, "used": 150}
    found = read(server.post("/v1/settle", body))
    equal("/v1/settle: charges what was used beyond", found, {"outcome": "done", "given_back": -50})
    equal("/v1/settle: of the named limit", server.available("settled", 1, limit=CHAT) // 10, 85)
    body = {"id": new_id(), "key": "settled", "taken": 1, "used": 1}
    found = read(server.post("/v1/settle", body))
    equal("/v1/settle: an unknown id is late", found, {"outcome": "late", "given_back": 0})

    charged = read(server.post("/v1/charge", {"limits": [limit("debt", "10/h")], "cost": 30}))
    equal("/v1/charge: charges more than there is", charged, {"charged": True})
    equal("/v1/charge: the bucket owes the rest", server.available("debt"), -20)
    denied = server.take(limit("debt", "10/h"))
    equal("/v1/charge: the next request is denied", denied.status, 429)
    wait = int(denied.headers["Retry-After"])
    check("/v1/charge: until the debt is paid", 2 * HOUR < wait <= 2.1 * HOUR, wait)
    body = {"limits": [limit("charged", "10/h")], "cost": 2, "id": new_id()}
    found = [read(server.post("/v1/charge", body))["charged"] for _ in range(2)]
    equal("/v1/charge: a repeated id charges once", (found, server.available("charged")), ([True, False], 8))

    level = {"key": "upstream of a day", "limit": "10 per calendar 1d", "remaining": 3}
    found = [read(server.post("/v1/throttle", level))["lowered"] for _ in range(2)]
    equal("/v1/throttle: lowers once", (found, server.available("upstream of a day")), ([True, False], 3))
    level = {"key": "upstream", "limit": "10/h", "retry_after_ms": 900_000}
    equal("/v1/throttle: empties for a time", read(server.post("/v1/throttle", level)), {"lowered": True})
    wait = int(server.take(limit("upstream", "10/h")).headers["Retry-After"])
    check("/v1/throttle: requests are denied for that time", 890 < wait <= 1260, wait)

    found = read(server.get("/v1/peek", key="unused", limit="10/s burst 20"))["each"]
    fresh = {"key": "unused", "limit": None, "quota": "10/s burst 20", "capacity": 20, "available": 20}
    equal("/v1/peek: an unused bucket is full", found, [{**fresh, "next_refill_at": None, "full_at": None}])
    found = read(server.get("/v1/peek", key="user:1"))["each"][0]
    check("/v1/peek: states when tokens come", found["next_refill_at"] < found["full_at"], found)
    found = read(server.get("/v1/explain", key="user:1"))
    equal("/v1/explain: the limit and the outcome", (found["quota"], found["expected"]), ("2/h", "denied"))
    found = read(server.get("/v1/explain", key="nosuch"))
    equal("/v1/explain: an unknown bucket", (found["known"], found["expected"]), (False, "unknown_bucket"))
    found = read(server.get("/v1/explain", key="user:1", plan="nosuch"))
    equal("/v1/explain: an unknown plan", found["expected"], "unknown_plan")


def waits(server):
    """Requests that wait, for their tokens or in vain."""
    server.take(limit("queue", "1/s burst 1"))
    answer = read(server.take(limit("queue", "1/s burst 1"), max_wait_ms=5000))
    check("/v1/take: max_wait_ms waits for a token", answer["granted"] and 0 < answer["waited_ms"] <= 1000, answer)

    slow = limit("slow queue", "2/m burst 1")
    server.take(slow)
    equal("/v1/take: too long a wait is denied", server.take(slow, max_wait_ms=2000).status, 429)

    body = json.dumps({"limits": [slow], "max_wait_ms": 30_000}).encode()
    host, port = server.where.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        head = f"POST /v1/take HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        until(lambda: server.available("slow queue") == -1)
        equal("/v1/take: a request that waits has its token", server.available("slow queue"), -1)
    until(lambda: server.available("slow queue") == 0)
    equal("/v1/take: and gives it back if its client leaves", server.available("slow queue"), 0)


def until(holds):
    """Waits for a state that comes soon, so that the check after it can fail."""
    deadline = time.monotonic() + 30
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)


def refusals(server):
    """Requests that are not valid."""
    ok = limit("refused", "10/h")
    take = {"limits": [ok]}

    for path in ("/v1/take", "/v1/throttle"):
        body = take if path == "/v1/take" else {**ok, "remaining": 1}
        planned = {"limits": [limit("nosuch", plan="nosuch")]}
        planned = planned if path == "/v1/take" else {"key": "nosuch", "plan": "nosuch", "remaining": 1}
        is_problem(f"{path}: an unknown plan", server.post(path, planned), 404, "nosuch")
        is_problem(f"{path}: an unknown field", server.post(path, {**body, "costt": 1}), 400, "costt")
        is_problem(f"{path}: half a body", server.post(path, json.dumps(body).encode()[:-1]), 400)
        is_problem(f"{path}: no body", server.post(path, b""), 400)
        is_problem(f"{path}: another type", server.post(path, body, {"Content-Type": "text/plain"}), 415)
        is_problem(f"{path}: too long a body", server.post(path, b" " * (MAX_BODY + 1)), 413, str(MAX_BODY))
        is_problem(f"{path}: the longest body", server.post(path, b" " * MAX_BODY), 400)
        equal(f"{path}: GET is another method", server.get(path).status, 405)
        equal(f"{path}: which the answer names", server.get(path).headers["Allow"], "POST")
    peeked = server.get("/v1/peek", key="nosuch", plan="nosuch")
    is_problem("/v1/peek: an unknown plan", peeked, 404, "nosuch")
    is_problem("/v1/peek: an unknown bucket", server.get("/v1/peek", key="nosuch"), 404, "nosuch")
    is_problem("/v1/peek: no key", server.get("/v1/peek"), 400, "key")
    is_problem("/v1/peek: an unknown parameter", server.get("/v1/peek", key="a", x="b"), 400, "x")
    is_problem("/v1/peek: a sliding window", server.get("/v1/peek", key="a", limit="9 in 60s at 5s"), 422)
    is_problem("/v1/explain: a limit", server.get("/v1/explain", key="a", limit="1/s"), 400, "limit")

    bodies = {
        "cost above capacity": (422, {**take, "cost": 11}, "11", "10"),
        "cost of 0": (422, {**take, "cost": 0}, "0"),
        "cost beyond 64 bits": (400, {**take, "cost": 2**64}),
        "negative cost": (400, {**take, "cost": -1}, "-1"),
        "min_remaining above capacity": (422, {**take, "min_remaining": 10}, "10"),
        "unknown cost": (422, {**take, "costs": {"tokens": 1}}, "tokens"),
        "missing cost": (422, {"limits": [limit("chat", CHAT)]}, "tokens"),
        "no limit": (400, {"limits": []}, "16"),
        "17 limits": (400, {"limits": [limit(f"key {index}", "1/s") for index in range(17)]}, "17", "16"),
        "max_wait_ms of 30,001": (400, {**take, "max_wait_ms": 30_001}, "30000"),
        "malformed id": (400, {**take, "id": "1"}),
        "malformed limit": (400, {"limits": [limit("refused", "ten")]}, "ten"),
        "unknown mode": (400, {"limits": [{**ok, "mode": "on"}]}, "on", "enforce"),
        "limit and plan": (400, {"limits": [{**ok, "plan": "free"}]}, "plan"),
        "empty key": (400, {"limits": [limit("", "1/s")]}, "255"),
        "key of 256 bytes": (400, {"limits": [limit("ü" * 128, "1/s")]}, "256"),
        "key with NUL": (400, {"limits": [limit("a\0", "1/s")]}, "NUL"),
        "bucket without a limit": (404, {"limits": [limit("nosuch")]}, "nosuch"),
        "window among others": (422, {"limits": [ok, limit("window", "9 in 60s at 5s")]}, "window"),
    }
    for name, (status, body, *texts) in bodies.items():
        is_problem(f"/v1/take: {name}", server.post("/v1/take", body), status, *texts)
    equal("/v1/take: a key of 255 bytes passes", server.take(limit("k" * 255, "1/s")).status, 200)
    equal("/v1/take: those that were refused took nothing", read(server.take(ok))["remaining"], 9)

    first = new_id()
    server.take(ok, cost=2, id=first)
    is_problem("/v1/take: the id of another request", server.take(ok, cost=3, id=first), 409, first)
    charge = server.post("/v1/charge", {**take, "max_wait_ms": 1})
    is_problem("/v1/charge: max_wait_ms", charge, 400, "max_wait_ms")
    adjusted = {"id": new_id(), "key": "refused", "taken": 1}
    for path, field in [("settle", "used"), ("refund", "unused")]:
        is_problem(f"/v1/{path}: without {field}", server.post(f"/v1/{path}", adjusted), 400, field)
    is_problem("/v1/cancel: with used", server.post("/v1/cancel", {**adjusted, "used": 1}), 400, "used")
    is_problem("/v1/throttle: no level", server.post("/v1/throttle", ok), 400, "remaining")


def probes(server):
    for path in ("/livez", "/readyz", "/healthcheck"):
        answer = server.get(path)
        equal(f"{path}: the server answers", (answer.status, answer.body), (200, b"ok\n"))


def operators(admin, server):
    """The endpoints of operators. SERVER decides a request, so that it counts."""
    descriptor = {"entries": [{"key": "tenant", "value": "counted"}]}
    equal("POST /json: passes", server.post("/json", {"domain": "edge", "descriptors": [descriptor]}).status, 200)
    metrics = admin.get("/metrics")
    counted = b'tollgate_serve_decisions_total{domain="edge",rule="tenant",outcome="granted"} 1\n'
    check("/metrics: counts the decision", metrics.status == 200 and counted in metrics.body, metrics.body)
    config = admin.get("/config")
    for line in (b"edge tenant: 5 per calendar 1d\n", b"check login: 20/h\n"):
        check(f"/config: lists {line.decode().strip()}", config.status == 200 and line in config.body, config.body)
    for path in ("/metrics", "/config"):
        refused = admin.get(path, {"Host": "tollgate.example"})
        is_problem(f"{path}: another name of the host", refused, 421, "address")
        equal(f"{path}: localhost", admin.get(path, {"Host": "localhost:9090"}).status, 200)


def leases(server, admin):
    """A busy key is served from prefetched tokens."""
    body = {"domain": "edge", "descriptors": [{"entries": [{"key": "busy", "value": "x"}]}]}
    leased = None
    for _ in range(20):
        for _ in range(200):
            answer = server.post("/json", body)
            if answer.status != 200:
                equal("a busy key passes", answer.status, 200)
        leased = re.search(rb'^tollgate_decisions_total{[^}]*source="lease"[^}]*} [1-9]', admin.get("/metrics").body, re.M)
        if leased:
            break
    check("a busy key is served from a lease", leased, admin.get("/metrics").body)


def token(server, metrics, secret):
    """A server that needs a token, and the address with its metrics."""
    for name, value in [("no", None), ("another", f"Bearer {secret[::-1]}"), ("a shorter", f"Bearer {secret[:-1]}")]:
        answer = server.get("/v1/peek", {"Authorization": value} if value else None, key="a", limit="1/s")
        is_problem(f"/v1/peek: with {name} token", answer, 401, "Bearer")
        equal(f"/v1/peek: with {name} token, the scheme", answer.headers["WWW-Authenticate"], "Bearer")
    for scheme in ("Bearer", "bearer"):
        answer = server.get("/v1/peek", {"Authorization": f"{scheme} {secret}"}, key="a", limit="1/s")
        equal(f"/v1/peek: with the token as {scheme}", answer.status, 200)
    is_problem("/check/login: without a token", server.get("/check/login"), 401)
    collected = metrics.get("/metrics", {"Host": "tollgate.example"})
    check("/metrics: counts them", b"tollgate_serve_unauthorized_total 4\n" in collected.body, collected.body)
    equal("/config: is not where the metrics are", metrics.get("/config").status, 404)
    probes(server)


def unusual(server, admin, path, database):
    """Requests that are wrong, cut short or late. PATH is the server's socket, and DATABASE the file with its buckets."""
    for unknown in ("/nosuch", "/v1/nosuch", "/check/", "/livez/", "/metrics"):
        is_problem(f"GET {unknown}", server.get(unknown), 404)
    is_problem("GET /check/%FF", server.get("/check/%FF"), 400)
    for called in ("/v1/peek?key=a&limit=1/s", "/json"):
        is_problem(f"{called}: another host", server.get(called, {"Host": "tollgate.example"}), 421, "address")
    # As a page of a browser, or an Envoy without HTTP/2.
    for kind in ("text/plain", "application/grpc"):
        is_problem(f"gRPC as {kind} over HTTP/1.1", server.post(METHOD, b"", {"Content-Type": kind}), 415, "HTTP/2")
    unnamed = [[["unnamed", "10/h", None, None, None, None]], 1, {}, 0, 0, None, None]
    is_problem("/v1/take: an array instead of an object", server.post("/v1/take", unnamed), 400)
    adjusted = {"id": new_id(), "key": "refused", "taken": 0}
    is_problem("/v1/cancel: taken 0", server.post("/v1/cancel", adjusted), 400, "taken")
    costs = {f"cost{index}": 1 for index in range(17)}
    is_problem("/v1/take: 17 costs", server.take(limit("refused", "10/h"), costs=costs), 400, "17", "16")
    costs = server.take(limit("refused", "10/h"), costs={"1st": 1})
    is_problem("/v1/take: a malformed name of a cost", costs, 400, "1st")
    named = {"id": new_id(), "key": "refused", "taken": 1, "limit_name": "1st", "unused": 1}
    is_problem("/v1/refund: a malformed name of a limit", server.post("/v1/refund", named), 400, "1st")
    kept = server.post("/v1/charge", {"limits": [limit("refused", "10/h", min_remaining=1)]})
    is_problem("/v1/charge: min_remaining of a limit", kept, 400, "min_remaining")
    is_problem("/v1/peek: a key that is not UTF-8", server.get("/v1/peek?key=%FF"), 400, "UTF-8")
    head = b"POST /v1/take HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    answer = server.raw(head + b"Content-Length: 9\r\n\r\n{")
    check("/v1/take: half a body is 400, and not too long", answer.startswith(b"HTTP/1.1 400 "), answer)

    answers = [
        server.take(limit("nosuch")),
        server.take(limit("chat", CHAT)),
        server.take(limit("chat", CHAT), costs={"tokens": 5000}),
        server.post("/v1/take", b"null"),
        server.post("/v1/charge", {"limits": [limit("window", "9 in 60s at 5s")]}),
        server.get("/v1/peek", key="window", limit="9 in 60s at 5s"),
    ]
    internals = ("::", "create_bucket", "peek_window", "struct ", "\1")
    for detail in (read(answer)["detail"] for answer in answers):
        leaked = [name for name in internals if name in detail]
        check("a detail has no internals", not leaked, detail)

    denied = [fetch(server.where, "/check/nginx", {"X-API-Key": "denied"}) for _ in range(3)][2]
    equal("/check/nginx: the body has the status", (denied.status, read(denied).get("status")), (403, 403))
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.settimeout(30)
        connection.connect(path)
        head = b"GET /check/login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        connection.sendall(head + b"X-Forwarded-For: 203.0.113.70\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(MAX_BODY), b""))
    check("/check/login: a proxy over a socket passes", answer.startswith(b"HTTP/1.1 200 "), answer)
    descriptor = {"entries": [{"key": "tenant", "value": "twice"}]}
    answer = server.post("/json", {"domain": "edge", "descriptors": [descriptor, descriptor]})
    found = read(answer)["statuses"]
    equal("POST /json: equal descriptors have equal statuses", found[1], found[0])
    equal("/config: LOCALHOST", admin.get("/config", {"Host": "LOCALHOST"}).status, 200)

    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as locking:
        locking.execute("BEGIN EXCLUSIVE")
        body = {"id": new_id(), "key": "refused", "taken": 1, "used": 1}
        for call in (lambda: server.take(limit("refused", "10/h")), lambda: server.post("/v1/settle", body)):
            is_problem("a locked database", call(), 503)
        with concurrent.futures.ThreadPoolExecutor(50) as threads:
            list(threads.map(lambda index: server.take(limit(f"locked {index}", "10/h")), range(50)))
        answer = server.take(limit("locked", "10/h"))
        check("an open circuit breaker: Retry-After", answer.headers.get("Retry-After", "").isdecimal(), answer)
        locking.execute("ROLLBACK")
