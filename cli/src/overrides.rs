//! A key's override has limits, a mode, or both. A change of one of them keeps the other.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use tollgate::{
    Admin, Key, Mode, Quota,
    admin::{Origin, Override},
};

use crate::exit::CliError;
use crate::modes::ModeArg;
use crate::output::{Cell, Column, Table, note, say, say_change, say_json};
use crate::paging::{PAGE, read_all, readable};
use crate::text::{operand, plain, quoted};
use crate::times;

/// Returns the key's override in force.
///
/// Returns an empty override if the key has none, or if its row cannot be decoded, so that a command can replace it.
pub(crate) async fn effective(store: &impl Admin, key: &Key, now: DateTime<Utc>) -> anyhow::Result<Override> {
    let Some(explanation) = readable(store.explain(key, None).await)? else {
        // The row that cannot be decoded may be another one: of the mode, the plan or the bucket.
        let mut overrides = all(store).await?.into_iter().filter(|(name, _)| name == key).map(|(_, over)| over);
        return Ok(overrides.find(|over| over.expires_at.is_none_or(|end| end > now)).unwrap_or_default());
    };
    Ok(Override {
        quota: explanation.quota.filter(|_| explanation.quota_from == Some(Origin::Override)),
        mode: (explanation.mode_from == Some(Origin::Override)).then_some(explanation.mode),
        reason: explanation.override_reason.unwrap_or_default(),
        expires_at: explanation.override_until,
    })
}

/// The error of a command that removes a part which the override lacks. The other part stays.
pub(crate) fn missing_part(key: &Key, part: &str) -> CliError {
    let message = format!("the override of '{}' has no {part}", plain(key.as_str()));
    CliError::absent(message, format!("`tollgate explain {}` shows its effective limit", operand(key.as_str())))
}

/// Replaces a key's override, or removes it if the new one has neither limits nor mode. Prints both, because the previous one is
/// stored nowhere else.
pub(crate) async fn replace(
    store: &impl Admin,
    key: &Key,
    (before, now): (&Override, DateTime<Utc>),
    over: Override,
    json: bool,
) -> anyhow::Result<()> {
    let name = plain(key.as_str());
    let is_set = |over: &Override| over.quota.is_some() || over.mode.is_some();
    let as_json = |over: &Override| is_set(over).then(|| OverrideJson::new(key, over, now));
    let change = (as_json(before), as_json(&over));
    if !is_set(&over) {
        if !store.clear_override(key).await? {
            let hint = format!("`tollgate explain {}` shows its effective limit", operand(key.as_str()));
            return Err(CliError::absent(format!("there is no override of '{name}'"), hint).into());
        }
        return Ok(say_change(json, change, || format!("{name}: override taken away{}", previous_value(before, now)))?);
    }
    let set = format!("{name}: override {}{}", values_text(over.quota, over.mode), times::ending(over.expires_at, now));
    store.set_override(key, over).await?;
    Ok(say_change(json, change, || set + &previous_value(before, now))?)
}

/// Notes on standard error that the end of the kept part changes too, because both parts share one end.
pub(crate) fn note_end(kept: Option<String>, before: Option<DateTime<Utc>>, end: Option<DateTime<Utc>>) {
    let [before, end] = [before, end].map(|end| end.map_or_else(|| "never".to_owned(), times::instant));
    if let Some(kept) = kept.filter(|_| before != end) {
        note(&format!("the end of {kept} changes too, from {before} to {end}: an override has one end"));
    }
}

