"""Tests the programs of docs/languages/python-mysql.md."""

import threading
import time
import unittest
from contextlib import closing

from limits import allow, connect, pool

CONNECTED = "select count(*) from information_schema.processlist where id = %s"


class MySql(unittest.TestCase):
    def test_a_lock_wait_timeout_is_retried(self):
        allow("python:held", plan="five")
        with closing(pool.connect()) as pooled, pooled.cursor() as cursor:
            cursor.execute("set innodb_lock_wait_timeout = 1")
            first = pooled.thread_id()
        answers = []
        with closing(connect()) as holder, holder.cursor() as cursor:
            holder.begin()
            cursor.execute("call request_tokens_v1('python:held', 1, 0, 0, null, null)")
            waiter = threading.Thread(target=lambda: answers.append(allow("python:held")))
            waiter.start()
            give_up = time.monotonic() + 30
            while True:
                # The connection on which the call failed is closed.
                with closing(connect()) as observer, observer.cursor() as observed:
                    observed.execute(CONNECTED, (first,))
                    if observed.fetchone()[0] == 0:
                        break
                self.assertLess(time.monotonic(), give_up, "the call did not fail")
            while cursor.nextset():
                pass
            holder.commit()
        waiter.join(30)
        self.assertEqual([(d.granted, d.remaining) for d in answers], [(1, 2)])
