use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use tollgate::{
    Admin, Key, Mode,
    admin::{Explanation, Origin},
    model::WindowLevel,
};

use crate::modes::ModeArg;
use crate::text::{GREEN, RED};
use crate::windows::WindowJson;
use crate::{modes, times};

/// A key's sliding window, and the mode that it is in.
pub(super) struct Sliding {
    level: WindowLevel,
    mode: Mode,
}

impl Sliding {
    pub(super) async fn find(
        store: &impl Admin,
        key: &Key,
        explanation: &Explanation,
        now: DateTime<Utc>,
    ) -> anyhow::Result<Option<Self>> {
        let Some(level) = store.peek_window(key).await? else { return Ok(None) };
        if explanation.mode_from != Some(Origin::Plan) {
            return Ok(Some(Self { level, mode: explanation.mode }));
        }
        // Windows have no plans.
        let all = store.mode().await?;
        Ok(Some(Self { level, mode: if modes::has_ended(&all, now) { Mode::Enforce } else { all.mode } }))
    }

    pub(super) fn counted(&self) -> String {
        let (window, counted) = (self.level.window(), self.level.counted());
        format!("sliding, {window}: {counted} counted, {} left", self.level.available().max(0))
    }

    pub(super) fn expected_outcome(&self, cost: u64) -> String {
        match (self.mode, self.outcome(cost)) {
            (_, WindowOutcome::Never) => "would fail: it costs more than the window ever lets pass".to_owned(),
            (Mode::Off, _) => format!("would be {GREEN}granted{GREEN:#}, regardless of the count"),
            (Mode::Block, _) => format!("would be {RED}denied{RED:#}, regardless of the count"),
            (_, WindowOutcome::Granted) => format!("would be {GREEN}granted{GREEN:#}"),
            (_, WindowOutcome::Denied) => {
                let left = self.level.available().max(0).unsigned_abs();
                let cause = if left == 0 {
                    format!("one passes in {}", times::span(self.level.retry_after()))
                } else {
                    format!("{} of {cost} do not pass now", cost.saturating_sub(left))
                };
                format!("would be {RED}denied{RED:#}: {cause}")
            }
        }
    }

    pub(super) fn json(&self, cost: u64) -> SlidingJson {
        let (level, mode) = ((&self.level).into(), self.mode.as_str());
        SlidingJson { level, mode, expected_outcome: self.outcome(cost) }
    }

    /// The outcome of a request.
    fn outcome(&self, cost: u64) -> WindowOutcome {
        let passes = || i128::from(self.level.available()) >= i128::from(cost);
        match self.mode {
            Mode::Enforce | Mode::Shadow if cost > self.level.window().max_requests() => WindowOutcome::Never,
            Mode::Off | Mode::Shadow => WindowOutcome::Granted,
            Mode::Enforce if passes() => WindowOutcome::Granted,
            _ => WindowOutcome::Denied,
        }
    }
}

/// The sliding window of a key, and the result of a request.
#[derive(Serialize, JsonSchema)]
pub(super) struct SlidingJson {
    #[serde(flatten)]
    level: WindowJson,
    /// The effective mode of the window.
    #[schemars(with = "ModeArg")]
    mode: &'static str,
    /// The result of a request of cost 1, or of `--cost`.
    expected_outcome: WindowOutcome,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum WindowOutcome {
    Granted,
    Denied,
    Never,
}
