//! The rows that decisions read and write on PostgreSQL. A row's new version is on the same page, without an index update. Otherwise
//! the table would grow within an hour of load.

use anyhow::ensure;
use tollgate::{Key, Rule, Store, Take};

use crate::matrix::{Case, Setup, list};
use crate::pools::{Scratch, with_session};
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    // Without layers: the cases count the writes of calls with many rows.
    list!(
        Setup { needs: |engine| engine.has_heap && engine.has_sessions, ..Setup::WITHOUT_LAYERS };
        decisions_update_rows_on_their_pages,
        batches_planned_for_few_buckets_read_no_others_later,
        indexes_hold_no_column_written_by_a_decision,
    )
}

async fn decisions_update_rows_on_their_pages(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    // A session reports its own statistics.
    let (session, _) = with_session(&scratch.db, "select 1").await?;
    let under = |number: usize| {
        let key = Key::try_from(format!("user:{number}"))?;
        Ok::<_, tollgate::Error>(Take::from(key).rule(Rule::try_from("1000000/s")?))
    };
    let takes: Vec<Take> = (0..KEYS).map(under).collect::<Result<_, _>>()?;
    // Rows created by one call are on adjacent pages.
    decide(&session, &takes).await?;
    let mut rounds: Vec<[i64; 2]> = Vec::new();
    // Any open transaction on the server, even of another test, keeps old versions, and the test takes another round. One round
    // without such a transaction is enough: a fault of the table or an index affects every round equally.
    while rounds.last().is_none_or(|[all, on_their_pages]| on_their_pages * 100 < all * 99) {
        ensure!(rounds.len() < ROUNDS, "in no round were 99 of 100 on their pages: {rounds:?}");
        let before = updates(&session).await?;
        for batch in 0..BATCHES {
            // Updates some rows of each page. A call that updates all rows needs more pages, until the table is twice as large.
            let some: Vec<Take> = takes.iter().skip(batch % PARTS).step_by(PARTS).cloned().collect();
            decide(&session, &some).await?;
        }
        let after = updates(&session).await?;
        ensure!(after[0] - before[0] >= i64::try_from(BATCHES * KEYS / PARTS)?, "{after:?} after {before:?}");
        rounds.push([after[0] - before[0], after[1] - before[1]]);
    }

    // With an index on a written column, each update must write the index, wherever the new version is.
    session.sql("create index on tollgate.token_buckets (full_at)").await?;
    let before = updates(&session).await?;
    decide(&session, &takes).await?;
    let after = updates(&session).await?;
    ensure!(after[0] - before[0] >= i64::try_from(KEYS)? && after[1] == before[1], "{after:?} after {before:?}");
    Ok(())
}

async fn decide(session: &TestDb, takes: &[Take]) -> anyhow::Result<()> {
    for outcome in session.store().take(takes).await? {
        ensure!(outcome?.is_granted());
    }
    Ok(())
}

/// The number of updates, and the number of those on the row's page.
async fn updates(session: &TestDb) -> anyhow::Result<[i64; 2]> {
    session.sql("select pg_stat_force_next_flush()").await?;
    let counts = "select n_tup_upd as updates, n_tup_hot_upd as on_their_pages from pg_stat_user_tables
                  where schemaname = 'tollgate' and relname = 'token_buckets'";
    session.sql(counts).await?[0].numbers(["updates", "on_their_pages"])
}

/// A session keeps the plans of its first batches until the table is analyzed again.
async fn batches_planned_for_few_buckets_read_no_others_later(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let (session, _) = with_session(&scratch.db, "select 1").await?;
    let batch = "select outcome from tollgate.take_batch_v1(
                   '{few:1,few:2,few:3}', '{9,9,9}', '{1,1,1}', '{0,0,0}', '{1,1,1}', null, null, null, null)";
    session.sql("alter table tollgate.token_buckets set (autovacuum_enabled = off)").await?;
    session
        .sql(
            "insert into tollgate.token_buckets (id, capacity, refill_seconds, refill)
             select 'few:' || n, 9, 0, 'once' from generate_series(1, 3) n",
        )
        .await?;
    session.sql("analyze tollgate.token_buckets").await?;
    let outcomes = async || -> anyhow::Result<Vec<String>> {
        let rows = session.sql(batch).await?;
        rows.iter().map(|row| Ok(row.text("outcome")?.unwrap_or_default().to_owned())).collect()
    };
    assert_eq!(outcomes().await?, ["granted"]);
    assert_eq!(outcomes().await?, ["denied"]);
    session
        .sql(
            "insert into tollgate.token_buckets (id, capacity, refill_seconds, refill)
             select 'many:' || n, 9, 0, 'once' from generate_series(1, 5000) n",
        )
        .await?;
    let before = rows_read(&session).await?;
    assert_eq!(outcomes().await?, ["denied"]);
    session.sql("update tollgate.token_buckets set full_at = 0 where id in ('few:1', 'few:2', 'few:3')").await?;
    assert_eq!(outcomes().await?, ["granted"]);
    let read = rows_read(&session).await? - before;
    ensure!(read < 1000, "{read} rows were read");
    Ok(())
}

async fn rows_read(session: &TestDb) -> anyhow::Result<i64> {
    session.sql("select pg_stat_force_next_flush()").await?;
    let counts = "select (t.seq_tup_read + i.idx_tup_read)::bigint as read
                    from pg_stat_user_tables t join pg_stat_user_indexes i using (relid)
                   where t.schemaname = 'tollgate' and t.relname = 'token_buckets'";
    let [read] = session.sql(counts).await?[0].numbers(["read"])?;
    Ok(read)
}

/// Covers index expressions and conditions, too.
async fn indexes_hold_no_column_written_by_a_decision(db: TestDb) -> anyhow::Result<()> {
    let indexed = "select c.relname || '.' || a.attname as written from pg_index i
                   join pg_class c on c.oid = i.indrelid
                   join pg_attribute a on a.attrelid = i.indrelid and a.attnum > 0
                   where c.oid in ('tollgate.token_buckets'::regclass, 'tollgate.token_windows'::regclass)
                     and (a.attnum = any (i.indkey)
                          or exists (select from pg_depend d
                                     where d.classid = 'pg_class'::regclass and d.objid = i.indexrelid
                                       and d.refclassid = 'pg_class'::regclass and d.refobjid = i.indrelid
                                       and d.refobjsubid = a.attnum))
                   order by 1";
    let rows = db.sql(indexed).await?;
    let indexed = rows.iter().map(|row| row.text("written")).collect::<Result<Vec<_>, _>>()?;
    assert_eq!(indexed, [Some("token_buckets.id"), Some("token_windows.id")]);
    Ok(())
}

const ROUNDS: usize = 40;
const KEYS: usize = 300;
const BATCHES: usize = 200;
const PARTS: usize = 10;
