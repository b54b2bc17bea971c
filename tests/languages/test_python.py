"""Tests the programs of docs/languages/python.md and python-mysql.md, on any engine."""

import http.client
import subprocess
import sys
import threading
import unittest
import wsgiref.simple_server
from uuid import uuid4

from limited import NoTokens, RateLimit, client, limited
from limits import allow

HOUR_MS = 3_600_000


class Allow(unittest.TestCase):
    def test_exactly_the_capacity_is_granted(self):
        decisions = [allow("python:alone", plan="five") for _ in range(9)]
        self.assertEqual([bool(d.granted) for d in decisions], [True] * 5 + [False] * 4)
        self.assertEqual([d.remaining for d in decisions], [4, 3, 2, 1, 0, 0, 0, 0, 0])
        self.assertTrue(0 < decisions[-1].retry_after_ms <= HOUR_MS / 5)

    def test_two_processes_share_the_limit_exactly(self):
        takes = "from limits import allow; print(sum(allow('python:shared', plan='twenty').granted for _ in range(15)))"
        command = [sys.executable, "-c", takes]
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        self.assertEqual(sum(int(process.communicate(timeout=60)[0]) for process in processes), 20)

    def test_a_waiting_request_states_its_wait(self):
        self.assertEqual(allow("python:later", 5, plan="five").wait_ms, 0)
        decision = allow("python:later", max_wait_ms=HOUR_MS)
        self.assertTrue(decision.granted)
        self.assertTrue(0 < decision.wait_ms <= HOUR_MS / 5)

    def test_a_request_with_an_id_is_charged_once(self):
        request = str(uuid4())
        allow("python:once", plan="five")
        left = [allow("python:once", 2, request=request).remaining for _ in range(3)]
        self.assertEqual(left, [2, 2, 2])

    def test_an_unknown_bucket_is_an_error(self):
        with self.assertRaisesRegex(Exception, "no bucket 'nosuch'"):
            allow("nosuch")


class Client(unittest.TestCase):
    def test_an_address_has_the_key_that_the_rust_layer_gives_it(self):
        for address, key in [
            ("203.0.113.7", "203.0.113.7"),
            ("::ffff:203.0.113.7", "203.0.113.7"),
            ("64:ff9b::203.0.113.7", "203.0.113.7"),
            ("64:ff9b:1::1", "64:ff9b:1::/64"),
            ("2001:db8:0:7:1:2:3:4", "2001:db8:0:7::/64"),
            ("fe80::1%eth0", "fe80::/64"),
        ]:
            self.assertEqual(client(address), key)


class Limited(unittest.TestCase):
    def test_the_decorated_function_runs_only_with_tokens(self):
        ran = []

        @limited("hourly", cost=3)
        def action(what):
            ran.append(what)
            return what

        self.assertEqual(action("first"), "first")
        with self.assertRaises(NoTokens) as denied:
            action("second")
        self.assertTrue(0 < denied.exception.retry_after_ms <= HOUR_MS)
        self.assertEqual(ran, ["first"])

    def test_http_answers_429_with_retry_after(self):
        handled = []

        def app(environ, start_response):
            handled.append(environ["PATH_INFO"])
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [b"hello\n"]

        class Quiet(wsgiref.simple_server.WSGIRequestHandler):
            def log_message(self, *_):
                pass

        with wsgiref.simple_server.make_server("127.0.0.1", 0, RateLimit(app, "five"), handler_class=Quiet) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            answers = []
            for _ in range(7):
                connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
                connection.request("GET", "/")
                answers.append(connection.getresponse())
                connection.close()
            server.shutdown()
        self.assertEqual([answer.status for answer in answers], [200] * 5 + [429] * 2)
        self.assertEqual(len(handled), 5)
        self.assertTrue(1 <= int(answers[-1].headers["Retry-After"]) <= 720)