/// Notes on standard error that a deleted bucket's override stays.
pub(crate) async fn note_remaining(store: &impl Admin, key: &Key) -> anyhow::Result<()> {
    let Some(explanation) = readable(store.explain(key, None).await)? else { return Ok(()) };
    let quota = explanation.quota.filter(|_| explanation.quota_from == Some(Origin::Override));
    let mode = (explanation.mode_from == Some(Origin::Override)).then_some(explanation.mode);
    let clears = [
        quota.map(|_| format!("`tollgate plan override --clear {}`", operand(key.as_str()))),
        mode.map(|_| format!("`tollgate mode --clear --key={}`", quoted(key.as_str()))),
    ];
    let clears = clears.into_iter().flatten().collect::<Vec<_>>().join(" and ");
    if !clears.is_empty() {
        let (name, set) = (plain(key.as_str()), values_text(quota, mode));
        note(&format!("the override of '{name}' stays: {set}; to remove it: {clears}"));
    }
    Ok(())
}

fn values_text(quota: Option<Quota>, mode: Option<Mode>) -> String {
    let parts = [quota.map(|quota| quota.to_string()), mode.map(|mode| format!("mode {mode}"))];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Describes the previous override, if it was in force.
fn previous_value(before: &Override, now: DateTime<Utc>) -> String {
    if before.quota.is_none() && before.mode.is_none() {
        return String::new();
    }
    let reason = if before.reason.is_empty() { String::new() } else { format!(": {}", plain(&before.reason)) };
    format!("; it was {}{}{reason}", values_text(before.quota, before.mode), times::ending(before.expires_at, now))
}

/// Every override.
pub(crate) async fn all(store: &impl Admin) -> anyhow::Result<Vec<(Key, Override)>> {
    read_all(async |last: Option<&(Key, Override)>| store.overrides(last.map(|(key, _)| key), PAGE).await).await
}

/// Says which keys have one.
pub(crate) async fn list(store: &impl Admin, now: DateTime<Utc>, json: bool) -> anyhow::Result<()> {
    let all = all(store).await?;
    if json {
        say_json(&all.iter().map(|(key, over)| OverrideJson::new(key, over, now)).collect::<Vec<_>>())?;
    } else if all.is_empty() {
        say("no overrides; make one: tollgate plan override KEY --quota '10/s burst 20' --for 1d")?;
    } else {
        let columns = ["key", "limit", "mode", "until", "reason"];
        let mut table = Table::new(columns.map(Column::Left)).shortens(&["reason"]).drops(&["reason"]);
        for (key, over) in &all {
            let end = match over.expires_at {
                Some(end) if end <= now => "over".to_owned(),
                end => end.map_or_else(String::new, times::instant),
            };
            let quota = over.quota.map_or_else(String::new, |quota| quota.to_string());
            let mode = over.mode.map_or("", Mode::as_str);
            table.row([key.as_str(), &quota, mode, &end, &over.reason].map(Cell::from));
        }
        say(table.fitted())?;
    }
    Ok(())
}

/// A key's override.
#[derive(Serialize, JsonSchema)]
pub(crate) struct OverrideJson {
    /// The key of the override.
    key: String,
    /// The capacity of the bucket. Null: the override has no limits.
    capacity: Option<u64>,
    /// The quota as text. Null: the override has no limits.
    quota: Option<String>,
    /// The mode of the key. Null: that of the plan, or of all, is effective.
    #[schemars(with = "Option<ModeArg>")]
    mode: Option<&'static str>,
    /// Why the override is set.
    override_reason: Option<String>,
    /// When the override ends. Null: never.
    #[schemars(extend("format" = "date-time"))]
    override_until: Option<String>,
    /// Whether the override has expired.
    override_ended: bool,
}

impl OverrideJson {
    fn new(key: &Key, over: &Override, now: DateTime<Utc>) -> Self {
        Self {
            key: key.to_string(),
            capacity: over.quota.map(|quota| quota.capacity()),
            quota: over.quota.map(|quota| quota.to_string()),
            mode: over.mode.map(Mode::as_str),
            override_reason: Some(over.reason.clone()).filter(|reason| !reason.is_empty()),
            override_until: times::timestamp(over.expires_at),
            override_ended: over.expires_at.is_some_and(|end| end <= now),
        }
    }
}
