use std::cmp::Ordering;
use std::process::ExitCode;

use crate::output::{progress, say, say_json};
use crate::terms::key;
use crate::{levels, windows};
use chrono::{DateTime, Utc};
use clap::ValueEnum;
use serde_json::Value;
use tollgate::{Admin, BucketLevel, Error, Filter, Key, WindowLevel};

/// List buckets, or sliding windows: the first of them by key, or those that come first in another order
#[derive(clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag by itself")]
#[command(after_help = "Examples:\n\
\x20 tollgate list --prefix user: --sort available   # the emptiest of those whose key begins with user:\n\
\x20 tollgate list --windows --sort available     # the sliding windows that are used up most\n\
\x20 tollgate list --json | jq '.[] | select(.available <= 0).key'")]
pub(crate) struct Args {
    /// Sliding windows, and no buckets
    #[arg(long, conflicts_with_all = ["plan", "provisioned", "first_use"])]
    windows: bool,
    /// Those whose key begins so
    #[arg(long, value_parser = key)]
    prefix: Option<Key>,
    /// Those that follow this plan
    #[arg(long, value_name = "NAME", value_parser = key)]
    plan: Option<Key>,
    /// Those that were provisioned
    #[arg(long, conflicts_with = "first_use")]
    provisioned: bool,
    /// Those that their first request made
    #[arg(long)]
    first_use: bool,
    /// In which order
    #[arg(long, value_enum, default_value_t = Order::Key)]
    sort: Order,
    /// The other way round
    #[arg(long)]
    reverse: bool,
    /// How many at most; 0: all
    #[arg(long, value_name = "BUCKETS", default_value_t = 100)]
    limit: usize,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Order {
    /// In the byte order of the keys
    Key,
    /// The emptiest first
    Available,
    /// Those that granted most first
    Granted,
    /// Those that are full last, first; of windows, those in which one more passes last
    Full,
}

/// What is listed.
trait Level: Sized {
    /// What one is called, and several.
    const NAMES: [&str; 2];

    fn key(&self) -> &Key;

    fn compare(&self, other: &Self, order: Order) -> Ordering;

    fn table(levels: &[Self]) -> String;

    fn json(&self) -> Value;
}

impl Level for BucketLevel {
    const NAMES: [&str; 2] = ["bucket", "buckets"];

    fn key(&self) -> &Key {
        &self.key
    }

    fn compare(&self, other: &Self, order: Order) -> Ordering {
        match order {
            Order::Key => Ordering::Equal,
            Order::Available => self.available.cmp(&other.available),
            Order::Granted => other.granted.cmp(&self.granted),
            Order::Full => full(other).cmp(&full(self)),
        }
    }

    fn table(levels: &[Self]) -> String {
        levels::table(levels)
    }

    fn json(&self) -> Value {
        levels::json(self)
    }
}

impl Level for WindowLevel {
    const NAMES: [&str; 2] = ["sliding window", "sliding windows"];

    fn key(&self) -> &Key {
        &self.key
    }

    fn compare(&self, other: &Self, order: Order) -> Ordering {
        match order {
            Order::Key => Ordering::Equal,
            Order::Available => self.available().cmp(&other.available()),
            Order::Granted => other.granted.cmp(&self.granted),
            Order::Full => other.retry_after.cmp(&self.retry_after),
        }
    }

    fn table(levels: &[Self]) -> String {
        windows::table(levels)
    }

    fn json(&self) -> Value {
        windows::json(self)
    }
}

/// Whether it never will be, and else when; one that is full comes before all others.
fn full(level: &BucketLevel) -> (bool, Option<DateTime<Utc>>) {
    let lacks = i64::try_from(level.quota.capacity()).is_ok_and(|capacity| level.available < capacity);
    (lacks && level.full_at.is_none(), level.full_at)
}

impl Args {
    pub(crate) async fn run(self, store: &impl Admin) -> anyhow::Result<ExitCode> {
        if self.windows {
            let prefix = self.prefix.as_ref();
            return self.list(async |after: Option<&Key>, limit| store.windows(prefix, after, limit).await).await;
        }
        let mut filter = Filter::default();
        if let Some(prefix) = &self.prefix {
            filter = filter.prefix(prefix.clone());
        }
        if let Some(plan) = &self.plan {
            filter = filter.plan(plan.clone());
        }
        if self.provisioned || self.first_use {
            filter = filter.provisioned(self.provisioned);
        }
        self.list(async |after: Option<&Key>, limit| store.list(&filter, after, limit).await).await
    }

    async fn list<L: Level>(
        &self,
        page: impl AsyncFn(Option<&Key>, u32) -> Result<Vec<L>, Error>,
    ) -> anyhow::Result<ExitCode> {
        let limit = if self.limit == 0 { usize::MAX } else { self.limit };
        // By key they come in their order, so one more than wanted says whether there are more.
        let enough = if self.sort == Order::Key && !self.reverse { limit.saturating_add(1) } else { usize::MAX };
        let (levels, is_more) = self.read(page, limit, enough).await?;
        if self.json {
            say_json(&Value::Array(levels.iter().map(L::json).collect()))?;
        } else if levels.is_empty() {
            say(format!("no such {}", L::NAMES[0]))?;
        } else {
            say(L::table(&levels))?;
            if is_more {
                say(format!("… and more: `--limit 0` lists all, `--sort available` the emptiest {limit}"))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The first in the order, and whether there are more. No more than a few times their number are kept.
    async fn read<L: Level>(
        &self,
        page: impl AsyncFn(Option<&Key>, u32) -> Result<Vec<L>, Error>,
        limit: usize,
        enough: usize,
    ) -> anyhow::Result<(Vec<L>, bool)> {
        let bar = progress("reading");
        let (mut levels, mut read, mut after) = (Vec::new(), 0, None::<Key>);
        while read < enough {
            let wanted = u32::try_from(enough - read).unwrap_or(PAGE).min(PAGE);
            let page = page(after.as_ref(), wanted).await?;
            read += page.len();
            after = page.last().map(|level| level.key().clone());
            let is_last = page.len() < wanted as usize;
            levels.extend(page);
            if levels.len() > limit.saturating_mul(2) {
                self.keep_first(limit, &mut levels);
            }
            bar.set_message(format!("{read} {}", L::NAMES[usize::from(read != 1)]));
            if is_last {
                break;
            }
        }
        bar.finish_and_clear();
        self.keep_first(limit, &mut levels);
        Ok((levels, read > limit))
    }

    fn keep_first<L: Level>(&self, limit: usize, levels: &mut Vec<L>) {
        levels.sort_unstable_by(|one, other| {
            let order = one.compare(other, self.sort).then_with(|| one.key().cmp(other.key()));
            if self.reverse { order.reverse() } else { order }
        });
        levels.truncate(limit);
    }
}

const PAGE: u32 = 1000;
