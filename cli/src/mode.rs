use std::process::ExitCode;
use std::time::Duration;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use tollgate::{
    Admin, Key, Mode, SqlStore,
    admin::{ModeSetting, Origin, Override, Plan},
    model::LimitName,
    store::Migrate,
};

use crate::doctor::Examine;
use crate::exit::CliError;
use crate::modes::{ModeArg, SettingJson};
use crate::output::{ChangeJson, say, say_change, say_json};
use crate::overrides::OverrideJson;
use crate::paging::readable;
use crate::quota_args::{key, limit_name, reason};
use crate::text::plain;
use crate::{clock, limit_option, modes, overrides, plan, times};

/// Enforce, shadow, switch off or block: a key, a plan or all keys
///
/// Takes effect with the next request, in every process. A key's mode precedes its plan's, and a plan's mode precedes the global
/// one. Without a mode, prints the modes that are set.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n\
\x20 tollgate mode                                    # prints the modes\n\
\x20 tollgate mode shadow --all --for 2h --reason 'incident 42'\n\
\x20 tollgate mode block --key user:42 --reason abuse\n\
\x20 tollgate mode --clear --key user:42")]
pub(crate) struct Args {
    #[arg(value_enum)]
    mode: Option<ModeArg>,
    /// Changes or prints the mode of this plan
    #[arg(long, value_name = "NAME", value_parser = key, conflicts_with = "key")]
    plan: Option<Key>,
    /// Changes or prints the mode of this key
    #[arg(long, value_name = "KEY", value_parser = key)]
    key: Option<Key>,
    /// One further limit of the plan, or of the key's plan [default: all limits of the plan, or the first limit of the key]
    #[arg(long, value_name = "NAME", value_parser = limit_name, conflicts_with = "all")]
    limit: Option<LimitName>,
    /// Changes or prints the global mode, which applies to every key without a mode of its own or its plan's
    #[arg(long, conflicts_with_all = ["plan", "key"])]
    all: bool,
    /// Why the mode is set, for later readers
    #[arg(long, requires = "mode", value_parser = reason)]
    reason: Option<String>,
    /// How long the mode holds [default: until another is set; with --key: the previous end of the key's override]
    #[arg(long = "for", value_name = "SPAN", value_parser = times::parse, requires = "mode")]
    duration: Option<Duration>,
    /// Removes the mode, so that the next one in order applies
    #[arg(long, conflicts_with_all = ["mode", "reason", "duration"])]
    clear: bool,
    /// Print the modes as a JSON array, or a change as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn is_read_only(&self) -> bool {
        self.mode.is_none() && !self.clear
    }

    /// Refuses to change the global mode without `--all`: a forgotten `--key` must not block or admit every request.
    pub(crate) fn check_target(&self) -> Result<(), CliError> {
        if self.is_read_only() || self.all || self.plan.is_some() || self.key.is_some() {
            return Ok(());
        }
        let change = self.mode.map_or("--clear", |mode| Mode::from(mode).as_str());
        let hint = "add --key KEY or --plan NAME, or --all to change the mode of every key";
        Err(CliError::arguments(format!("no target for the mode: {change}"), hint))
    }

    pub(crate) async fn run<DB: Migrate + Examine>(mut self, store: &SqlStore<DB>) -> anyhow::Result<ExitCode> {
        let is_read_only = self.is_read_only();
        if let Some(plan) = self.plan.take() {
            self.plan = Some(limit_option::plan(store, plan, self.limit.as_ref()).await?);
        }
        if let Some(key) = self.key.take() {
            self.key = Some(limit_option::bucket(store, key, self.limit.as_ref()).await?);
        }
        let now = clock::now(store.pool()).await?;
        let change = ModeChange {
            mode: self.mode.map(Mode::from),
            reason: self.reason,
            until: clock::end(self.duration, now)?,
            now,
            json: self.json,
        };
        match (&self.plan, &self.key) {
            _ if is_read_only => {
                let set = ModeReport::find(store, self.all, self.plan, self.key).await?;
                if self.json {
                    say_json(&set.iter().map(|set| set.as_json(now)).collect::<Vec<_>>())?;
                } else {
                    set.iter().try_for_each(|set| say(set.describe(now)))?;
                }
            }
            (Some(name), _) => change.of_plan(store, name).await?,
            (None, Some(key)) => change.of_key(store, key).await?,
            (None, None) => change.of_all(store).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A mode to set, or no mode to remove the previous one.
struct ModeChange {
    mode: Option<Mode>,
    reason: Option<String>,
    until: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
    json: bool,
}

impl ModeChange {
    async fn of_all(self, store: &impl Admin) -> anyhow::Result<()> {
        let before = readable(store.mode().await)?.map(|setting| ModeReport::new(None, Some(setting)));
        let mode = self.mode.unwrap_or(Mode::Enforce);
        store.set_mode(mode, self.reason.as_deref(), self.until).await?;
        self.report(before, &ModeReport::new(None, Some(self.setting(mode))))
    }

    async fn of_plan(self, store: &impl Admin, name: &Key) -> anyhow::Result<()> {
        let before = readable(store.plan(name).await)?;
        let before =
            before.map(|plan| plan.ok_or_else(|| CliError::unknown_plan(name))).transpose()?.map(ModeReport::from);
        if !store.set_plan_mode(name, self.mode, self.reason.as_deref(), self.until).await? {
            return Err(CliError::unknown_plan(name).into());
        }
        self.report(before, &ModeReport::new(Some(name.clone()), self.mode.map(|mode| self.setting(mode))))
    }

    /// Changes the mode in the key's override, and keeps its limits.
    async fn of_key(self, store: &impl Admin, key: &Key) -> anyhow::Result<()> {
        let current = overrides::effective(store, key, self.now).await?;
        if self.mode.is_none() && current.mode.is_none() && current.quota.is_some() {
            return Err(overrides::missing_part(key, "mode").into());
        }
        let expires_at = self.until.or(current.expires_at);
        let reason = self.reason.unwrap_or_else(|| current.reason.clone());
        let over = Override { quota: current.quota, mode: self.mode, reason, expires_at };
        overrides::replace(store, key, (&current, self.now), over, self.json).await?;
        overrides::note_end(current.quota.map(|quota| format!("limit {quota}")), current.expires_at, expires_at);
        Ok(())
    }

    fn setting(&self, mode: Mode) -> ModeSetting {
        setting(mode, self.reason.clone(), self.until)
    }

    /// Prints what is set now and what was set before.
    fn report(&self, before: Option<ModeReport>, set: &ModeReport) -> anyhow::Result<()> {
        let change = (before.as_ref().map(|before| before.as_json(self.now)), Some(set.as_json(self.now)));
        let unreadable = || "; the previous mode cannot be read".to_owned();
        let previous = || before.map_or_else(unreadable, |before| before.previous_value(self.now));
        Ok(say_change(self.json, change, || set.describe(self.now) + &previous())?)
    }
}

pub(crate) fn setting(mode: Mode, reason: Option<String>, until: Option<DateTime<Utc>>) -> ModeSetting {
    let mut setting = ModeSetting::default();
    (setting.mode, setting.reason, setting.until) = (mode, reason, until);
    setting
}

/// A mode and its target.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ModeJson {
    /// The target of the mode.
    kind: ModeTarget,
    /// The name of the plan, or the key. Null: the mode of all.
    name: Option<String>,
    /// For `mode --key`, the source of the effective mode: `override`, `plan NAME` or `all`. Null: no mode is set, or not `--key`.
    from: Option<String>,
    /// For `mode --key`, the effective mode of the key.
    #[serde(flatten)]
    setting: SettingJson,
}

/// The modes that are set, or a change of one.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum ModeOutputJson {
    Modes(Vec<ModeJson>),
    /// With --all or --plan.
    Change(ChangeJson<ModeJson>),
    /// With --key.
    OfKey(ChangeJson<OverrideJson>),
}

