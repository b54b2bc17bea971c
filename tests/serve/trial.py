"""Checks `tollgate serve` with the programs that call it. scripts/serve runs this with the paths of the programs.

Prints a line for each check. Exits with 1 at the first that is false, after the end of each process that it started.
"""

import argparse
import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import envoy
import grpc
import openapi
import rls
import v1
from expect import check, end, equal
from programs import Failed, Process, Upstream, environment, fetch, free_address

HERE = Path(__file__).parent
HOUR, DAY = 3_600, 86_400
# No window of edge.yaml may end during the trial.
LONGEST_TRIAL = 300
RLS = "envoy.service.ratelimit.v3.RateLimitService"

def statuses(where, path, count, headers=None):
    return [fetch(where, path, headers).status for _ in range(count)]


def is_denial(what, answer, longest, details=True):
    """Checks the status, headers and body of a denial. LONGEST bounds Retry-After."""
    equal(f"{what}: the status is 429", answer.status, 429)
    waits = answer.headers.get_all("Retry-After", [])
    holds = len(waits) == 1 and waits[0].isdecimal() and 1 <= int(waits[0]) <= longest
    check(f"{what}: one Retry-After, of 1 to {longest} s", holds, waits)
    ratelimit = ", ".join(answer.headers.get_all("RateLimit", []))
    check(f"{what}: RateLimit states what remains", re.search(r'^"?[^"]+"?;.*\br=\d+', ratelimit), repr(ratelimit))
    policy = ", ".join(answer.headers.get_all("RateLimit-Policy", []))
    check(f"{what}: RateLimit-Policy states the quota", re.search(r"\bq=\d+", policy), repr(policy))
    equal(f"{what}: the body is problem+json", answer.headers.get_all("Content-Type"), ["application/problem+json"])
    problem = json.loads(answer.body)
    equal(f"{what}: the body has the status", problem.get("status"), 429)
    check(f"{what}: the body has a title", problem.get("title"), answer.body)
    if details:
        check(f"{what}: the body names the type", problem.get("type"), answer.body)


