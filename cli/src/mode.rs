use std::process::ExitCode;
use std::time::Duration;

use chrono::{DateTime, Utc};
use clap::ValueEnum;
use serde_json::{Value, json};
use tollgate::{
    Admin, Key, Mode, SqlStore,
    admin::{ModeSetting, Plan},
    store::Migrate,
};

use crate::doctor::Examine;
use crate::output::{plain, say, say_json};
use crate::pages::readable;
use crate::quota_args::{key, reason};
use crate::{clock, overrides, plan, times};

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
    mode: Option<ModeArg>,
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
    /// Print what is set as a JSON array
    #[arg(long, conflicts_with_all = ["mode", "clear", "reason", "lasting"])]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeArg {
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
    pub(crate) fn only_shows(&self) -> bool {
        self.mode.is_none() && !self.clear
    }

    pub(crate) async fn run<DB: Migrate + Examine>(self, store: &SqlStore<DB>) -> anyhow::Result<ExitCode> {
        let only_shows = self.only_shows();
        let now = clock::now(store.pool()).await?;
        let change = ModeChange {
            mode: self.mode.map(Mode::from),
            reason: self.reason,
            until: clock::end(self.lasting, now)?,
            now,
        };
        match (&self.plan, &self.key) {
            _ if only_shows => {
                let set = ModeReport::find(store, self.plan, self.key).await?;
                if self.json {
                    say_json(&Value::Array(set.iter().map(|set| set.as_json(now)).collect()))?;
                } else {
                    set.iter().try_for_each(|set| say(set.words(now)))?;
                }
            }
            (Some(name), _) => change.of_plan(store, name).await?,
            (None, Some(key)) => change.of_key(store, key).await?,
            (None, None) => change.of_all(store).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What to set; without a mode, what was set is taken away.
struct ModeChange {
    mode: Option<Mode>,
    reason: Option<String>,
    until: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
}

impl ModeChange {
    async fn of_all(self, store: &impl Admin) -> anyhow::Result<()> {
        let before = readable(store.mode().await)?.map(|switch| ModeReport::new(None, Some(switch)));
        let mode = self.mode.unwrap_or(Mode::Enforce);
        store.set_mode(mode, self.reason.as_deref(), self.until).await?;
        self.report(before, &ModeReport::new(None, Some(self.switch(mode))))
    }

    async fn of_plan(self, store: &impl Admin, name: &Key) -> anyhow::Result<()> {
        let before = readable(store.plan(name).await)?;
        let before = before.map(|plan| plan.ok_or_else(|| plan::unknown(name))).transpose()?.map(ModeReport::from);
        if !store.set_plan_mode(name, self.mode, self.reason.as_deref(), self.until).await? {
            return Err(plan::unknown(name).into());
        }
        self.report(before, &ModeReport::new(Some(name.clone()), self.mode.map(|mode| self.switch(mode))))
    }

    /// In the key's override, whose terms stay.
    async fn of_key(self, store: &impl Admin, key: &Key) -> anyhow::Result<()> {
        let was = overrides::in_force(store, key, self.now).await?;
        if self.mode.is_none() && was.mode.is_none() && was.quota.is_some() {
            return Err(overrides::lacks(key, "mode").into());
        }
        let until = if self.mode.is_none() { was.expires_at } else { self.until };
        let reason = self.reason.unwrap_or_else(|| was.reason.clone());
        say(overrides::replace(store, key, (&was, self.now), (was.quota, self.mode), reason, until).await?)?;
        Ok(())
    }

    fn switch(&self, mode: Mode) -> ModeSetting {
        let mut switch = ModeSetting::default();
        (switch.mode, switch.reason, switch.until) = (mode, self.reason.clone(), self.until);
        switch
    }

    /// Prints what is set now and what was set before.
    fn report(&self, before: Option<ModeReport>, set: &ModeReport) -> anyhow::Result<()> {
        let before = before
            .map_or_else(|| "; the previous mode cannot be read".to_owned(), |before| before.previous_value(self.now));
        Ok(say(set.words(self.now) + &before)?)
    }
}

/// What is set somewhere: for a key, what rules it.
struct ModeReport {
    kind: &'static str,
    name: Option<Key>,
    /// `None`: what is set for all rules here too.
    switch: Option<ModeSetting>,
}

impl ModeReport {
    /// What is set for this plan or key; without one, everything but overrides.
    async fn find(store: &impl Admin, plan: Option<Key>, key: Option<Key>) -> anyhow::Result<Vec<Self>> {
        Ok(match (plan, key) {
            (Some(name), _) => vec![Self::of_plan(store, &name).await?],
            (None, Some(key)) => vec![Self::of_key(store, key).await?],
            (None, None) => {
                let plans = plan::all(store).await?.into_iter().filter(|plan| plan.switch.is_some());
                std::iter::once(Self::of_all(store).await?).chain(plans.map(Self::from)).collect()
            }
        })
    }

    /// Of a plan, or of everything.
    fn new(plan: Option<Key>, switch: Option<ModeSetting>) -> Self {
        Self { kind: if plan.is_some() { "plan" } else { "all" }, name: plan, switch }
    }

    async fn of_all(store: &impl Admin) -> anyhow::Result<Self> {
        Ok(Self::new(None, Some(store.mode().await?)))
    }

    async fn of_plan(store: &impl Admin, name: &Key) -> anyhow::Result<Self> {
        Ok(store.plan(name).await?.ok_or_else(|| plan::unknown(name))?.into())
    }

    async fn of_key(store: &impl Admin, key: Key) -> anyhow::Result<Self> {
        let why = store.explain(&key, None).await?;
        let mut switch = ModeSetting::default();
        (switch.mode, switch.reason, switch.until) = (why.mode, why.mode_reason, why.mode_until);
        Ok(Self { kind: "key", name: Some(key), switch: Some(switch) })
    }

    fn words(&self, now: DateTime<Utc>) -> String {
        let name = self.name.as_ref().map_or_else(|| self.kind.to_owned(), |name| plain(name.as_str()));
        let (kind, otherwise) = if self.kind == "plan" { ("plan ", plan::MODE_OF_ALL) } else { ("", "enforce") };
        let switch = self.switch.as_ref();
        let mode = switch.map_or_else(|| otherwise.to_owned(), |switch| times::switch(switch, otherwise, now));
        format!("{kind}{name}: {mode}")
    }

    /// What was there before it was replaced, and is nowhere else then, if it held.
    fn previous_value(&self, now: DateTime<Utc>) -> String {
        let is_said = |switch: &&ModeSetting| {
            let is_usual = self.name.is_none() && switch.mode == Mode::Enforce && switch.reason.is_none();
            !times::is_over(switch, now) && !is_usual
        };
        let held = self.switch.as_ref().filter(is_said);
        held.map_or_else(String::new, |switch| format!("; it was {}", times::switch(switch, "", now)))
    }

    fn as_json(&self, now: DateTime<Utc>) -> Value {
        let switch = self.switch.as_ref();
        json!({
            "kind": self.kind,
            "name": self.name.as_ref().map(Key::as_str),
            "mode": switch.map(|switch| switch.mode.as_str()),
            "mode_reason": switch.and_then(|switch| switch.reason.as_deref()),
            "mode_until": times::timestamp(switch.and_then(|switch| switch.until)),
            "mode_ended": switch.is_some_and(|switch| times::is_over(switch, now)),
        })
    }
}

impl From<Plan> for ModeReport {
    fn from(plan: Plan) -> Self {
        Self::new(Some(plan.name), plan.switch)
    }
}

impl From<ModeArg> for Mode {
    fn from(choice: ModeArg) -> Self {
        match choice {
            ModeArg::Enforce => Self::Enforce,
            ModeArg::Shadow => Self::Shadow,
            ModeArg::Off => Self::Off,
            ModeArg::Block => Self::Block,
        }
    }
}
