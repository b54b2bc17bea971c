//! An entry beside the database: its values before and after.

use std::fmt;

use anstyle::Style;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use tollgate::{
    Admin, Key, Mode,
    admin::{ModeSetting, Origin, Override},
    model::Limits,
};

use super::file::{BucketEntry, Entry, OverrideEntry, PlanEntry};
use crate::exit::CliError;
use crate::modes::ModeArg;
use crate::paging::readable;
use crate::text::{GREEN, YELLOW, plain};
use crate::{levels, modes, overrides, plan, times};

/// The effect of an entry on the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// The entry is new.
    Created,
    /// Values of the entry differ.
    Changed,
    /// The database has these values already.
    Unchanged,
    /// The bucket gets the limits of the file. Its previous ones are unknown, because an override hides them.
    Set,
    /// The end of the override is past, so it is not applied.
    Expired,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "EntryKind")]
enum Kind {
    Plan,
    Bucket,
    Override,
}

/// The values of a plan, a bucket or an override.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Values {
    /// Of a bucket or an override, one.
    limits: Option<Limits>,
    mode: Option<Mode>,
    reason: Option<String>,
    until: Option<DateTime<Utc>>,
    /// Where a bucket that was not provisioned has its limits from: `first use`, or a plan.
    from: Option<String>,
}

/// An entry with its values before and after.
#[derive(Debug)]
pub(super) struct Change {
    kind: Kind,
    name: Key,
    pub(super) status: Status,
    before: Option<Values>,
    after: Values,
}

impl Status {
    pub(super) const ALL: [Self; 5] = [Self::Created, Self::Changed, Self::Unchanged, Self::Set, Self::Expired];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
            Self::Set => "set",
            Self::Expired => "expired",
        }
    }

    /// The word in a dry run.
    pub(super) fn planned(self) -> &'static str {
        match self {
            Self::Created => "create",
            Self::Changed => "change",
            other => other.name(),
        }
    }

    pub(super) fn writes(self) -> bool {
        matches!(self, Self::Created | Self::Changed | Self::Set)
    }

    /// Whether a summary omits a count of 0.
    pub(super) fn is_rare(self) -> bool {
        matches!(self, Self::Set | Self::Expired)
    }

    fn style(self) -> Style {
        match self {
            Self::Created => GREEN,
            Self::Changed | Self::Set => YELLOW,
            Self::Unchanged | Self::Expired => Style::new(),
        }
    }
}

impl Change {
    /// Compares an entry with the database.
    pub(super) async fn find(store: &impl Admin, entry: &Entry, now: DateTime<Utc>) -> anyhow::Result<Self> {
        match entry {
            Entry::Plan(name, entry) => Self::of_plan(store, name, entry, now).await,
            Entry::Bucket(key, entry) => Self::of_bucket(store, key, entry).await,
            Entry::Override(key, entry) => Self::of_override(store, key, entry, now).await,
        }
    }

    async fn of_plan(store: &impl Admin, name: &Key, entry: &PlanEntry, now: DateTime<Utc>) -> anyhow::Result<Self> {
        let limits = plan::limits(store, name).await;
        let before =
            readable(store.plan(name).await)?.flatten().zip(readable(limits)?.flatten()).map(|(plan, limits)| {
                let values = Values { limits: Some(limits.clone()), ..Values::default() };
                match plan.mode.filter(|mode| !modes::has_ended(mode, now)) {
                    Some(ModeSetting { mode, reason, until, .. }) => {
                        Values { mode: Some(mode), reason: reason.filter(|reason| !reason.is_empty()), until, ..values }
                    }
                    None => values,
                }
            });
        let after = match entry.mode {
            // A mode of the file has no end.
            mode @ Some(_) => Values { mode, ..Values::default() },
            None => before.clone().unwrap_or_default(),
        };
        let after = Values { limits: Some(entry.quota.clone()), ..after };
        Ok(Self::new(Kind::Plan, name, before, after))
    }