class Trial:
    def __init__(self, programs, directory, stack):
        self.programs, self.directory, self.stack = programs, directory, stack
        self.environment = environment(directory)
        self.upstream = stack.enter_context(Upstream())
        self.processes = []

    def run(self, command):
        """Runs a command to its end, and returns its exit code and output."""
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, env=self.environment
        )
        return done.returncode, done.stdout + done.stderr

    def process(self, name, command, addresses):
        log = self.directory / f"{name}.log"
        process = Process(name, command, log, addresses, self.environment, self.directory)
        self.processes.append(process)
        return self.stack.enter_context(process)

    def tollgate(self, name, config, listen, *options):
        """Starts a server with a database of its own."""
        url = f"sqlite:{self.directory}/{name}.db"
        code, output = self.run([self.programs.tollgate, "migrate", "--database-url", url])
        equal(f"{name}: tollgate migrate succeeds", (code, output if code else ""), (0, ""))
        admin = free_address()
        command = [self.programs.tollgate, "serve", "--config", HERE / config, "--listen", listen, "--admin", admin]
        process = self.process(name, [*command, *options, "--database-url", url], [listen, admin])
        process.admin, process.database = admin, url.removeprefix("sqlite:")
        return process

    def written(self, template, **values):
        """Writes the file with these values in the place of @NAME@."""
        values["DIR"] = self.directory
        text = re.sub(r"@([A-Z]+)@", lambda match: str(values[match[1]]), (HERE / template).read_text())
        path = self.directory / template
        path.write_text(text)
        return path

    def reaching_upstream(self, calls):
        """The result of CALLS, and how many requests reached the upstream meanwhile."""
        before = self.upstream.requests
        result = calls()
        return result, self.upstream.requests - before

    # The protocol, without a proxy.

    def grpcio(self, where):
        # The name of a path is not a valid authority.
        options = [("grpc.enable_http_proxy", 0), ("grpc.default_authority", "localhost")]
        channel = self.stack.enter_context(grpc.insecure_channel(where, options=options))
        client = {"remote_address": "198.51.100.1"}
        answers = [rls.call(channel, rls.request("edge", client)) for _ in range(4)]
        equal("grpcio: 3 of 4 pass", [a.overall_code for a in answers], [rls.OK] * 3 + [rls.OVER_LIMIT])
        first, denied = answers[0].statuses, answers[3].statuses
        equal("grpcio: a status for each descriptor", (len(first), len(denied)), (1, 1))
        limit = (first[0].current_limit.requests_per_unit, first[0].current_limit.unit)
        equal("grpcio: the status has the limit", limit, (3, rls.DAY))
        equal("grpcio: what remains", [a.statuses[0].limit_remaining for a in answers], [2, 1, 0, 0])
        check("grpcio: the time until reset", 1 <= denied[0].duration_until_reset.seconds <= DAY, denied)

        cost = [rls.call(channel, rls.request("edge", {"tenant": "cost"}, hits_addend=3)) for _ in range(2)]
        equal("grpcio: hits_addend 3 passes once in 5", [a.overall_code for a in cost], [rls.OK, rls.OVER_LIMIT])
        rest = rls.call(channel, rls.request("edge", {"tenant": "cost"}, hits_addend=2))
        equal("grpcio: the denied cost took nothing", rest.overall_code, rls.OK)

        several = rls.call(channel, rls.request("edge", client, {"tenant": "both"}))
        codes = [status.code for status in several.statuses]
        equal("grpcio: only one of two descriptors is over", codes, [rls.OVER_LIMIT, rls.OK])
        equal("grpcio: that denies the request", several.overall_code, rls.OVER_LIMIT)
        after = rls.call(channel, rls.request("edge", {"tenant": "both"}))
        equal("grpcio: the other descriptor took nothing", after.statuses[0].limit_remaining, 4)

        for domain, descriptor in [("nosuch", client), ("edge", {"nosuch": "key"})]:
            code = rls.call(channel, rls.request(domain, descriptor)).overall_code
            equal(f"grpcio: {next(iter(descriptor))} in domain {domain} passes", code, rls.OK)

        code = grpc.StatusCode
        self.is_error("malformed protobuf", rls.error(channel, b"\xff\xff\xff"), code.INVALID_ARGUMENT, code.INTERNAL)
        many = rls.request("edge", *({"tenant": f"number {number}"} for number in range(10_000)))
        refused = (code.INVALID_ARGUMENT, code.RESOURCE_EXHAUSTED, code.OUT_OF_RANGE)
        self.is_error("10,000 descriptors", rls.error(channel, many), *refused)
        code = rls.call(channel, rls.request("edge", {"tenant": "number 0"})).statuses[0].limit_remaining
        equal("grpcio: the server answers afterwards, and they took nothing", code, 4)

    @staticmethod
    def is_error(what, error, *codes):
        check(f"grpcio: {what} is an error", error is not None)
        check(f"grpcio: {what} has a code that says so", error.code() in codes, error)
        check(f"grpcio: {what} has a message", error.details(), error)

    def grpcurl(self, where):
        over_unix = where.startswith("unix:")
        # Without a name, grpcurl states the path as the host, which HTTP/2 does not allow.
        target = ["-authority", "localhost", "-unix", where.removeprefix("unix:")] if over_unix else [where]
        name = "grpcurl over unix" if over_unix else "grpcurl"

        def grpcurl(*arguments, data=None):
            options = ["-plaintext", "-max-time", "30", *(("-d", json.dumps(data)) if data is not None else ())]
            code, output = self.run([self.programs.grpcurl, *options, *target, *arguments])
            return output if code == 0 else f"exit code {code}: {output}"

        services = grpcurl("list").split()
        check(f"{name}: reflection lists the service", RLS in services, services)
        check(f"{name}: reflection lists the health check", "grpc.health.v1.Health" in services, services)
        check(f"{name}: reflection describes the method", "rpc ShouldRateLimit" in grpcurl("describe", RLS))
        for service in ("", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"):
            health = grpcurl("grpc.health.v1.Health/Check", data={"service": service})
            check(f"{name}: '{service}' is healthy", '"SERVING"' in health, health)
        request = {"domain": "edge", "descriptors": [{"entries": [{"key": "remote_address", "value": f"{name}"}]}]}
        answers = [grpcurl(f"{RLS}/ShouldRateLimit", data=request) for _ in range(4)]
        codes = [json.loads(a)["overallCode"] if a.startswith("{") else a for a in answers]
        equal(f"{name}: 3 of 4 pass", codes, ["OK"] * 3 + ["OVER_LIMIT"])

    @staticmethod
    def json(where):
        entries = [{"key": "remote_address", "value": "198.51.100.2"}]
        body = json.dumps({"domain": "edge", "descriptors": [{"entries": entries}]})
        headers = {"Content-Type": "application/json"}
        answers = [fetch(where, "/json", headers, "POST", body) for _ in range(4)]
        equal("POST /json: 3 of 4 pass", [a.status for a in answers], [200] * 3 + [429])
        codes = [json.loads(answers[index].body).get("overallCode") for index in (0, 3)]
        equal("POST /json: the body has the code", codes, ["OK", "OVER_LIMIT"])

    @staticmethod
    def checks(where):
        def check_as(client, method="GET", source=None):
            return fetch(where, "/check/login", {"X-Forwarded-For": client}, method, source=source)

        client = "203.0.113.1"
        found = [check_as(client, method).status for method in ("GET", "HEAD", "POST")]
        equal("/check/login: GET, HEAD and POST pass", found, [200] * 3)
        is_denial("/check/login", check_as(client), HOUR)
        equal("/check/login: HEAD is denied as well", check_as(client, "HEAD").status, 429)
        equal("/check/login: another client passes", check_as("203.0.113.2").status, 200)
        found = [check_as(f"203.0.113.{10 + index}", source="127.0.0.2").status for index in range(4)]
        equal("/check/login: an untrusted peer cannot name its client", found, [200] * 3 + [429])
        equal("/check/nosuch: not found", fetch(where, "/check/nosuch").status, 404)

    def reload(self):
        """Changes of the file, of which those with a mistake leave the configuration as it was."""
        file, where = self.directory / "reload.yaml", free_address()
        text = "domain: edge\ndescriptors:\n  - key: a\n    rate_limit: { unit: day, requests_per_unit: 5 }\n"
        file.write_text(text)
        process = self.tollgate("tollgate with a file", file, where)
        for name, changed, line in [
            ("an emptied file", "", b"# not in force: the configuration is empty"),
            ("a mistake", text.replace("day", "fortnight"), b"# not in force: "),
            ("a correct file", text.replace("5", "7"), b"edge a: 7 per calendar 1d\n"),
        ]:
            file.write_text(changed)
            process.process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + 30
            while line not in (config := fetch(process.admin, "/config").body) and time.monotonic() < deadline:
                time.sleep(0.05)
            check(f"reload: /config tells of {name}", line in config, config)
            limit = b"7" if b"7" in line else b"5"
            check(f"reload: {name} leaves a limit of {limit.decode()}", b"edge a: " + limit in config, config)

    # JSON.

    def endpoints(self):
        """The endpoints of /v1, those of operators, and the OpenAPI document."""
        where, socket = free_address(), f"{self.directory}/v1.sock"
        process = self.tollgate("tollgate with JSON", "api.yaml", where, "--listen", f"unix:{socket}")
        server = v1.Server(where)
        v1.endpoints(server)
        v1.waits(server)
        v1.refusals(server)
        v1.probes(server)
        v1.operators(v1.Server(process.admin), server)

        token = self.directory / "token"
        token.write_text("0123456789abcdef0123456789abcdef\n")
        guarded, metrics = free_address(), free_address()
        options = ["--token-file", token, "--metrics", metrics]
        self.tollgate("tollgate with a token", "api.yaml", guarded, *options)
        v1.token(v1.Server(guarded), v1.Server(metrics), token.read_text().strip())
        openapi.conforms(guarded, token.read_text().strip(), self.directory, self.environment)
        v1.unusual(server, v1.Server(process.admin), socket, process.database)

    # Proxies.

    def envoy(self, name, tollgate, where):
        """Envoy before a tollgate at WHERE. Stops that and starts it again."""
        admits, denies = free_address(), free_address()
        path = self.directory / f"{name}.json"
        path.write_text(envoy.config(where, self.upstream.address, admits, denies))
        options = ["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]
        process = self.process(name, [self.programs.envoy, "-c", path, *options], [admits, denies])

        equal(f"{name}: no limit", statuses(admits, "/unlimited", 9), [200] * 9)
        found, reached = self.reaching_upstream(lambda: [fetch(admits, "/client") for _ in range(4)])
        equal(f"{name}: 3 of 4 pass", [a.status for a in found], [200] * 3 + [429])
        equal(f"{name}: the upstream gets those", reached, 3)
        is_denial(f"{name}: /client", found[3], DAY)
        remaining = [a.headers.get("X-RateLimit-Remaining") for a in found]
        equal(f"{name}: X-RateLimit-Remaining, from the statuses", remaining, ["2", "1", "0", "0"])
        limit = found[3].headers.get("X-RateLimit-Limit", "")
        check(f"{name}: X-RateLimit-Limit, from the statuses", re.match(r"3, 3;w=86400\b", limit), limit)

        equal(f"{name}: hits_addend 4 passes twice in 10", statuses(admits, "/costly", 3), [200, 200, 429])
        equal(f"{name}: that denial took nothing: 2 are left", statuses(admits, "/cheap", 2), [200, 429])

        # The client's limit of 3 denies the last three. If they counted for the tenant, its limit of 5 would deny the rest.
        headers = {"X-Tenant": "proxied", "X-Forwarded-For": "198.51.100.9"}
        equal(f"{name}: 3 of 6 with two limits", statuses(admits, "/both", 6, headers), [200] * 3 + [429] * 3)
        found = statuses(admits, "/tenant", 3, {"X-Tenant": "proxied"})
        equal(f"{name}: the denied took nothing from the other limit", found, [200, 200, 429])

        equal(f"{name}: shadow_mode denies nothing", statuses(admits, "/shadow", 4), [200] * 4)

        code = tollgate.stop()
        equal(f"{name}: tollgate ends with 0 on SIGTERM", code, 0)
        equal(f"{name}: without tollgate, failure_mode_deny false passes", statuses(admits, "/client", 2), [200] * 2)
        found = statuses(denies, "/client", 2)
        check(f"{name}: without tollgate, failure_mode_deny true is 5xx", all(500 <= s < 600 for s in found), found)
        tollgate.start()
        deadline = time.monotonic() + 30
        while (status := fetch(denies, "/client").status) >= 500 and time.monotonic() < deadline:
            time.sleep(0.1)
        equal(f"{name}: after a restart, the limit is still exhausted", status, 429)
        process.stop()

    def nginx(self, tollgate, where):
        """nginx before a tollgate at WHERE. Stops that and starts it again."""
        listen = free_address()
        path = self.written("nginx.conf", LISTEN=listen, TOLLGATE=where, UPSTREAM=self.upstream.address)
        command = [self.programs.nginx, "-p", self.directory, "-e", "stderr", "-c", path]
        process = self.process("nginx", command, [listen])

        def fetch_as(key, client="203.0.113.9"):
            return fetch(listen, "/", {"X-API-Key": key, "X-Forwarded-For": client})

        found, reached = self.reaching_upstream(lambda: [fetch_as("one", f"203.0.113.{i}") for i in range(3)])
        equal("nginx: 2 of 3 pass", [a.status for a in found], [200, 200, 429])
        equal("nginx: the upstream gets those", reached, 2)
        is_denial("nginx", found[2], HOUR, details=False)
        equal("nginx: another key passes", fetch_as("two").status, 200)
        equal("nginx: without the key, the answer is 500", fetch(listen, "/").status, 500)
        tollgate.stop()
        equal("nginx: without tollgate, requests pass", fetch_as("one").status, 200)
        tollgate.start()
        equal("nginx: after a restart, the limit is still exhausted", fetch_as("one").status, 429)
        process.stop()

    def traefik(self, where):
        listen = free_address()
        path = self.written("traefik_routes.yml", TOLLGATE=where, UPSTREAM=self.upstream.address)
        command = [
            self.programs.traefik,
            f"--entryPoints.web.address={listen}",
            "--entryPoints.web.forwardedHeaders.trustedIPs=127.0.0.1/32",
            f"--providers.file.filename={path}",
            "--providers.file.watch=false",
            "--global.checkNewVersion=false",
            "--global.sendAnonymousUsage=false",
        ]
        process = self.process("traefik", command, [listen])
        # It listens before it has its routes.
        deadline = time.monotonic() + 30
        headers = {"X-Forwarded-For": "203.0.113.99"}
        while fetch(listen, "/", headers).status == 404 and time.monotonic() < deadline:
            time.sleep(0.1)
        self.forward_auth("Traefik", listen, "203.0.113.3")
        process.stop()

    def caddy(self, where):
        listen = free_address()
        path = self.written("Caddyfile", LISTEN=listen, TOLLGATE=where, UPSTREAM=self.upstream.address)
        process = self.process("caddy", [self.programs.caddy, "run", "--adapter", "caddyfile", "--config", path], [listen])
        self.forward_auth("Caddy", listen, "203.0.113.5")
        process.stop()

    def haproxy(self):
        """HAProxy before a tollgate that requires a token. Stops that."""
        where, listen, token = free_address(), free_address(), self.directory / "haproxy.token"
        token.write_text("0123456789abcdef0123456789abcdef\n")
        tollgate = self.tollgate("tollgate for haproxy", "checks.yaml", where, "--token-file", token)
        ops = HERE.parent.parent / "ops"
        path = self.written("haproxy.cfg", LISTEN=listen, TOLLGATE=where, UPSTREAM=self.upstream.address, OPS=ops)
        command = ["env", f"TOLLGATE_TOKEN={token.read_text().strip()}", self.programs.haproxy, "-db", "-f", path]
        process = self.process("haproxy", command, [listen])
        client, key = {"X-Forwarded-For": "203.0.113.7"}, {"X-API-Key": "one"}
        self.forward_auth("HAProxy", listen, client["X-Forwarded-For"], key)
        is_denial("HAProxy: POST", fetch(listen, "/", client | key, "POST", "a body"), HOUR)
        equal("HAProxy: another key passes", fetch(listen, "/", client | {"X-API-Key": "two"}).status, 200)
        equal("HAProxy: without the key, the answer is 400", fetch(listen, "/", client).status, 400)
        # 100 headers with the four others, the most that HAProxy accepts. With more of its own, its client would crash.
        many = client | key | {f"X-{number}": "many" for number in range(96)}
        is_denial("HAProxy: 100 headers", fetch(listen, "/", many), HOUR)
        tollgate.stop()
        status = fetch(listen, "/", client | {"X-API-Key": "two"}).status
        equal("HAProxy: without tollgate, the next rule denies with 503", status, 503)
        process.stop()

    def forward_auth(self, name, where, client, more={}):
        headers = {"X-Forwarded-For": client} | more
        found, reached = self.reaching_upstream(lambda: [fetch(where, "/", headers) for _ in range(4)])
        equal(f"{name}: 3 of 4 pass", [a.status for a in found], [200] * 3 + [429])
        equal(f"{name}: the upstream gets those", reached, 3)
        is_denial(name, found[3], HOUR)
        other = headers | {"X-Forwarded-For": client + "0"}
        equal(f"{name}: another client passes", fetch(where, "/", other).status, 200)

    def all(self):
        remaining = DAY - time.time() % DAY
        if remaining < LONGEST_TRIAL:
            print(f"waiting {remaining:.0f} s for the next day, because limits of a day start anew then", flush=True)
            time.sleep(remaining + 1)

        tcp, socket = free_address(), f"unix:{self.directory}/tollgate.sock"
        over_tcp = self.tollgate("tollgate over tcp", "edge.yaml", tcp)
        self.grpcio(tcp)
        self.grpcurl(tcp)
        self.json(tcp)
        leasing = free_address()
        process = self.tollgate("tollgate with leases", "edge.yaml", leasing, "--lease")
        self.json(leasing)
        v1.leases(v1.Server(leasing), v1.Server(process.admin))
        self.reload()
        self.envoy("envoy over tcp", over_tcp, tcp)
        over_unix = self.tollgate("tollgate over unix", "edge.yaml", socket)
        self.grpcurl(socket)
        self.envoy("envoy over unix", over_unix, socket)

        checks = free_address()
        with_checks = self.tollgate("tollgate with checks", "checks.yaml", checks)
        self.checks(checks)
        self.nginx(with_checks, checks)
        self.traefik(checks)
        self.caddy(checks)
        self.haproxy()
        self.endpoints()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("tollgate", "envoy", "nginx", "traefik", "caddy", "haproxy", "grpcurl"):
        parser.add_argument(f"--{name}", required=True, metavar="PROGRAM")
    programs = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failure = None
    # Short, because the path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="tollgate.", dir="/tmp") as directory, contextlib.ExitStack() as stack:
        trial = Trial(programs, Path(directory), stack)
        try:
            trial.all()
        except Exception as error:
            failure = str(error) if isinstance(error, Failed) else "".join(traceback.format_exception(error))
            for process in trial.processes[-2:]:
                failure += f"\n\nThe last lines of {process.name}:\n{process.tail()}".rstrip()
    end(failure)


if __name__ == "__main__":
    main()
