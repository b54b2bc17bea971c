use std::path::Path;
use std::time::{Duration, Instant};

use sqlx::error::DatabaseError;
use sqlx::{Connection, Sqlite, SqliteConnection, SqlitePool};

use super::examine::Examine;
use super::report::DoctorReport;
use crate::{exit, failure};

impl Examine for Sqlite {
    async fn examine(pool: &SqlitePool, report: &mut DoctorReport) -> Result<(), sqlx::Error> {
        let mut connection = pool.acquire().await?;
        let version: String = sqlx::query_scalar("select sqlite_version()").fetch_one(&mut *connection).await?;
        report.ok("server", format!("none: SQLite {version}, linked in; its clock is this host's"));
        let options = pool.connect_options();
        journal(&mut connection, options.get_filename(), report).await?;
        #[cfg(unix)]
        access(options.get_filename(), report);
        busy(&mut connection, report).await?;
        writer(&mut connection, report).await?;
        size(&mut connection, report).await
    }

    async fn content(pool: &SqlitePool, report: &mut DoctorReport) -> Result<(), sqlx::Error> {
        let mode = sqlx::query("select one from token_mode").fetch_optional(pool).await?;
        report.mode_row(mode.is_some(), "insert into token_mode default values");
        Ok(())
    }

    async fn remedy(_: &SqlitePool, error: &dyn DatabaseError) -> Result<Option<String>, sqlx::Error> {
        // Extended result codes carry the primary one in their lowest byte.
        let code = error.code().and_then(|code| code.parse::<i32>().ok()).map(|code| code & 0xff);
        Ok(match code {
            Some(SQLITE_BUSY | SQLITE_LOCKED) => None,
            Some(SQLITE_PERM | SQLITE_READONLY | SQLITE_CANTOPEN) => Some(exit::READ_ONLY_HINT.to_owned()),
            _ => Some("check the disk, and run `pragma integrity_check`".to_owned()),
        })
    }

    async fn count_orphans(
        pool: &SqlitePool,
        most: i64,
        deleted: &str,
    ) -> Result<Vec<(Option<String>, i64)>, sqlx::Error> {
        sqlx::query_as(
            "select case when p.name is null then b.plan end, count(*)
               from (select plan from token_buckets limit ?1) b
               left join token_plans p on p.name = b.plan and p.name <> ?2
              group by 1",
        )
        .bind(most)
        .bind(deleted)
        .fetch_all(pool)
        .await
    }
}

async fn journal(connection: &mut SqliteConnection, file: &Path, report: &mut DoctorReport) -> Result<(), sqlx::Error> {
    let mode: String = sqlx::query_scalar("pragma journal_mode").fetch_one(&mut *connection).await?;
    let wal = std::fs::metadata(format!("{}-wal", file.display())).map_or(0, |wal| wal.len()) / MIB;
    if mode == "wal" && wal >= MAX_WAL_MIB {
        let found = format!("wal of {wal} MiB: a reader keeps its transaction open, or did, and reads become slow");
        let advice = "end long reads, then `pragma wal_checkpoint(truncate)`; `pragma journal_size_limit = 8388608` on each \
                      connection, which `SqliteStore::connect` sets, bounds the file after the next long read";
        report.warn("journal", found, advice);
    } else if mode == "wal" {
        report.ok("journal", "wal: readers and the writer do not wait for each other");
    } else {
        let advice = "pragma journal_mode = wal, once; it stays with the file";
        report.warn("journal", format!("{mode}: readers and the writer wait for each other"), advice);
    }
    let synchronous: i64 = sqlx::query_scalar("pragma synchronous").fetch_one(connection).await?;
    match synchronous {
        0 => report.warn(
            "durability",
            "synchronous is off here: a power failure can destroy the file",
            "use normal or full",
        ),
        1 => report.ok("durability", "synchronous is normal here: a power failure forgets the last grants"),
        _ => report
            .ok("durability", "synchronous is full here: a power failure forgets no grant; each program sets its own"),
    }
    Ok(())
}

