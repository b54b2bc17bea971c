//! Measures whether a long load changes speed or size: half on one key, half on many, on PostgreSQL.

use std::time::{Duration, Instant};

use anyhow::ensure;
use serde::Serialize;
use sqlx::{PgPool, Postgres};

use crate::arguments::Arguments;
use crate::books::Books;
use crate::checker::check;
use crate::drive::Plan;
use crate::engine::Engine;
use crate::report;
use crate::scene::Scene;
use crate::server::Server;
use crate::system::{Kind, System};
use crate::workload::STEADY;

/// The measurements of a stretch of the load, and the table after it.
#[derive(Debug, Serialize)]
pub(crate) struct Stretch {
    /// Minutes from the start to the end of the stretch.
    pub(crate) minutes: f64,
    pub(crate) per_second: f64,
    pub(crate) p99_ms: f64,
    pub(crate) table_bytes: i64,
    pub(crate) index_bytes: i64,
    pub(crate) dead_rows: i64,
    /// Updates of rows. `hot_updates` are those that changed no index.
    pub(crate) updates: i64,
    pub(crate) hot_updates: i64,
    /// How often autovacuum ran in the stretch.
    pub(crate) vacuums: i64,
    /// Bytes of the write-ahead log per grant, from all writers.
    pub(crate) wal_per_grant: f64,
}

/// Runs for as long as the arguments state, and writes the report after each stretch.
pub(crate) async fn measure(arguments: &Arguments, run: &str) -> anyhow::Result<Vec<Stretch>> {
    ensure!(
        arguments.engines.contains(&Server::Postgres),
        "steady load is measured on PostgreSQL: say --engines postgres"
    );
    ensure!(
        arguments.stretches() <= MOST_STRETCHES,
        "--minutes 75 at most: later the buckets would be full, and swept"
    );
    let scene = Scene::new(&STEADY, run, arguments.keys());
    let ours = System { kind: Kind::Tollgate, server: Some(Server::Postgres) };
    ours.load(&scene, 0).await?;
    let watch = Postgres::open(&Server::Postgres.database(run)?, 1, false).await?;
    let opened = ours.open(&scene).await?;
    let stretches = arguments.stretches();
    let plan = Plan {
        tasks: arguments.headline(),
        warm_up: Duration::ZERO,
        time: STRETCH,
        sequence: STEADY.popularity.draw(scene.keys(), 0).into(),
        keys: scene.keys(),
        server: Server::Postgres.pid(),
        noted: false,
    };
    let (start, mut done) = (Instant::now(), Vec::new());
    let (debited, mut books) = (Postgres::debited(&watch, &scene.prefix()).await?, Books::default());
    let mut before = Seen::read(&watch).await?;
    while done.len() < stretches {
        let begun = Instant::now();
        let sample = opened.measure(plan.clone()).await?;
        check(ours, &STEADY, &sample, begun.elapsed())?;
        books.granted += sample.granted;
        let table = Seen::read(&watch).await?;
        #[expect(clippy::cast_precision_loss, reason = "a figure is no more precise")]
        let (decisions, granted, wal) =
            (sample.decisions as f64, sample.granted as f64, (table.wal_bytes - before.wal_bytes) as f64);
        let stretch = Stretch {
            minutes: start.elapsed().as_secs_f64() / 60.0,
            per_second: decisions / sample.seconds,
            p99_ms: sample.percentile(99.0) / 1e3,
            table_bytes: table.table_bytes,
            index_bytes: table.index_bytes,
            dead_rows: table.dead_rows,
            updates: table.updates - before.updates,
            hot_updates: table.hot_updates - before.hot_updates,
            vacuums: table.vacuums - before.vacuums,
            wal_per_grant: wal / granted.max(1.0),
        };
        eprintln!("steady, {:.1} minutes: {:.0}/s", stretch.minutes, stretch.per_second);
        done.push(stretch);
        report::steady::write(&done, &arguments.output)?;
        before = table;
    }
    opened.close().await;
    // Runs once at the end, because reading all rows cleans up their pages, and the benchmark measures pages that are
    // not cleaned.
    books.check(Postgres::debited(&watch, &scene.prefix()).await? - debited)?;
    watch.close().await;
    Ok(done)
}

/// PostgreSQL's statistics of the buckets' table. Sessions report their updates up to a second late.
struct Seen {
    table_bytes: i64,
    index_bytes: i64,
    dead_rows: i64,
    updates: i64,
    hot_updates: i64,
    vacuums: i64,
    wal_bytes: i64,
}

impl Seen {
    async fn read(pool: &PgPool) -> sqlx::Result<Self> {
        let statistics = sqlx::query_as(
            "select pg_table_size(relid) table_bytes, pg_indexes_size(relid) index_bytes, n_dead_tup dead_rows,
                    n_tup_upd updates, n_tup_hot_upd hot_updates, autovacuum_count vacuums,
                    pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint wal_bytes
               from pg_stat_user_tables
              where relid = 'tollgate.token_buckets'::regclass",
        )
        .fetch_one(pool)
        .await?;
        let (table_bytes, index_bytes, dead_rows, updates, hot_updates, vacuums, wal_bytes) = statistics;
        Ok(Self { table_bytes, index_bytes, dead_rows, updates, hot_updates, vacuums, wal_bytes })
    }
}

/// Buckets are full again after 83 minutes.
const MOST_STRETCHES: usize = 150;

/// Length of a stretch.
pub(crate) const STRETCH: Duration = Duration::from_secs(30);
