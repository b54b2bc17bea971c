use std::process::ExitCode;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use tollgate::{Admin, Key, SqlStore, admin::Plan, store::Migrate};

use crate::doctor::{Examine, Planless};
use crate::exit::CliError;
use crate::output::{Cell, Column, Table, plain, say, say_json};
use crate::pages::{PAGE, every, readable};
use crate::quota_args::{QuotaArgs, key, reason};
use crate::{clock, overrides, times};

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List the plans
    List {
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Make a plan, or change its terms: for all of its buckets, with their next request
    Set {
        #[arg(value_parser = key)]
        name: Key,
        #[command(flatten)]
        terms: QuotaArgs,
    },
    /// Forget a plan; requests that name it fail from then on
    Delete {
        #[arg(value_parser = key)]
        name: Key,
    },
    /// Give one key other terms than its plan's or its own, or take them away again
    Override(Override),
    /// List the keys that have terms or a mode of their own by an override
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
    #[command(flatten)]
    terms: QuotaArgs,
    /// Why, for whoever meets it later [default: what it was]
    #[arg(long, value_parser = reason)]
    reason: Option<String>,
    /// How long it holds [default: until it is cleared]
    #[arg(long = "for", value_name = "SPAN", value_parser = times::parse)]
    lasting: Option<Duration>,
    /// Take the terms away; a mode of the key's own stays
    #[arg(long, conflicts_with_all = ["capacity", "per", "quota", "reason", "lasting"])]
    clear: bool,
}

impl Command {
    pub(crate) fn only_shows(&self) -> bool {
        matches!(self, Self::List { .. } | Self::Overrides { .. })
    }

    pub(crate) async fn run<DB: Migrate + Examine>(self, store: &SqlStore<DB>) -> anyhow::Result<ExitCode> {
        match self {
            Self::List { json } => list(store, json).await?,
            Self::Set { name, terms } => {
                let quota = terms.required()?;
                let was = readable(store.plan(&name).await)?.flatten();
                store.create_plan(&name, quota).await?;
                let was = was.map_or_else(String::new, |was| format!("; it was {}", was.quota));
                say(format!("plan {}: {quota}{was}", plain(name.as_str())))?;
            }
            Self::Delete { name } => {
                delete(store, &name).await?;
            }
            Self::Override(change) => change.run(store).await?,
            Self::Overrides { json } => overrides::list(store, clock::now(store.pool()).await?, json).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Override {
    async fn run<DB: Migrate + Examine>(self, store: &SqlStore<DB>) -> anyhow::Result<()> {
        let quota = if self.clear { None } else { Some(self.terms.required()?) };
        let now = clock::now(store.pool()).await?;
        let was = overrides::in_force(store, &self.key, now).await?;
        if self.clear && was.quota.is_none() && was.mode.is_some() {
            return Err(overrides::lacks(&self.key, "terms").into());
        }
        let reason = self.reason.unwrap_or_else(|| was.reason.clone());
        let end = if self.clear { was.expires_at } else { clock::end(self.lasting, now)? };
        say(overrides::replace(store, &self.key, (&was, now), (quota, was.mode), reason, end).await?)?;
        Ok(())
    }
}

/// Says what is lost with a plan, and whose requests fail without it.
async fn delete<DB: Migrate + Examine>(store: &SqlStore<DB>, name: &Key) -> anyhow::Result<()> {
    let was = store.plan(name).await?.ok_or_else(|| unknown(name))?;
    if !store.delete_plan(name).await? {
        return Err(unknown(name).into());
    }
    let quota = was.quota.to_string();
    say(format!("plan {}: deleted; it was {quota}", plain(name.as_str())))?;
    // It is done, whether or not this role may count, or is answered in time.
    let planless = Planless::find(store.pool()).await.ok();
    if let Some(left) = planless.and_then(|planless| planless.of_deleted(name.as_str(), &quota)) {
        say(left)?;
    }
    Ok(())
}

async fn list<DB: Migrate + Examine>(store: &SqlStore<DB>, json: bool) -> anyhow::Result<()> {
    let now = clock::now(store.pool()).await?;
    let plans = all(store).await?;
    if json {
        say_json(&Value::Array(plans.iter().map(|plan| as_json(plan, now)).collect()))?;
    } else if plans.is_empty() {
        say("no plans; make one: tollgate plan set free --quota '10/s burst 20'")?;
    } else {
        let mut table = Table::new([Column::Left("plan"), Column::Left("terms"), Column::Left("mode")]);
        for plan in &plans {
            let switch = plan.switch.as_ref();
            let mode = switch.map_or_else(String::new, |switch| times::switch(switch, MODE_OF_ALL, now));
            table.row([Cell::from(plan.name.as_str()), Cell::from(plan.quota.to_string()), Cell::from(mode)]);
        }
        say(table.render())?;
    }
    Ok(())
}

/// Every plan.
pub(crate) async fn all(store: &impl Admin) -> anyhow::Result<Vec<Plan>> {
    every(async |last: Option<&Plan>| store.plans(last.map(|plan| &plan.name), PAGE).await).await
}

pub(crate) fn unknown(name: &Key) -> CliError {
    let hint = "`tollgate plan list` shows those that there are, `tollgate plan set NAME --quota 10/s` makes one";
    CliError::absent(format!("there is no plan '{}'", plain(name.as_str())), hint)
}

fn as_json(plan: &Plan, now: DateTime<Utc>) -> Value {
    let switch = plan.switch.as_ref();
    json!({
        "name": plan.name.as_str(),
        "capacity": plan.quota.capacity(),
        "quota": plan.quota.to_string(),
        "mode": switch.map(|switch| switch.mode.as_str()),
        "mode_reason": switch.and_then(|switch| switch.reason.as_deref()),
        "mode_until": times::timestamp(switch.and_then(|switch| switch.until)),
        "mode_ended": switch.is_some_and(|switch| times::is_over(switch, now)),
    })
}

/// What holds for a plan without a mode.
pub(crate) const MODE_OF_ALL: &str = "that of all";