    async fn of_bucket(store: &impl Admin, key: &Key, entry: &BucketEntry) -> anyhow::Result<Self> {
        let after = Values { limits: Some(entry.quota.into()), ..Values::default() };
        let Some(level) = readable(store.peek(key).await)?.flatten() else {
            return Ok(Self::new(Kind::Bucket, key, None, after));
        };
        let explanation = store.explain(key, None).await?;
        // The level shows the limits of the last request, which are an override's even after its end.
        let own = match explanation.quota_from {
            Some(Origin::Bucket) => explanation.quota,
            _ => Some(level.quota()).filter(|_| !level.is_overridden() && level.plan().is_none()),
        };
        let from = (level.plan().is_some() || !level.is_provisioned()).then(|| levels::origin(&level));
        let is_hidden = own.is_none() && from.is_none();
        let change = Self::new(
            Kind::Bucket,
            key,
            Some(Values { limits: own.map(Limits::from), from, ..Values::default() }),
            after,
        );
        Ok(if is_hidden { Self { status: Status::Set, ..change } } else { change })
    }

    async fn of_override(
        store: &impl Admin,
        key: &Key,
        entry: &OverrideEntry,
        now: DateTime<Utc>,
    ) -> anyhow::Result<Self> {
        let current = overrides::effective(store, key, now).await?;
        let before = (current.quota.is_some() || current.mode.is_some()).then(|| Values {
            limits: current.quota.map(Limits::from),
            mode: current.mode,
            reason: Some(current.reason).filter(|reason| !reason.is_empty()),
            until: current.expires_at,
            from: None,
        });
        let kept = before.clone().unwrap_or_default();
        let after = Values {
            limits: entry.quota.map(Limits::from).or(kept.limits),
            mode: entry.mode.or(kept.mode),
            reason: entry.reason.clone().or(kept.reason).filter(|reason| !reason.is_empty()),
            until: entry.until.or(kept.until),
            from: None,
        };
        // The library compares ends with this host's clock.
        let is_over = entry.until.is_some_and(|end| end <= now.max(Utc::now()));
        if is_over {
            let OverrideEntry { quota, mode, reason, until } = entry;
            let limits = quota.map(Limits::from);
            let after = Values { limits, mode: *mode, reason: reason.clone(), until: *until, from: None };
            return Ok(Self { status: Status::Expired, ..Self::new(Kind::Override, key, before, after) });
        }
        Ok(Self::new(Kind::Override, key, before, after))
    }

    fn new(kind: Kind, name: &Key, before: Option<Values>, after: Values) -> Self {
        let status = match &before {
            None => Status::Created,
            Some(before) if *before == after => Status::Unchanged,
            Some(_) => Status::Changed,
        };
        Self { kind, name: name.clone(), status, before, after }
    }

    /// Compares an entry with the database once more, because another command may have changed it since, and writes the values that
    /// differ.
    pub(super) async fn apply(store: &impl Admin, entry: &Entry, now: DateTime<Utc>) -> anyhow::Result<Self> {
        let change = Self::find(store, entry, now).await?;
        change.write(store).await?;
        Ok(change)
    }

    /// Writes the values that differ. A plan's limits and mode are two transactions.
    async fn write(&self, store: &impl Admin) -> anyhow::Result<()> {
        if !self.status.writes() {
            return Ok(());
        }
        let before = self.before.clone().unwrap_or_default();
        match (self.kind, self.after.limits.clone()) {
            (Kind::Override, limits) => {
                let quota = limits.map(|limits| limits.first().quota());
                let Values { mode, reason, until, .. } = self.after.clone();
                let over = Override { quota, mode, reason: reason.unwrap_or_default(), expires_at: until };
                store.set_override(&self.name, over).await?;
            }
            (Kind::Bucket, Some(limits)) => store.create_bucket(&self.name, limits.first().quota()).await?,
            (Kind::Plan, Some(limits)) => {
                if before.limits.as_ref() != Some(&limits) {
                    store.create_plan(&self.name, limits).await?;
                }
                let mode = |values: &Values| (values.mode, values.until, values.reason.clone());
                if mode(&before) != mode(&self.after)
                    && !store.set_plan_mode(&self.name, self.after.mode, None, None).await?
                {
                    return Err(CliError::unknown_plan(&self.name).into());
                }
            }
            (Kind::Bucket | Kind::Plan, None) => unreachable!("buckets and plans have quotas"),
        }
        Ok(())
    }

