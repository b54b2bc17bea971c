// Tests the programs of docs/languages/node.md, on any engine.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import { after, test } from "node:test";
import { promisify } from "node:util";

import { client, limited, NoTokens, rateLimit } from "./limited.mjs";
import { allow, pool } from "./limits.mjs";

const HOUR_MS = 3_600_000;

after(() => pool.end());

test("exactly the capacity is granted", async () => {
  const decisions = [];
  for (let i = 0; i < 9; i++) decisions.push(await allow("node:alone", { plan: "five" }));
  assert.deepEqual(
    decisions.map((d) => Number(d.granted)),
    [1, 1, 1, 1, 1, 0, 0, 0, 0],
  );
  assert.deepEqual(
    decisions.map((d) => d.remaining),
    [4, 3, 2, 1, 0, 0, 0, 0, 0],
  );
  const { retry_after_ms } = decisions.at(-1);
  assert.ok(retry_after_ms > 0 && retry_after_ms <= HOUR_MS / 5);
});

test("two processes share the limit exactly", async () => {
  const program = `
    import { allow, pool } from "./limits.mjs";
    const decisions = await Promise.all(Array.from({ length: 15 }, () => allow("node:shared", { plan: "twenty" })));
    console.log(decisions.filter((d) => d.granted).length);
    await pool.end();`;
  const run = () =>
    promisify(execFile)(process.execPath, ["--input-type=module", "--eval", program], { timeout: 60_000 });
  const granted = (await Promise.all([run(), run()])).map(({ stdout }) => Number(stdout));
  assert.equal(granted[0] + granted[1], 20);
});

test("a waiting request states its wait", async () => {
  assert.equal((await allow("node:later", { cost: 5, plan: "five" })).wait_ms, 0);
  const decision = await allow("node:later", { maxWaitMs: HOUR_MS });
  assert.ok(decision.granted);
  assert.ok(decision.wait_ms > 0 && decision.wait_ms <= HOUR_MS / 5);
});

test("a request with an id is charged once", async () => {
  const request = randomUUID();
  await allow("node:once", { plan: "five" });
  assert.equal((await allow("node:once", { cost: 2, request })).remaining, 2);
  assert.equal((await allow("node:once", { cost: 2, request })).remaining, 2);
});

test("an unknown bucket is an error", () => assert.rejects(allow("nosuch"), /no bucket 'nosuch'/));

test("the action runs only with tokens", async () => {
  const ran = [];
  assert.equal(await limited("hourly", () => ran.push("first"), { cost: 3 }), 1);
  await assert.rejects(
    limited("hourly", () => ran.push("second"), { cost: 3 }),
    (error) => {
      assert.ok(error instanceof NoTokens);
      assert.ok(error.retryAfterMs > 0 && error.retryAfterMs <= HOUR_MS);
      return true;
    },
  );
  assert.deepEqual(ran, ["first"]);
});

test("an address has the key that the Rust layer gives it", () => {
  for (const [address, key] of [
    ["203.0.113.7", "203.0.113.7"],
    ["::ffff:203.0.113.7", "203.0.113.7"],
    ["64:ff9b::cb00:7107", "203.0.113.7"],
    ["64:ff9b::7107", "0.0.113.7"],
    ["64:ff9b:1::cb00:7107", "64:ff9b:1::/64"],
    ["2001:db8:0:7:1:2:3:4", "2001:db8:0:7::/64"],
    ["2001:db80::1", "2001:db80::/64"],
    ["2001:db8::1:2", "2001:db8::/64"],
    ["::1", "::/64"],
  ])
    assert.equal(client(address), key);
});

test("HTTP answers 429 with a Retry-After header", async (t) => {
  const middleware = rateLimit("five");
  let handled = 0;
  const server = createServer((request, response) =>
    middleware(request, response, (error) => {
      handled++;
      response.writeHead(error ? 500 : 200).end();
    }),
  ).listen(0, "127.0.0.1");
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  await once(server, "listening");
  const answers = [];
  for (let i = 0; i < 7; i++) {
    answers.push(await fetch(`http://127.0.0.1:${server.address().port}/`));
    await answers.at(-1).text();
  }
  assert.deepEqual(
    answers.map((answer) => answer.status),
    [200, 200, 200, 200, 200, 429, 429],
  );
  assert.equal(handled, 5);
  const retryAfter = Number(answers.at(-1).headers.get("retry-after"));
  assert.ok(Number.isInteger(retryAfter) && retryAfter >= 1 && retryAfter <= 720);
});
