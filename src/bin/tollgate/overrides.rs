//! A key's override has terms, a mode, or both: changing one of them keeps the other.

use chrono::{DateTime, Utc};
use tollgate::{Admin, Explanation, Key, Mode, Origin, Override, Quota};

use crate::exit::Refusal;
use crate::output::{operand, plain};
use crate::times;

/// What the key's override says of its terms, if anything.
pub(crate) fn quota(why: &Explanation) -> Option<Quota> {
    why.quota.filter(|_| why.quota_from == Some(Origin::Override))
}

/// What the key's override says of its mode, if anything.
pub(crate) fn mode(why: &Explanation) -> Option<Mode> {
    (why.mode_from == Some(Origin::Override)).then_some(why.mode)
}

/// Replaces a key's override, and says what holds from now on. Without terms and mode there is none any more.
pub(crate) async fn replace(
    store: &impl Admin,
    key: &Key,
    (quota, mode): (Option<Quota>, Option<Mode>),
    reason: String,
    expires_at: Option<DateTime<Utc>>,
) -> anyhow::Result<String> {
    let name = plain(key.as_str());
    if quota.is_none() && mode.is_none() {
        if !store.clear_override(key).await? {
            let hint = format!("`tollgate explain {}` shows what rules it", operand(key.as_str()));
            return Err(Refusal::absent(format!("there is no override of '{name}'"), hint).into());
        }
        return Ok(format!("{name}: override taken away"));
    }
    store.set_override(key, Override { quota, mode, reason, expires_at }).await?;
    let parts = [quota.map(|quota| quota.to_string()), mode.map(|mode| format!("mode {mode}"))];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    Ok(format!("{name}: override {}{}", parts.join(", "), times::ending(expires_at)))
}
