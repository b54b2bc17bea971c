// rate-limiter-flexible on PostgreSQL, as its documentation shows it: a pool of 8 connections, a fixed window.
const { Pool } = require('pg');
const { RateLimiterPostgres } = require('rate-limiter-flexible');
const readline = require('readline');

const job = JSON.parse(process.env.TOLLGATE_JOB);

// Logarithmic classes 2 % wide: a histogram is small to print.
const classOf = (ns) => Math.round(Math.exp(Math.round(Math.log(Math.max(ns, 1)) / 0.02) * 0.02));

async function limiter(pool) {
  return new Promise((resolve, reject) => {
    const options = {
      storeClient: pool, tableName: 'flexible', keyPrefix: 'f', points: job.capacity, duration: 86400,
    };
    const made = new RateLimiterPostgres(options, (error) => (error ? reject(error) : resolve(made)));
  });
}

async function main() {
  const pool = new Pool({ connectionString: job.url, max: 8, options: '-c synchronous_commit=off' });
  const limits = await limiter(pool);
  await pool.query(
    `insert into flexible select 'f:' || $1 || key, 1, extract(epoch from now()) * 1000 + 86400000
       from generate_series(0, $2::int - 1) key on conflict do nothing`,
    [job.prefix, job.keys],
  );
  // Opens the connections, and lets node compile what it is about to run.
  await Promise.all(Array.from({ length: 64 }, async (_, key) => {
    for (let call = 0; call < 50; call += 1) await limits.consume(job.prefix + (key % job.keys), 1);
  }));
  const lines = readline.createInterface({ input: process.stdin });
  console.log('ready');
  await new Promise((resolve) => lines.once('line', resolve));

  const from = process.hrtime.bigint() + BigInt(job.warmUp) * 1000000n;
  const to = from + BigInt(job.time) * 1000000n;
  const latencies = {};
  const grants = {};
  let decisions = 0, granted = 0, denied = 0;
  let before = null, after = null;
  setTimeout(() => { before = process.cpuUsage(); }, job.warmUp);
  setTimeout(() => { after = process.cpuUsage(before); }, job.warmUp + job.time);

  async function ask(task) {
    let at = Math.floor((task * job.sequence.length) / job.tasks);
    for (;;) {
      const key = job.sequence[at++ % job.sequence.length];
      const asked = process.hrtime.bigint();
      try {
        await limits.consume(job.prefix + key, 1);
        granted += 1;
        grants[key] = (grants[key] || 0) + 1;
      } catch (denial) {
        if (denial instanceof Error) throw denial;
        denied += 1;
      }
      const answered = process.hrtime.bigint();
      if (answered >= to) return;
      if (answered >= from) {
        decisions += 1;
        const latency = classOf(Number(answered - asked));
        latencies[latency] = (latencies[latency] || 0) + 1;
      }
    }
  }

  await Promise.all(Array.from({ length: job.tasks }, (_, task) => ask(task)));
  while (after === null) await new Promise((resolve) => setTimeout(resolve, 5));
  const client = (after.user + after.system) / 1e6;
  console.log(JSON.stringify({
    decisions, by_process: [decisions], granted, denied, seconds: job.time / 1000, latencies, client, server: null, grants,
  }));
  lines.close();
  await pool.end();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
