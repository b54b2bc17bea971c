//! Calls with hostile arguments grant no token beyond what the buckets hold.

use std::time::Duration;

use anyhow::{Context, ensure};
use tollgate::{Admin, Key, Quota, Take, Window};
use uuid::Uuid;

use super::calls::{Draw, granted};
use crate::cases::privileges::Login;
use crate::client::Row;
use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::pools::Scratch;
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    list!(Setup { needs: |engine| engine.has_roles, ..Setup::WITHOUT_LAYERS }; hostile_arguments_mint_no_token)
}

async fn hostile_arguments_mint_no_token(db: TestDb) -> anyhow::Result<()> {
    play(
        &db,
        |routine| !routine.contains("adjust"),
        |granted, available| available == 0 || granted + available <= CAPACITY,
    )
    .await
}

/// Makes a fixed sequence of random calls of the routines that `plays` selects, as a login of the application's role. After
/// each call, `holds` must be true of the granted and the available tokens of each bucket, and other rows must not have
/// changed. A refused call must not have changed any row.
pub async fn play(db: &TestDb, plays: fn(&str) -> bool, holds: fn(i64, i64) -> bool) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(db).await?;
    let owner = &scratch.db;
    let login = Login::with_sessions(owner, Some("tollgate_app"), 1).await?;
    let mut routines = granted(owner, &login.db).await?;
    ensure!(routines.len() >= 23, "the login may execute {} routines", routines.len());
    routines.retain(|routine| plays(&routine.name));
    let keys = [
        owner.bucket(Quota::once(5)?).await?,
        owner.bucket(Quota::continuous(5, 5 * DAY)?).await?,
        owner.bucket(Quota::interval(5, 5 * DAY)?).await?,
        owner.key(),
    ];
    let buckets = &keys[..3];
    make_victim(owner).await?;
    let others = others(owner).await?;
    let mut draw = Draw::new(2_026, owner, &keys);
    let mut answered = vec![0; routines.len()];
    let mut before = state(owner).await?;
    for round in 0..CALLS_OF_EACH {
        for (at, routine) in routines.iter().enumerate() {
            // The first call of each routine is honest. With two hostile arguments, one can hide the check of the other.
            let call = draw.call(routine, [0, 1, 1, 2][round % 4]);
            let answer = login.db.sql(call.sql.clone()).await;
            let after = state(owner).await?;
            match answer {
                Ok(rows) => {
                    answered[at] += 1;
                    if call.takes && is_granted(&rows) {
                        let counted = (sum(&before)?, sum(&after)?);
                        ensure!(counted.0 < counted.1, "{}: granted for nothing: {counted:?}, {rows:?}", call.sql);
                    }
                }
                // MariaDB accepts surrogates as UTF-8, and the driver does not.
                Err(sqlx::Error::ColumnDecode { .. }) => ensure!(before == after, "{}: a row changed", call.sql),
                Err(error) => {
                    let error = error.into_database_error().with_context(|| call.sql.clone())?;
                    let code = error.code().unwrap_or_default().into_owned();
                    ensure!(is_documented(&code), "{}: {code} {}", call.sql, error.message());
                    ensure!(before == after, "{}: refused with {code}, and a row changed", call.sql);
                }
            }
            for key in buckets {
                let row = owner.row(key).await?.context("a provisioned bucket stays")?;
                let level = owner.store().peek(key).await?.context("a provisioned bucket stays")?;
                let available = level.available();
                ensure!(available <= CAPACITY && holds(row.granted, available), "{}: {row:?}, {level:?}", call.sql);
            }
            before = after;
        }
        ensure!(self::others(owner).await? == others, "a row of others changed in round {round}");
    }
    let never: Vec<&str> =
        routines.iter().zip(&answered).filter(|(_, times)| **times == 0).map(|(routine, _)| &*routine.name).collect();
    ensure!(never.is_empty(), "never answered: {never:?}");
    no_receipt_outlives_366_days(owner).await?;
    login.remove().await
}

