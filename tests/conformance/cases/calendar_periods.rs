//! Calendar periods in named time zones: a server's tables of zones yield the periods of the library.

use jiff::{Timestamp, tz::TimeZone};
use tollgate::Quota;
use tollgate::model::bucket::BucketQuota;

use crate::engines::{mysql, postgres};
use crate::matrix::{Case, Setup, list};
use crate::test_db::{AnyPool, TestDb};

pub fn cases() -> Vec<Case> {
    list!(
        Setup { needs: |engine| engine.has_routines, ..Setup::WITHOUT_LAYERS };
        periods_of_ten_zones_begin_when_the_librarys_do,
    )
}

async fn periods_of_ten_zones_begin_when_the_librarys_do(db: TestDb) -> anyhow::Result<()> {
    let mut instants = Vec::new();
    for zone in ZONES {
        for period in PERIODS {
            let refill = format!("calendar {period} in {zone}");
            let quota: Quota = format!("9 per {refill}").parse()?;
            for now in around_changes(zone, db.engine.last_year)? {
                let limits = BucketQuota::at(&quota, now);
                let start = limits.start.expect("a period");
                instants.extend([start, limits.period_end - 1].map(|now| (refill.clone(), now)));
            }
        }
    }
    let found = match &db.pool {
        AnyPool::MySql(pool) => {
            mysql::load_zones(pool, &ZONES).await?;
            mysql::period_bounds(pool, &instants).await?
        }
        AnyPool::Postgres(pool) => postgres::period_bounds(pool, &instants).await?,
        AnyPool::Sqlite(_) => unreachable!("a file has no routines"),
    };
    assert_eq!(found.len(), instants.len());
    for ((refill, now), bounds) in instants.iter().zip(found) {
        let limits = BucketQuota::at(&format!("9 per {refill}").parse()?, *now);
        assert_eq!(bounds, (limits.start.expect("a period"), limits.period_end), "{refill} at {now}");
    }
    Ok(())
}

/// Instants before and after some changes of a zone's clocks, and a few by chance.
fn around_changes(zone: &str, last_year: i16) -> anyhow::Result<Vec<i64>> {
    let last = format!("{last_year}-06-01T00:00:00Z").parse::<Timestamp>()?;
    let changes = TimeZone::get(zone)?;
    let changes = changes.following(Timestamp::UNIX_EPOCH).map(|change| change.timestamp()).take_while(|at| *at < last);
    // Both kinds of change are among every 41st.
    let near = changes.step_by(41).flat_map(|at| [-1, 0, 86_400].map(|seconds| at.as_second() + seconds));
    let by_chance = (0..3).map(|_| fastrand::i64(YEAR..last.as_second()));
    Ok(near.chain(by_chance).filter(|second| *second > YEAR).map(|second| second * SECOND).collect())
}

const ZONES: [&str; 10] = [
    "Africa/Cairo",
    "America/Havana",
    "America/New_York",
    "America/Sao_Paulo",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Europe/London",
    "Pacific/Apia",
    "Pacific/Auckland",
];

/// Starts that daylight saving time skips and repeats, and days that some months lack.
const PERIODS: [&str; 5] =
    ["day", "day from 02:30", "week from sunday", "month from day 31 02:15", "year from 02-29 01:30"];

const SECOND: i64 = 1_000_000_000;
/// Seconds. The first instants are in 1971: MySQL knows no time before 1970.
const YEAR: i64 = 366 * 86_400;
