use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use tollgate::{Admin, Key, Mode};

use crate::output::{plain, say};
use crate::terms::key;
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
    #[arg(long, requires = "mode")]
    reason: Option<String>,
    /// How long it holds [default: until another is set]
    #[arg(long = "for", value_name = "SPAN", value_parser = times::parse, requires = "mode")]
    lasting: Option<Duration>,
    /// Back to what would rule otherwise
    #[arg(long, conflicts_with = "mode")]
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
        let mode = self.mode.map(Mode::from);
        let until = self.lasting.map(times::after).transpose()?;
        match (&self.key, &self.plan) {
            (None, None) if mode.is_none() && !self.clear => show(store).await?,
            (None, None) => {
                store.set_mode(mode.unwrap_or(Mode::Enforce), self.reason.as_deref(), until).await?;
                say(format!("all: {}", times::switch(&store.mode().await?)))?;
            }
            (_, Some(name)) if mode.is_none() && !self.clear => {
                let found = store.plan(name).await?.ok_or_else(|| plan::unknown(name))?;
                let mode = found.switch.as_ref().map_or_else(|| "that of all".to_owned(), times::switch);
                say(format!("plan {}: {mode}", plain(name.as_str())))?;
            }
            (_, Some(name)) => {
                if !store.set_plan_mode(name, mode, self.reason.as_deref(), until).await? {
                    return Err(plan::unknown(name).into());
                }
                let mode = mode.map_or("that of all".to_owned(), |mode| mode.to_string());
                say(format!("plan {}: {mode}{}", plain(name.as_str()), times::ending(until)))?;
            }
            (Some(key), None) => {
                let why = store.explain(key, None).await?;
                if mode.is_none() && !self.clear {
                    say(format!("{}: {}{}", plain(key.as_str()), why.mode, times::ending(why.mode_until)))?;
                    return Ok(ExitCode::SUCCESS);
                }
                let end = if self.clear { why.override_until } else { until };
                let reason = self.reason.or_else(|| why.override_reason.clone()).unwrap_or_default();
                say(overrides::replace(store, key, (overrides::quota(&why), mode), reason, end).await?)?;
            }
        }
        Ok(ExitCode::SUCCESS)
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