/// Creates a bucket, a window and a receipt under a key that no call names.
async fn make_victim(owner: &TestDb) -> anyhow::Result<()> {
    let victim = Key::try_from("victim")?;
    owner.create(&victim, Quota::once(5)?).await?;
    let window = Window::new(5, DAY, DAY / 24)?;
    for take in [Take::from(victim.clone()), Take::from(victim).rule(window.into())] {
        ensure!(owner.decide(take.id(Uuid::from_u128(1), DAY)).await?.is_granted());
    }
    Ok(())
}

/// The victim's rows.
async fn others(owner: &TestDb) -> anyhow::Result<Vec<Row>> {
    let buckets = owner.table();
    let table = |name: &str| buckets.replace("token_buckets", name);
    let victim = owner.literal(&Key::try_from("victim")?);
    let mut rows = Vec::new();
    for sql in [
        format!("select full_at, granted, max_granted_wait, capacity from {buckets} where id = {victim}"),
        format!("select granted, since, last_wait from {} where id = {victim}", table("token_windows")),
        format!("select cost, granted, state, expires_at from {} where bucket like '%victim'", table("token_receipts")),
    ] {
        rows.extend(owner.sql(sql).await?);
    }
    ensure!(rows.len() == 4, "the victim has {} rows", rows.len());
    Ok(rows)
}

/// The state that decisions depend on, and the number of tokens granted.
async fn state(owner: &TestDb) -> anyhow::Result<Vec<Row>> {
    let buckets = owner.table();
    let names = ["token_buckets", "token_windows", "token_receipts", "token_plans", "token_overrides", "token_mode"];
    let tables = names.map(|name| buckets.replace("token_buckets", name));
    let sum = format!(
        "select (select coalesce(sum(granted), 0) from {}) + (select coalesce(sum(granted), 0) from {}) as granted",
        tables[0], tables[1]
    );
    let mut rows = owner.sql(sum).await?;
    rows.extend(match owner.engine.kind {
        Kind::Postgres => {
            let texts =
                tables.map(|table| format!("(select string_agg(t::text, '|' order by t::text) from {table} t)"));
            owner.sql(format!("select md5(concat_ws('|', {})) as state", texts.join(", "))).await?
        }
        _ => owner.sql(format!("checksum table {}", tables.join(", "))).await?,
    });
    Ok(rows)
}

fn sum(state: &[Row]) -> anyhow::Result<i128> {
    Ok(state[0].text("granted")?.context("a sum")?.parse()?)
}

fn is_granted(rows: &[Row]) -> bool {
    rows.iter().any(|row| {
        let column = |name| row.text(name).ok().flatten();
        // With an outcome, `granted` is the number of tokens that the bucket granted in total.
        match column("outcome") {
            Some(outcome) => outcome == "granted" && column("mode").is_none(),
            None => matches!(column("granted"), Some("t" | "1")),
        }
    })
}

/// Arguments out of range, invalid limits (23000 on MariaDB), no such bucket; HY000: values that MySQL cannot convert.
fn is_documented(code: &str) -> bool {
    code.starts_with("22") || ["23514", "23000", "P0002", "45000", "HY000"].contains(&code)
}

async fn no_receipt_outlives_366_days(owner: &TestDb) -> anyhow::Result<()> {
    let receipts = owner.table().replace("token_buckets", "token_receipts");
    let last = owner.sql(format!("select coalesce(max(expires_at), 0) as last from {receipts}")).await?;
    let most = owner.now().await? + i64::try_from((366 * DAY).as_nanos())?;
    ensure!(last[0].number("last")? <= most, "a receipt stays for longer than 366 days");
    Ok(())
}

const CALLS_OF_EACH: usize = 24;
const CAPACITY: i64 = 5;
const DAY: Duration = Duration::from_hours(24);
