//! Where PostgreSQL puts a row's next version: on the same page, with no index to tell, or an hour of load would make the
//! table grow.

use anyhow::ensure;
use tollgate::{Key, Rule, Store, Take};

use crate::matrix::{Case, Levels, Time, list};
use crate::pools::{Scratch, with_session};
use crate::rig::Rig;

pub fn cases() -> Vec<Case> {
    list!(Levels::Pools, Time::Real, |engine| engine.has_heap && engine.has_sessions;
        decisions_update_rows_on_their_pages,
        indexes_hold_no_column_written_by_a_decision)
    .into()
}

async fn decisions_update_rows_on_their_pages(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    // What a session has counted it tells itself.
    let (session, _) = with_session(&scratch.rig, "select 1").await?;
    let under = |number: usize| {
        let key = Key::try_from(format!("user:{number}"))?;
        Ok::<_, tollgate::Error>(Take::from(key).rule(Rule::try_from("1000000/s")?))
    };
    let takes: Vec<Take> = (0..KEYS).map(under).collect::<Result<_, _>>()?;
    // Rows that were made by one call lie together.
    decide(&session, &takes).await?;
    let mut rounds: Vec<[i64; 2]> = Vec::new();
    // Whatever transaction is open somewhere on the server, of another test too, keeps old versions: then it takes a round more.
    // One that is quiet tells all: what is wrong with the table or an index costs each round as much, and nobody else can
    // make one better than it is.
    while rounds.last().is_none_or(|[all, on_their_pages]| on_their_pages * 100 < all * 99) {
        ensure!(rounds.len() < ROUNDS, "in no round were 99 of 100 on their pages: {rounds:?}");
        let before = updates(&session).await?;
        for batch in 0..BATCHES {
            // Of each page some rows: a call that updates all of them needs another page, until they lie on twice as many.
            let some: Vec<Take> = takes.iter().skip(batch % PARTS).step_by(PARTS).cloned().collect();
            decide(&session, &some).await?;
        }
        let after = updates(&session).await?;
        ensure!(after[0] - before[0] >= i64::try_from(BATCHES * KEYS / PARTS)?, "{after:?} after {before:?}");
        rounds.push([after[0] - before[0], after[1] - before[1]]);
    }

    // An index that holds what they write: each has to go into it, wherever the row is.
    session.sql("create index on tollgate.token_buckets (full_at)").await?;
    let before = updates(&session).await?;
    decide(&session, &takes).await?;
    let after = updates(&session).await?;
    ensure!(after[0] - before[0] >= i64::try_from(KEYS)? && after[1] == before[1], "{after:?} after {before:?}");
    Ok(())
}

async fn decide(session: &Rig, takes: &[Take]) -> anyhow::Result<()> {
    for outcome in session.store().take(takes).await? {
        ensure!(outcome?.is_granted());
    }
    Ok(())
}

/// How many there were, and how many on the row's page.
async fn updates(session: &Rig) -> anyhow::Result<[i64; 2]> {
    session.sql("select pg_stat_force_next_flush()").await?;
    let counts = "select n_tup_upd as updates, n_tup_hot_upd as on_their_pages from pg_stat_user_tables
                  where schemaname = 'tollgate' and relname = 'token_buckets'";
    session.sql(counts).await?[0].numbers(["updates", "on_their_pages"])
}

/// Nor is any part of an index's expression or condition.
async fn indexes_hold_no_column_written_by_a_decision(rig: Rig) -> anyhow::Result<()> {
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
    let rows = rig.sql(indexed).await?;
    let indexed = rows.iter().map(|row| row.text("written")).collect::<Result<Vec<_>, _>>()?;
    assert_eq!(indexed, [Some("token_buckets.id"), Some("token_windows.id")]);
    Ok(())
}

const ROUNDS: usize = 40;
const KEYS: usize = 300;
const BATCHES: usize = 200;
const PARTS: usize = 10;
