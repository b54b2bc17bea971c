use std::cmp::Ordering;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::ValueEnum;
use serde_json::Value;
use tollgate::{Admin, BucketLevel, Filter, Key};

use crate::levels;
use crate::output::{progress, say, say_json};
use crate::terms::key;

/// List buckets: the first of them by key, or those that come first in another order
#[derive(clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag by itself")]
#[command(after_help = "Examples:\n\
\x20 tollgate list --prefix user: --sort available   # the emptiest of those whose key begins with user:\n\
\x20 tollgate list --json | jq '.[] | select(.available <= 0).key'")]
pub(crate) struct Args {
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
    /// Those that are full last, first
    Full,
}

impl Order {
    fn compare(self, one: &BucketLevel, other: &BucketLevel) -> Ordering {
        match self {
            Self::Key => Ordering::Equal,
            Self::Available => one.available.cmp(&other.available),
            Self::Granted => other.granted.cmp(&one.granted),
            Self::Full => full(other).cmp(&full(one)),
        }
    }
}

/// Whether it never will be, and else when; one that is full comes before all others.
fn full(level: &BucketLevel) -> (bool, Option<DateTime<Utc>>) {
    let lacks = i64::try_from(level.quota.capacity()).is_ok_and(|capacity| level.available < capacity);
    (lacks && level.full_at.is_none(), level.full_at)
}

impl Args {
    pub(crate) async fn run(self, store: &impl Admin) -> anyhow::Result<ExitCode> {
        let limit = if self.limit == 0 { usize::MAX } else { self.limit };
        // By key they come in their order, so one more than wanted says whether there are more.
        let enough = if self.sort == Order::Key && !self.reverse { limit.saturating_add(1) } else { usize::MAX };
        let (levels, is_more) = self.read(store, limit, enough).await?;
        if self.json {
            say_json(&Value::Array(levels.iter().map(levels::json).collect()))?;
        } else if levels.is_empty() {
            say("no such bucket")?;
        } else {
            say(levels::table(&levels))?;
            if is_more {
                say(format!("… and more: `--limit 0` lists all, `--sort available` the emptiest {limit}"))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The first in the order, and whether there are more. No more than a few times their number are kept.
    async fn read(&self, store: &impl Admin, limit: usize, enough: usize) -> anyhow::Result<(Vec<BucketLevel>, bool)> {
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
        let bar = progress("reading");
        let (mut levels, mut read, mut after) = (Vec::new(), 0, None);
        while read < enough {
            let wanted = u32::try_from(enough - read).unwrap_or(PAGE).min(PAGE);
            let page = store.list(&filter, after.as_ref(), wanted).await?;
            read += page.len();
            after = page.last().map(|level| level.key.clone());
            let is_last = page.len() < wanted as usize;
            levels.extend(page);
            if levels.len() > limit.saturating_mul(2) {
                self.keep_first(limit, &mut levels);
            }
            bar.set_message(format!("{read} buckets"));
            if is_last {
                break;
            }
        }
        bar.finish_and_clear();
        self.keep_first(limit, &mut levels);
        Ok((levels, read > limit))
    }

    fn keep_first(&self, limit: usize, levels: &mut Vec<BucketLevel>) {
        levels.sort_unstable_by(|one, other| {
            let order = self.sort.compare(one, other).then_with(|| one.key.cmp(&other.key));
            if self.reverse { order.reverse() } else { order }
        });
        levels.truncate(limit);
    }
}

const PAGE: u32 = 1000;
