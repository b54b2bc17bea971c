//! Subscriptions with monthly quotas, and the invoices of two months from the usage that tollgate records. The clock is simulated.
//!
//! ```text
//! cargo run --example subscription # on SQLite, in memory
//! cargo run --example subscription --features postgres -- postgres://localhost/app # or in a new database beside it; also mysql
//! ```
//!
//! ```text
//! $ cargo run --example subscription
//! 2026-11  customers  tokens  cents
//!   free         130   49876      0
//!   pro           60  133733  119316
//!   scale         20  174900  202367
//! 2026-12  customers  tokens  cents
//!   free         120   47764      0
//!   pro           60  163680  120518
//!   scale         20  180220  202495
//! the invoices add up to the 750173 tokens that were used
//! ```

use std::collections::BTreeMap;

use anyhow::ensure;
use tokio::task::JoinSet;
use tollgate::chrono::{DateTime, Datelike, Months, NaiveDate, NaiveTime, TimeDelta, Utc};
use tollgate::{
    Admin, Limiter, Rule,
    admin::{UsageFilter, UsagePeriod, UsageRecording},
    model::Limits,
    store::Maintenance,
};

use common::simulated::Simulated;

/// Name, monthly quota, and the price of a month and of 1000 tokens, in cents.
const PLANS: [(&str, &str, u64, u64); 3] = [
    ("free", "30/s burst 100; month: 400/month", 0, 0),
    ("pro", "100/s burst 300; month: 4000/month", 1900, 40),
    ("scale", "300/s burst 900; month: 20000/month", 9900, 25),
];
const CUSTOMERS: usize = 200;
/// A day's requests come at once, and a busy server may take its time.
#[cfg(any(feature = "mysql", feature = "postgres"))]
const DEADLINE: std::time::Duration = std::time::Duration::from_secs(60);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let database = Simulated::open().await?;
    match &database {
        #[cfg(feature = "mysql")]
        Simulated::MySql(on) => {
            two_months(&database, tollgate::MySqlStore::from(on.pool.clone()).deadline(DEADLINE)).await?;
        }
        #[cfg(feature = "postgres")]
        Simulated::Postgres(on) => {
            two_months(&database, tollgate::PgStore::from(on.pool.clone()).deadline(DEADLINE)).await?;
        }
        Simulated::Sqlite(store, _) => two_months(&database, store.clone()).await?,
    }
    database.close().await
}

async fn two_months<S: Admin + Maintenance + Clone + 'static>(clock: &Simulated, store: S) -> anyhow::Result<()> {
    let november = midnight(NaiveDate::from_ymd_opt(2026, 11, 1).expect("a day"));
    clock.at(november).await?;
    let mut limiters = Vec::new();
    for (plan, limits, ..) in PLANS {
        store.create_plan(&plan.try_into()?, limits.parse::<Limits>()?).await?;
        limiters.push(Limiter::new(store.clone(), Rule::Plan(plan.try_into()?))?);
    }
    store.set_usage_recording(Some(UsageRecording::new(UsagePeriod::Day))).await?;

    // The tokens that requests were granted, by month and plan, to compare.
    let mut granted: BTreeMap<(u32, String), u64> = BTreeMap::new();
    for day in 0..61 {
        let now = november + TimeDelta::days(day);
        clock.at(now).await?;
        // A limiter does this once a minute. The simulated clock goes from day to day.
        while !store.record_usage(1000).await?.finished {}
        clock.at(now + TimeDelta::hours(12)).await?;
        let mut requests = JoinSet::new();
        for customer in 0..CUSTOMERS {
            let plan = plan_of(customer, now);
            let limiter = limiters[plan].clone();
            let tokens = (customer * 7 + now.day0() as usize * 13) as u64 % 30 * [1, 6, 20][plan] + 1;
            requests.spawn(async move {
                let decision = limiter.allow_n(format!("customer:{customer}"), tokens).await?;
                anyhow::Ok((plan, if decision.is_granted() { tokens } else { 0 }))
            });
        }
        for answer in requests.join_all().await {
            let (plan, tokens) = answer?;
            *granted.entry((now.month(), PLANS[plan].0.to_owned())).or_default() += tokens;
        }
        if day == 20 {
            // A job of customer 7 fails halfway.
            let job = limiters[2].reserve_n("customer:7", 500).await?;
            ensure!(job.refund(200).await? > 0, "the job was not granted");
            *granted.entry((11, "scale".to_owned())).or_default() += 300;
        }
    }

    let invoiced = invoices(&store, november).await?;
    ensure!(invoiced == granted, "{invoiced:?} is not {granted:?}");
    println!("the invoices add up to the {} tokens that were used", granted.values().sum::<u64>());
    Ok(())
}

/// Prints the invoices of two months, and returns the tokens by month and plan.
async fn invoices(store: &impl Admin, november: DateTime<Utc>) -> anyhow::Result<BTreeMap<(u32, String), u64>> {
    let mut invoiced = BTreeMap::new();
    for first in [november, november + Months::new(1)] {
        println!("{}  customers  tokens  cents", first.format("%Y-%m"));
        let month = UsageFilter::between(first, first + Months::new(1));
        for (plan, _, per_month, per_thousand) in PLANS {
            let usage = store.usage(&month.clone().plan(plan.try_into()?), None, 1000).await?;
            // The quota that is sold, and not the one that protects the service.
            let used: Vec<u64> = usage
                .iter()
                .filter(|usage| usage.key.limit_name() == Some("month"))
                .map(|u| u.used().unsigned_abs())
                .collect();
            let cents: u64 = used.iter().map(|tokens| per_month + tokens * per_thousand / 1000).sum();
            let tokens = used.iter().sum();
            println!("  {plan:5}  {:9}  {tokens:6}  {cents:5}", used.len());
            invoiced.insert((first.month(), plan.to_owned()), tokens);
        }
    }
    Ok(invoiced)
}

/// The plan of a customer. On 15 November, ten customers go from `free` to `pro`.
fn plan_of(customer: usize, now: DateTime<Utc>) -> usize {
    match customer {
        0..20 => 2,
        20..70 => 1,
        70..80 if now >= midnight(NaiveDate::from_ymd_opt(2026, 11, 15).expect("a day")) => 1,
        _ => 0,
    }
}

fn midnight(day: NaiveDate) -> DateTime<Utc> {
    day.and_time(NaiveTime::MIN).and_utc()
}