    /// Whether the entry provisions a bucket that was made by a first use or follows a plan.
    pub(super) fn provisions(&self) -> bool {
        self.before.as_ref().is_some_and(|before| before.from.is_some())
    }

    /// `changed    plan free: 10/s → 20/s`.
    pub(super) fn line(&self, dry_run: bool) -> String {
        let name = if dry_run { self.status.planned() } else { self.status.name() };
        let style = self.status.style();
        let text = match (self.status, &self.before) {
            (Status::Changed, Some(before)) if before.to_string() == self.after.to_string() => {
                format!("{before:#} → {:#}", self.after)
            }
            (Status::Changed, Some(before)) => format!("{before} → {}", self.after),
            (Status::Set, _) => format!("{}; an override hides its previous limit", self.after),
            (Status::Expired, Some(before)) => format!("{}; the override in the database stays: {before}", self.after),
            _ => self.after.to_string(),
        };
        format!("{style}{name:<9}{style:#}  {self}: {text}")
    }

    pub(super) fn json(&self, dry_run: bool) -> EntryJson<'_> {
        let status = if dry_run { self.status.planned() } else { self.status.name() };
        let before = self.before.as_ref().map(Values::json);
        EntryJson { kind: self.kind, name: self.name.as_str(), status, before, after: self.after.json() }
    }
}

/// `plan free`.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), plain(self.name.as_str()))
    }
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Bucket => "bucket",
            Self::Override => "override",
        }
    }
}

/// An entry of the file.
#[derive(Serialize, JsonSchema)]
pub(super) struct EntryJson<'a> {
    /// The kind of the entry.
    kind: Kind,
    /// The name of the plan, or the key.
    name: &'a str,
    /// The effect of the entry. `set`: the bucket gets the limits of the file; its previous ones are unknown, because an override
    /// hides them. `expired`: the end of the override is past, so it is not applied. In a dry run, `create` and `change`.
    #[schemars(extend("enum" = ["created", "changed", "unchanged", "set", "expired", "create", "change"]))]
    status: &'static str,
    /// The values before. Null: the entry is new.
    before: Option<ValuesJson<'a>>,
    /// The values after. Of an expired override, those of the file.
    after: ValuesJson<'a>,
}

/// The values of an entry.
#[derive(Serialize, JsonSchema)]
struct ValuesJson<'a> {
    /// The quota as text. Null: none, or an override hides it.
    quota: Option<String>,
    /// The mode. Null: none.
    #[schemars(with = "Option<ModeArg>")]
    mode: Option<&'static str>,
    /// Why the mode or the override is set.
    reason: Option<&'a str>,
    /// When the mode or the override ends. Null: never.
    #[schemars(extend("format" = "date-time"))]
    until: Option<String>,
    /// The source of the limits of a bucket that was not provisioned: `first use`, or its plan.
    from: Option<&'a str>,
}

impl Values {
    fn json(&self) -> ValuesJson<'_> {
        ValuesJson {
            quota: self.limits.as_ref().map(Limits::to_string),
            mode: self.mode.map(Mode::as_str),
            reason: self.reason.as_deref(),
            until: times::timestamp(self.until),
            from: self.from.as_deref(),
        }
    }
}

/// `1000/s, mode block, until 2027-01-31 12:00:00 UTC: ticket 7`. The alternate form shows microseconds.
impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.limits.as_ref().map(Limits::to_string),
            self.mode.map(|mode| format!("mode {mode}")),
            self.from.as_ref().map(|from| format!("from {}", plain(from))),
            self.until.map(|until| {
                let exact = || until.format("%F %T%.6f UTC").to_string();
                format!("until {}", if f.alternate() { exact() } else { times::instant(until) })
            }),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))?;
        self.reason.as_ref().map_or(Ok(()), |reason| write!(f, ": {}", plain(reason)))
    }
}
