// Tests the programs of docs/languages/node.md that need PostgreSQL.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import pg from "pg";

import { allow, pool } from "./limits.mjs";

after(() => pool.end());

test("a serialization failure is retried", async (t) => {
  await allow("node:held", { plan: "five" });
  const holder = new pg.Client(process.env.DATABASE_URL);
  const observer = new pg.Client(process.env.DATABASE_URL);
  await Promise.all([holder.connect(), observer.connect()]);
  t.after(() => Promise.all([holder.end(), observer.end()]));
  await holder.query("begin");
  await holder.query("select * from tollgate.request_tokens_v1('node:held', 1, 0, 0, null, null)");
  const answer = allow("node:held");
  const waiting = `select from pg_stat_activity
                    where datname = current_database() and wait_event_type = 'Lock' and query like '%request_tokens_v1%'`;
  const giveUp = Date.now() + 30_000;
  while ((await observer.query(waiting)).rowCount === 0) assert.ok(Date.now() < giveUp, "no call waits for the bucket");
  // At this database's isolation level the waiting call fails now.
  await holder.query("commit");
  assert.deepEqual([(await answer).granted, (await answer).remaining], [true, 2]);
});
