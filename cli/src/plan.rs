use std::process::ExitCode;
use std::time::Duration;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use tollgate::{
    Admin, Error, Key, SqlStore,
    admin::{self, ModeSetting, Plan},
    model::{LimitName, Limits, NamedLimit},
    store::Migrate,
};

use crate::doctor::{Examine, OrphanedBuckets, recreate_command};
use crate::exit::CliError;
use crate::modes::SettingJson;
use crate::output::{Cell, ChangeJson, Column, Table, say, say_change, say_json};
use crate::paging::{PAGE, read_all, readable};
use crate::quota_args::{self, QuotaArgs, key, limit_name, reason};
use crate::text::{plain, quoted};
use crate::{clock, failure, limit_option, modes, overrides, times};

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List the plans
    List {
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Create a plan, or change the limits of all buckets that follow it, with their next request
    ///
    /// A request takes from all limits, or from none. All but the first have a name. Limits that are not named are removed.
    #[command(after_help = "Examples:\n\
    \x20 tollgate plan set free --quota '10/s burst 20'\n\
    \x20 tollgate plan set free '10/s burst 20' 'day: 1000/day in UTC' 'month: 20000/month'\n\
    \x20 tollgate plan set llm 'requests: 60/min' 'tokens: 40000/min cost tokens'")]
    Set {
        #[arg(value_parser = key)]
        name: Key,
        /// The limits, as text
        #[arg(value_name = "LIMIT", conflicts_with_all = ["capacity", "per", "quota"])]
        limits: Vec<String>,
        #[command(flatten)]
        quota: QuotaArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete a plan
    ///
    /// Requests that name the plan, or a bucket that follows it, fail from then on.
    Delete {
        #[arg(value_parser = key)]
        name: Key,
        /// Delete the plan even if buckets follow it
        #[arg(long)]
        force: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Give one key other limits than its plan's or its own, or remove them again
    Override(Override),
    /// List the keys whose limits or mode an override sets
    Overrides {
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
}

#[derive(clap::Args)]
#[command(after_help = "Examples:\n\
\x20 tollgate plan override user:42 --quota 1000/s --for 1d --reason 'load test, ticket 7'\n\
\x20 tollgate plan override user:42 --clear")]
pub(crate) struct Override {
    #[arg(value_parser = key)]
    key: Key,
    /// One limit of the key's plan [default: the first]
    #[arg(long, value_name = "NAME", value_parser = limit_name)]
    limit: Option<LimitName>,
    #[command(flatten)]
    quota: QuotaArgs,
    /// Why the limits are set, for later readers [default: the previous reason]
    #[arg(long, value_parser = reason)]
    reason: Option<String>,
    /// How long the override holds, with its limits and mode [default: the previous end, or until it is cleared]
    #[arg(long = "for", value_name = "SPAN", value_parser = times::parse)]
    duration: Option<Duration>,
    /// Remove the limits; the key's mode stays
    #[arg(long, conflicts_with_all = ["capacity", "per", "quota", "reason", "duration"])]
    clear: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Command {
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self, Self::List { .. } | Self::Overrides { .. })
    }

    pub(crate) async fn run<DB: Migrate + Examine>(self, store: &SqlStore<DB>) -> anyhow::Result<ExitCode> {
        match self {
            Self::List { json } => list(store, json).await?,
            Self::Set { name, limits, quota, json } => {
                let limits = if limits.is_empty() {
                    Limits::from(quota.required()?)
                } else {
                    quota_args::limits(&limits.join(";"))?
                };
                set(store, &name, &limits, json).await?;
            }
            Self::Delete { name, force, json } => delete(store, &name, force, json).await?,
            Self::Override(change) => change.run(store).await?,
            Self::Overrides { json } => overrides::list(store, clock::now(store.pool()).await?, json).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Override {
    async fn run<DB: Migrate + Examine>(self, store: &SqlStore<DB>) -> anyhow::Result<()> {
        let quota = if self.clear { None } else { Some(self.quota.required()?) };
        let now = clock::now(store.pool()).await?;
        let key = limit_option::bucket(store, self.key, self.limit.as_ref()).await?;
        let before = overrides::effective(store, &key, now).await?;
        if self.clear && before.quota.is_none() && before.mode.is_some() {
            return Err(overrides::missing_part(&key, "limits").into());
        }
        let reason = self.reason.unwrap_or_else(|| before.reason.clone());
        let end = clock::end(self.duration, now)?.or(before.expires_at);
        let over = admin::Override { quota, mode: before.mode, reason, expires_at: end };
        overrides::replace(store, &key, (&before, now), over, self.json).await?;
        overrides::note_end(before.mode.map(|mode| format!("mode {mode}")), before.expires_at, end);
        Ok(())
    }
}

async fn set<DB: Migrate + Examine>(
    store: &SqlStore<DB>,
    name: &Key,
    limits: &Limits,
    json: bool,
) -> anyhow::Result<()> {
    let before = readable(store.plan(name).await)?.flatten();
    let limits_before = readable(self::limits(store, name).await)?.flatten();
    store.create_plan(name, limits.clone()).await?;
    let mut change = (None, None);
    if json {
        let now = clock::now(store.pool()).await?;
        let after = store.plan(name).await?;
        change = (
            before.as_ref().map(|before| PlanJson::new(before, now)),
            after.as_ref().map(|after| PlanJson::new(after, now)),
        );
    }
    say_change(json, change, || {
        let before = limits_before.map_or_else(String::new, |before| format!("; it was {before}"));
        format!("plan {}: {limits}{before}", plain(name.as_str()))
    })?;
    Ok(())
}

/// The limits of a plan in their order, if it exists.
pub(crate) async fn limits(store: &impl Admin, name: &Key) -> Result<Option<Limits>, Error> {
    let Some(first) = store.plan(name).await? else { return Ok(None) };
    let Some(maintenance) = store.maintenance() else { return Ok(Some(first.quota.into())) };
    let mut limits = Vec::new();
    for (place, limit) in maintenance.read_plan(name).await?.iter().enumerate() {
        let row = match limit.get_name().filter(|_| place > 0) {
            Some(name_of_limit) => store.plan(&name.limit(name_of_limit)).await?,
            None => Some(first.clone()),
        };
        if let Some(row) = row {
            let named =
                limit.get_name().into_iter().fold(NamedLimit::from(row.quota), |one, name| one.name(name.clone()));
            limits.push(limit.get_cost().into_iter().fold(named, |one, cost| one.cost(cost.clone())));
        }
    }
    Ok(Some(Limits::new(limits)?))
}

/// Deletes a plan, and prints its limits and how many buckets follow it. Without `force`, refuses if a bucket follows it.
async fn delete<DB: Migrate + Examine>(
    store: &SqlStore<DB>,
    name: &Key,
    force: bool,
    json: bool,
) -> anyhow::Result<()> {
    let before = store.plan(name).await?.ok_or_else(|| CliError::unknown_plan(name))?;
    let limits = limits(store, name).await?.unwrap_or_else(|| before.quota.into());
    let planless = OrphanedBuckets::find(store.pool(), Some(name.as_str())).await;
    if !force {
        let reason = match &planless {
            Ok(planless) => planless.followers(name.as_str()),
            Err(error) => Some(format!("its buckets cannot be counted: {}", failure::message(error))),
        };
        if let Some(reason) = reason {
            let message = format!("plan {} is not deleted: {reason}", plain(name.as_str()));
            let list = format!("`tollgate list --plan {}` lists its buckets", quoted(name.as_str()));
            let hint = format!("add --force to delete it, and requests for its buckets fail from then on; {list}");
            return Err(CliError::arguments(message, hint).into());
        }
    }
    if !store.delete_plan(name).await? {
        return Err(CliError::unknown_plan(name).into());
    }
    let now = clock::now(store.pool()).await?;
    // The plan is deleted even if its buckets could not be counted.
    let planless = planless.ok();
    if json {
        let followers = planless.and_then(|planless| planless.count(name.as_str()));
        let change = ChangeJson { before: Some(PlanJson::new(&before, now)), after: None };
        return Ok(say_json(&DeletedPlanJson { change, followers })?);
    }
    let mode = before.mode.as_ref().map(|mode| format!(", mode {}", modes::describe(mode, "of all", now)));
    let deleted = format!("plan {}: deleted; it was {limits}{}", plain(name.as_str()), mode.unwrap_or_default());
    let recreate = recreate_with_mode(&before, &limits, now);
    let left = planless.and_then(|planless| planless.of_deleted(name.as_str(), &recreate));
    Ok(say(std::iter::once(deleted).chain(left).collect::<Vec<_>>().join("\n"))?)
}

/// The commands that make a deleted plan again, with its mode until the same end.
fn recreate_with_mode(before: &Plan, limits: &Limits, now: DateTime<Utc>) -> String {
    let plan = recreate_command(before.name.as_str(), &limits.to_string());
    let Some(ModeSetting { mode, reason, until, .. }) =
        before.mode.as_ref().filter(|mode| !modes::has_ended(mode, now))
    else {
        return plan;
    };
    let rest = until.map(|until| Duration::from_secs((until - now).num_seconds().unsigned_abs().max(1)));
    let options = [
        Some(format!("--plan={}", quoted(before.name.as_str()))),
        rest.map(|rest| format!("--for={}", quoted(&times::exact(rest)))),
        reason.as_ref().filter(|reason| !reason.is_empty()).map(|reason| format!("--reason={}", quoted(reason))),
    ];
    let options: Vec<_> = options.into_iter().flatten().collect();
    format!("{plan} && tollgate mode {mode} {}", options.join(" "))
}

async fn list<DB: Migrate + Examine>(store: &SqlStore<DB>, json: bool) -> anyhow::Result<()> {
    let now = clock::now(store.pool()).await?;
    let plans = all(store).await?;
    if json {
        say_json(&plans.iter().map(|plan| PlanJson::new(plan, now)).collect::<Vec<_>>())?;
    } else if plans.is_empty() {
        say("no plans; make one: tollgate plan set free --quota '10/s burst 20'")?;
    } else {
        let mut table = Table::new(["plan", "limit", "mode"].map(Column::Left)).shortens(&["mode"]);
        for plan in &plans {
            let mode = plan.mode.as_ref().map_or_else(String::new, |mode| modes::describe(mode, MODE_OF_ALL, now));
            let named = plan.limit.iter().fold(NamedLimit::from(plan.quota), |one, name| one.name(name.clone()));
            let limit = plan.cost.iter().fold(named, |one, cost| one.cost(cost.clone()));
            let name = plan.name.without_limit();
            table.row([Cell::from(name.as_str()), Cell::from(limit.to_string()), Cell::from(mode)]);
        }
        say(table.fitted())?;
    }
    Ok(())
}

/// Every plan.
pub(crate) async fn all(store: &impl Admin) -> anyhow::Result<Vec<Plan>> {
    read_all(async |last: Option<&Plan>| store.plans(last.map(|plan| &plan.name), PAGE).await).await
}

/// A plan.
#[derive(Serialize, JsonSchema)]
pub(crate) struct PlanJson {
    /// The name that requests give.
    name: String,
    /// The name of the limit. Null: the only limit, or the first one of a plan has no name.
    limit: Option<String>,
    /// The name of the cost that the limit counts. Null: the tokens of the request.
    cost: Option<String>,
    /// The capacity of the buckets that follow the plan.
    capacity: u64,
    /// The quota as text.
    quota: String,
    #[serde(flatten)]
    setting: SettingJson,
}

/// A deleted plan.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DeletedPlanJson {
    #[serde(flatten)]
    change: ChangeJson<PlanJson>,
    /// The number of buckets that followed the plan. Null: not all could be counted.
    followers: Option<u64>,
}

impl PlanJson {
    fn new(plan: &Plan, now: DateTime<Utc>) -> Self {
        Self {
            name: plan.name.without_limit().to_string(),
            limit: plan.limit.as_ref().map(LimitName::to_string),
            cost: plan.cost.as_ref().map(LimitName::to_string),
            capacity: plan.quota.capacity(),
            quota: plan.quota.to_string(),
            setting: SettingJson::new(plan.mode.as_ref(), now),
        }
    }
}

/// Describes the mode of a plan without its own.
pub(crate) const MODE_OF_ALL: &str = "that of all";
