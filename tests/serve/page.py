"""Follows docs/coming-from-ratelimit.md with Envoy and a PostgreSQL. scripts/serve runs this with the paths of the programs.

Runs the commands of the page as they stand there, except for ports, roles, passwords and the name of the database, which are
the trial's own. The environment has psql, and TOLLGATE_POSTGRES_URL is the administrator's.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from expect import check, end, equal
from programs import Failed, Process, environment, fetch, free_address

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs/coming-from-ratelimit.md"
ROLES = ("tollgate_owner", "my_service", "my_deployment")
LIMITS = "domain: edge\ndescriptors:\n  - key: remote_address\n    rate_limit: { unit: minute, requests_per_unit: 100 }\n"
# Two windows of a minute have 200 tokens.
REQUESTS = 210
# The page calls curl, which need not be there.
CURL = """#!/usr/bin/env python3
import sys
import urllib.request

silent, url, *rest = sys.argv[1:]
body = rest[1].encode() if rest[:1] == ["--json"] else None
request = urllib.request.Request("http://" + url, body, {"Content-Type": "application/json"})
sys.stdout.buffer.write(urllib.request.urlopen(request, timeout=30).read())
"""


class Page:
    def __init__(self, programs, directory, stack):
        self.programs, self.directory, self.stack = programs, directory, stack
        self.name = f"serve_page_{os.getpid()}"
        self.here = {name: free_address() for name in ("127.0.0.1:8081", "127.0.0.1:9090")}
        self.environment = environment(directory)
        url = urlsplit(os.environ["TOLLGATE_POSTGRES_URL"])
        # For psql, as the administrator.
        libpq = {"HOST": url.hostname, "PORT": url.port or 5432, "USER": url.username, "PASSWORD": url.password}
        self.environment |= {f"PG{name}": unquote(str(value)) for name, value in libpq.items() if value}
        self.environment |= {"PGDATABASE": url.path.strip("/"), "PATH": f"{directory}/bin:{os.environ['PATH']}"}
        self.processes = []
        steps = PAGE.read_text().split("## Step by step")[1].split("\n## ")[0]
        self.blocks = re.findall(r"^```(\w+)\n(.*?)^```$", steps, re.MULTILINE | re.DOTALL)

    def own(self, text):
        """The text with the trial's own names."""
        host, port = self.environment["PGHOST"], self.environment["PGPORT"]
        text = text.replace("@localhost/app", f":password@{host}:{port}/{self.name}")
        text = re.sub(r" app$", f" {self.name}", text, flags=re.MULTILINE)
        for role in ROLES:
            text = re.sub(rf"\b{role}\b", f"{self.name}_{role}", text)
        for address, own in self.here.items():
            text = text.replace(address, own)
        # The default, which the page does not write.
        return text.replace("--admin", f"--listen {self.here['127.0.0.1:8081']} --admin")

    def run(self, script):
        command = ["bash", "-euo", "pipefail", "-c", script]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, env=self.environment,
            cwd=self.directory,
        )
        check(f"the page: {script.strip().splitlines()[-1]}", done.returncode == 0, done.stdout + done.stderr)
        return done.stdout

    def process(self, name, command, addresses):
        process = Process(name, command, self.directory / f"{name}.log", addresses, self.environment, self.directory)
        self.processes.append(process)
        return self.stack.enter_context(process)

    def administrator(self, *statements):
        options = [option for statement in statements for option in ("--command", statement)]
        command = ["psql", "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", *options]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, env=self.environment, timeout=60)

    @contextlib.contextmanager
    def database(self):
        """The database and the logins, as the pages that this one links to make them."""
        roles = [f"{self.name}_{role}" for role in ROLES]
        created = [f"create role {role} login password 'password'" for role in roles]
        self.administrator(f"create database {self.name}", *created)
        try:
            self.administrator(f"grant create on database {self.name} to {roles[0]}")
            yield
        finally:
            # With the connections that a stopped server left.
            self.administrator(f"drop database {self.name} with (force)", f"drop role {', '.join(roles)}")

    def follow(self):
        """Each block of the page, in its order."""
        scripts = [text for language, text in self.blocks if language == "text"]
        equal("the page: blocks of commands", len(scripts), 5)
        migrate, checked, serve, ask, observe = scripts
        bin_directory = self.directory / "bin"
        bin_directory.mkdir()
        (bin_directory / "tollgate").symlink_to(self.programs.tollgate)
        (bin_directory / "curl").write_text(CURL)
        (bin_directory / "curl").chmod(0o755)
        config = self.directory / "ratelimit/config"
        config.mkdir(parents=True)
        (config / "edge.yaml").write_text(LIMITS)
        with self.database():
            self.run(self.own(migrate))
            listed = self.run(self.own(checked))
            equal("the page: --check lists the limit", listed, "edge remote_address: 100 per calendar 1m\n")
            with self.stack:
                command = ["bash", "-euc", self.own(serve).replace("\ntollgate", "\nexec tollgate")]
                self.process("tollgate", command, self.here.values())
                self.ask(ask)
                self.envoy()
                observed = self.run(self.own(observe))
                counted = re.search(r'^tollgate_serve_decisions_total{.*outcome="denied"} [1-9]', observed, re.MULTILINE)
                check("the page: the metrics count denials", counted, observed)
                check("the page: `list` and `denied` name the key", observed.count("remote_address") >= 3, observed)

    def ask(self, transcript):
        """The sample request, and the answer that the page shows."""
        command, answer = transcript.removeprefix("$ ").split("}'\n", 1)
        found = json.loads(self.run(self.own(command + "}'")))
        shown = json.loads(answer.replace("\n", ""))
        for body in (found, shown):
            body["statuses"][0].pop("durationUntilReset")
        equal("the page: the answer to the sample request", found, shown)

    def envoy(self):
        """Envoy with ops/envoy.yaml, whose cluster the page replaces."""
        cluster = next(text for language, text in self.blocks if language == "yaml")
        cluster = "".join(f"    {line}\n" for line in cluster.splitlines())
        before, found, _ = (REPOSITORY / "ops/envoy.yaml").read_text().partition("    - name: ratelimit\n")
        check("the page: ops/envoy.yaml ends with the cluster", found)
        public, app, admin = free_address(), free_address(), free_address()
        text = before.replace("address: 0.0.0.0", "address: 127.0.0.1") + cluster
        ports = {8000: public, 8001: app, 8081: self.here["127.0.0.1:8081"], 0: admin}
        text += "admin: { address: { socket_address: { address: 127.0.0.1, port_value: 0 } } }\n"
        for port, own in ports.items():
            text = re.sub(rf"port_value: {port}\b", f"port_value: {own.rsplit(':', 1)[1]}", text)
        path = self.directory / "envoy.yaml"
        path.write_text(text)
        command = [self.programs.envoy, "-c", path, "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]
        self.process("envoy", command, [public, admin])
        found = [fetch(public, "/").status for _ in range(REQUESTS)]
        equal("the page: Envoy answers 200 and 429", sorted(set(found)), [200, 429])
        check("the page: at least 100 pass, and at most 200", 100 <= found.count(200) <= 200, found.count(200))
        failed = fetch(admin, "/stats?filter=failure_mode_allowed|ratelimit.error").body.decode()
        unanswered = [line for line in failed.splitlines() if not line.endswith(": 0")]
        equal("the page: no request passed without a decision", unanswered, [])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("tollgate", "envoy"):
        parser.add_argument(f"--{name}", required=True, metavar="PROGRAM")
    programs = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failure = None
    with tempfile.TemporaryDirectory(prefix="tollgate.", dir="/tmp") as directory:
        page = Page(programs, Path(directory), contextlib.ExitStack())
        try:
            page.follow()
        except (Failed, subprocess.CalledProcessError) as error:
            failure = str(error)
            for process in page.processes:
                failure += f"\n\nThe last lines of {process.name}:\n{process.tail()}".rstrip()
    end(failure)


if __name__ == "__main__":
    main()