#[derive(Clone, Copy, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ModeTarget {
    /// Every key.
    All,
    /// The buckets that follow a plan.
    Plan,
    /// One key.
    Key,
}

/// The mode of a plan, of a key or of everything.
struct ModeReport {
    kind: ModeTarget,
    name: Option<Key>,
    /// `None`: the plan has no mode, and the global one applies.
    setting: Option<ModeSetting>,
    /// The source of a key's effective mode.
    from: Option<String>,
}

impl ModeReport {
    /// Reads the effective mode of this key, the mode of this plan or the global mode. By default, reads the global mode and
    /// those of all plans and keys.
    async fn find(store: &impl Admin, all: bool, plan: Option<Key>, key: Option<Key>) -> anyhow::Result<Vec<Self>> {
        Ok(match (plan, key) {
            (Some(name), _) => vec![Self::of_plan(store, &name).await?],
            (None, Some(key)) => vec![Self::of_key(store, key).await?],
            (None, None) if all => vec![Self::of_all(store).await?],
            (None, None) => {
                let global = Self::of_all(store).await?;
                let plans = plan::all(store).await?.into_iter().filter(|plan| plan.mode.is_some());
                let keys = overrides::all(store).await?.into_iter().filter(|(_, over)| over.mode.is_some());
                std::iter::once(global).chain(plans.map(Self::from)).chain(keys.map(Self::from)).collect()
            }
        })
    }

