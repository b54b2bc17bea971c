"""Tests the programs of docs/languages/python.md."""

import os
import threading
import time
import unittest

import psycopg
from limits import allow, pool
from several import allow_all

LOCKED = """
    select exists (
      select from pg_stat_activity
       where datname = current_database() and wait_event_type = 'Lock' and query like '%request_tokens_v1%')
"""


class Postgres(unittest.TestCase):
    def test_a_serialization_failure_is_retried(self):
        allow("python:held", plan="five")
        answers = []
        url = os.environ["DATABASE_URL"]
        with psycopg.connect(url, autocommit=True) as observer, psycopg.connect(url) as holder:
            holder.execute("select * from tollgate.request_tokens_v1('python:held', 1, 0, 0, null, null)")
            waiter = threading.Thread(target=lambda: answers.append(allow("python:held")))
            waiter.start()
            give_up = time.monotonic() + 30
            while not observer.execute(LOCKED).fetchone()[0]:
                self.assertLess(time.monotonic(), give_up, "no call waits for the bucket")
        # The holder has committed: at this database's isolation level the waiter's call failed.
        waiter.join(30)
        self.assertEqual([(d.granted, d.remaining) for d in answers], [(True, 2)])

    def test_several_limits_are_taken_from_all_or_none(self):
        allow("python:user", plan="five")
        allow("python:tenant", 4, plan="five")
        self.assertTrue(allow_all("python:user", "python:tenant"))
        self.assertFalse(allow_all("python:user", "python:tenant"))
        self.assertEqual(allow("python:user").remaining, 2)

    def test_a_call_leaves_no_transaction_open(self):
        with pool.connection() as connection:
            connection.execute("select * from tollgate.request_token('third-party-api')")
            self.assertEqual(connection.info.transaction_status, psycopg.pq.TransactionStatus.IDLE)
