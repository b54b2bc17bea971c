use std::process::ExitCode;
use std::time::Duration;

use chrono::{DateTime, Utc};
use clap::ValueEnum;
use tollgate::{Admin, Key, Mode};

use crate::output::{plain, say};
use crate::terms::{key, reason};
use crate::{overrides, plan, times};

/// Enforce, shadow, switch off or block: everything, a plan or a key
///
/// The nearest to the key rules, from the next request on, in every process. Without a mode it shows what is set.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n\
\x20 tollgate mode                                    # what is set\n\
\x20 tollgate mode shadow --for 2h --reason 'incident 42'\n\
\x20 tollgate mode block --key user:42 --reason abuse\n\
\x20 tollgate mode --clear --key user:42")]
pub(crate) struct Args {
    #[arg(value_enum)]
    mode: Option<Choice>,
    /// Of this plan only
    #[arg(long, value_name = "NAME", value_parser = key, conflicts_with = "key")]
    plan: Option<Key>,
    /// Of this key only
    #[arg(long, value_name = "KEY", value_parser = key)]
    key: Option<Key>,
    /// Why, for whoever meets it later
    #[arg(long, requires = "mode", value_parser = reason)]
    reason: Option<String>,
    /// How long it holds [default: until another is set]
    #[arg(long = "for", value_name = "SPAN", value_parser = times::parse, requires = "mode")]
    lasting: Option<Duration>,
    /// Back to what would rule otherwise
    #[arg(long, conflicts_with_all = ["mode", "reason", "lasting"])]
    clear: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Choice {
    /// The tokens decide
    Enforce,
    /// Tokens are taken, and requests that find none pass all the same
    Shadow,
    /// Every request passes, and no bucket is touched
    Off,
    /// Every request is denied
    Block,
}

impl Args {
    pub(crate) async fn run(self, store: &impl Admin) -> anyhow::Result<ExitCode> {
        let change = Change {
            mode: self.mode.map(Mode::from),
            reason: self.reason,
            until: self.lasting.map(times::after).transpose()?,
        };
        let only_shows = change.mode.is_none() && !self.clear;
        match (&self.plan, &self.key) {
            (Some(name), _) if only_shows => show_plan(store, name).await?,
            (Some(name), _) => change.of_plan(store, name).await?,
            (None, Some(key)) if only_shows => show_key(store, key).await?,
            (None, Some(key)) => change.of_key(store, key).await?,
            (None, None) if only_shows => show(store).await?,
            (None, None) => change.of_all(store).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What to set; without a mode, what was set is taken away.
struct Change {
    mode: Option<Mode>,
    reason: Option<String>,
    until: Option<DateTime<Utc>>,
}

impl Change {
    async fn of_all(self, store: &impl Admin) -> anyhow::Result<()> {
        store.set_mode(self.mode.unwrap_or(Mode::Enforce), self.reason.as_deref(), self.until).await?;
        say(format!("all: {}", times::switch(&store.mode().await?)))?;
        Ok(())
    }

    async fn of_plan(self, store: &impl Admin, name: &Key) -> anyhow::Result<()> {
        if !store.set_plan_mode(name, self.mode, self.reason.as_deref(), self.until).await? {
            return Err(plan::unknown(name).into());
        }
        show_plan(store, name).await
    }

    /// In the key's override, whose terms stay.
    async fn of_key(self, store: &impl Admin, key: &Key) -> anyhow::Result<()> {
        let why = store.explain(key, None).await?;
        let until = if self.mode.is_none() { why.override_until } else { self.until };
        let reason = self.reason.or_else(|| why.override_reason.clone()).unwrap_or_default();
        say(overrides::replace(store, key, (overrides::quota(&why), self.mode), reason, until).await?)?;
        Ok(())
    }
}

async fn show(store: &impl Admin) -> anyhow::Result<()> {
    say(format!("all: {}", times::switch(&store.mode().await?)))?;
    for plan in plan::all(store).await? {
        if let Some(switch) = &plan.switch {
            say(format!("plan {}: {}", plain(plan.name.as_str()), times::switch(switch)))?;
        }
    }
    Ok(())
}

async fn show_plan(store: &impl Admin, name: &Key) -> anyhow::Result<()> {
    let plan = store.plan(name).await?.ok_or_else(|| plan::unknown(name))?;
    let mode = plan.switch.as_ref().map_or_else(|| "that of all".to_owned(), times::switch);
    say(format!("plan {}: {mode}", plain(name.as_str())))?;
    Ok(())
}

async fn show_key(store: &impl Admin, key: &Key) -> anyhow::Result<()> {
    let why = store.explain(key, None).await?;
    say(format!("{}: {}{}", plain(key.as_str()), why.mode, times::ending(why.mode_until)))?;
    Ok(())
}

impl From<Choice> for Mode {
    fn from(choice: Choice) -> Self {
        match choice {
            Choice::Enforce => Self::Enforce,
            Choice::Shadow => Self::Shadow,
            Choice::Off => Self::Off,
            Choice::Block => Self::Block,
        }
    }
}