    /// Of a plan, or of everything.
    fn new(plan: Option<Key>, setting: Option<ModeSetting>) -> Self {
        Self { kind: if plan.is_some() { ModeTarget::Plan } else { ModeTarget::All }, name: plan, setting, from: None }
    }

    async fn of_all(store: &impl Admin) -> anyhow::Result<Self> {
        Ok(Self::new(None, Some(store.mode().await?)))
    }

    async fn of_plan(store: &impl Admin, name: &Key) -> anyhow::Result<Self> {
        Ok(store.plan(name).await?.ok_or_else(|| CliError::unknown_plan(name))?.into())
    }

    async fn of_key(store: &impl Admin, key: Key) -> anyhow::Result<Self> {
        let why = store.explain(&key, None).await?;
        let setting = setting(why.mode, why.mode_reason, why.mode_until);
        let from = why.mode_from.map(|from| match (from, why.plan) {
            (Origin::Override, _) => "override".to_owned(),
            (Origin::Plan, Some(plan)) => format!("plan {plan}"),
            _ => "all".to_owned(),
        });
        Ok(Self { kind: ModeTarget::Key, name: Some(key), setting: Some(setting), from })
    }

    fn describe(&self, now: DateTime<Utc>) -> String {
        let name = self.name.as_ref().map_or_else(String::new, |name| plain(name.as_str()));
        let (kind, otherwise) = match self.kind {
            ModeTarget::All => ("all", "enforce"),
            ModeTarget::Plan => ("plan ", plan::MODE_OF_ALL),
            ModeTarget::Key => ("key ", "that of its plan, or of all"),
        };
        let setting = self.setting.as_ref();
        let mode = setting.map_or_else(|| otherwise.to_owned(), |setting| modes::describe(setting, otherwise, now));
        // A key's own mode needs no source.
        let inherited = self.from.as_deref().filter(|from| *from != "override");
        let effective = setting.and_then(|setting| Some((setting.mode, mode.strip_prefix(setting.mode.as_str())?)));
        match (inherited, effective) {
            (Some(from), Some((mode, rest))) => format!("{kind}{name}: {mode}, from {}{rest}", plain(from)),
            _ => format!("{kind}{name}: {mode}"),
        }
    }

    /// Describes a replaced mode that was in force, which is stored nowhere else.
    fn previous_value(&self, now: DateTime<Utc>) -> String {
        let is_shown = |setting: &&ModeSetting| {
            let is_usual = self.name.is_none() && setting.mode == Mode::Enforce && setting.reason.is_none();
            !modes::has_ended(setting, now) && !is_usual
        };
        let previous = self.setting.as_ref().filter(is_shown);
        previous.map_or_else(String::new, |setting| format!("; it was {}", modes::describe(setting, "", now)))
    }

    fn as_json(&self, now: DateTime<Utc>) -> ModeJson {
        let name = self.name.as_ref().map(ToString::to_string);
        ModeJson {
            kind: self.kind,
            name,
            from: self.from.clone(),
            setting: SettingJson::new(self.setting.as_ref(), now),
        }
    }
}

impl From<Plan> for ModeReport {
    fn from(plan: Plan) -> Self {
        Self::new(Some(plan.name), plan.mode)
    }
}

impl From<(Key, Override)> for ModeReport {
    fn from((key, over): (Key, Override)) -> Self {
        let reason = Some(over.reason).filter(|reason| !reason.is_empty());
        let setting = over.mode.map(|mode| setting(mode, reason, over.expires_at));
        Self { kind: ModeTarget::Key, name: Some(key), setting, from: None }
    }
}