/// Reports a file that other accounts of this host can open.
#[cfg(unix)]
fn access(file: &Path, report: &mut DoctorReport) {
    use std::os::unix::fs::MetadataExt as _;

    let Ok(path) = file.canonicalize() else { return };
    let mode = |path: &Path| path.metadata().map_or(0, |found| found.mode());
    let is_reachable = path.ancestors().skip(1).all(|directory| mode(directory) & 0o001 != 0);
    let (mode, name) = (mode(&path) & 0o777, file.display());
    let can = match mode & 0o006 {
        0 => None,
        4 => Some("read its keys"),
        _ => Some("change it"),
    };
    match can.filter(|_| is_reachable) {
        None => report.ok("access", format!("{mode:04o}: not open to every account of this host")),
        Some(can) => report.warn(
            "access",
            format!("{mode:04o}: every account of this host can {can}"),
            format!("chmod o= {name}*"),
        ),
    }
}

async fn busy(connection: &mut SqliteConnection, report: &mut DoctorReport) -> Result<(), sqlx::Error> {
    let timeout: i64 = sqlx::query_scalar("pragma busy_timeout").fetch_one(connection).await?;
    report.ok("busy timeout", format!("{timeout} ms here; each program sets its own for each connection"));
    Ok(())
}

/// Whether anybody sits on the lock that every grant needs.
async fn writer(connection: &mut SqliteConnection, report: &mut DoctorReport) -> Result<(), sqlx::Error> {
    let start = Instant::now();
    match connection.begin_with("begin immediate").await {
        Ok(mut transaction) => {
            let waited = start.elapsed();
            // The lock of a file that is read-only is granted; the first change is not.
            let written = sqlx::query("create table tollgate_doctor (n integer)").execute(&mut *transaction).await;
            transaction.rollback().await?;
            match written {
                Ok(_) => obtained(waited, report),
                Err(error) => report.fail("write lock", failure::sql_message(&error), exit::READ_ONLY_HINT),
            }
        }
        Err(error) => {
            let advice =
                "another program keeps a transaction open, or this user may not write the file or its directory";
            report.fail("write lock", failure::sql_message(&error), advice);
        }
    }
    Ok(())
}

fn obtained(waited: Duration, report: &mut DoctorReport) {
    let found = format!("obtained within {waited:.1?}");
    if waited < MIN_LOCK_WAIT {
        report.ok("write lock", format!("free, {found}"));
    } else {
        let advice = "another program writes for that long: keep its transactions short, as every grant waits for them";
        report.warn("write lock", found, advice);
    }
}

async fn size(connection: &mut SqliteConnection, report: &mut DoctorReport) -> Result<(), sqlx::Error> {
    let (pages, free): (i64, i64) = sqlx::query_as(
        "select c.page_count * s.page_size, f.freelist_count * s.page_size
           from pragma_page_count c, pragma_freelist_count f, pragma_page_size s",
    )
    .fetch_one(connection)
    .await?;
    let (used, free) = ((pages - free) / 1024, free / 1024);
    report.ok("file", format!("{used} KiB used, {free} KiB free for new rows"));
    Ok(())
}

const MIB: u64 = 1024 * 1024;

/// More than writes without a long read leave.
const MAX_WAL_MIB: u64 = 32;

const SQLITE_PERM: i32 = 3;
const SQLITE_BUSY: i32 = 5;
const SQLITE_LOCKED: i32 = 6;
const SQLITE_READONLY: i32 = 8;
const SQLITE_CANTOPEN: i32 = 14;

/// Longer than a write takes.
const MIN_LOCK_WAIT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

    use super::*;

    #[test]
    fn long_wait_for_the_write_lock_is_a_warning() {
        for (waited, status) in [(0, "ok"), (100, "ok"), (2_400, "warn")] {
            let mut report = DoctorReport::default();
            obtained(Duration::from_millis(waited), &mut report);
            assert_eq!(report.status(), status, "{waited} ms");
        }
    }

    #[tokio::test]
    async fn power_failure_risks_are_reported() {
        for (synchronous, found, warned) in [
            (SqliteSynchronous::Off, "can destroy the file", &["journal", "durability"][..]),
            (SqliteSynchronous::Normal, "forgets the last grants", &["journal"]),
            (SqliteSynchronous::Full, "forgets no grant", &["journal"]),
        ] {
            let options = SqliteConnectOptions::new().synchronous(synchronous).journal_mode(SqliteJournalMode::Memory);
            let pool = SqlitePoolOptions::new()
                .idle_timeout(None)
                .max_lifetime(None)
                .max_connections(1)
                .connect_with(options)
                .await
                .expect("it connects");
            let mut report = DoctorReport::default();
            Sqlite::examine(&pool, &mut report).await.expect("it is examined");
            assert!(report.found("durability").contains(found), "{}", report.found("durability"));
            assert_eq!(report.warnings(), warned, "{synchronous:?}");
        }
    }
}
