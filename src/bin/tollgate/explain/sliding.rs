use serde_json::Value;
use tollgate::{Admin, Explanation, Key, Mode, Origin, WindowLevel};

use crate::output::{GREEN, RED};
use crate::{times, windows};

/// A key's sliding window, and the mode that it is in.
pub(super) struct Sliding {
    level: WindowLevel,
    mode: Mode,
}

impl Sliding {
    pub(super) async fn find(store: &impl Admin, key: &Key, why: &Explanation) -> anyhow::Result<Option<Self>> {
        let Some(level) = store.peek_window(key).await? else { return Ok(None) };
        if why.mode_from != Some(Origin::Plan) {
            return Ok(Some(Self { level, mode: why.mode }));
        }
        // Windows have no plans.
        let all = store.mode().await?;
        Ok(Some(Self { level, mode: if times::is_over(&all) { Mode::Enforce } else { all.mode } }))
    }

    pub(super) fn counted(&self) -> String {
        let WindowLevel { window, counted, .. } = &self.level;
        format!("sliding, {window}: {counted} counted, {} left", self.level.available().max(0))
    }

    pub(super) fn prospect(&self) -> String {
        let outcome = if self.admits() { format!("{GREEN}granted{GREEN:#}") } else { format!("{RED}denied{RED:#}") };
        match self.mode {
            Mode::Off | Mode::Block => format!("would be {outcome}, whatever is counted"),
            _ if self.admits() => format!("would be {outcome}"),
            _ => format!("would be {outcome}: one passes in {}", times::span(self.level.retry_after)),
        }
    }

    pub(super) fn json(&self) -> Value {
        let mut json = windows::json(&self.level);
        json["mode"] = self.mode.as_str().into();
        json["prospect"] = if self.admits() { "granted" } else { "denied" }.into();
        json
    }

    /// Whether a request would be granted.
    fn admits(&self) -> bool {
        match self.mode {
            Mode::Block => false,
            Mode::Shadow | Mode::Off => true,
            _ => self.level.retry_after.is_zero(),
        }
    }
}
