//! The number of random rounds: as many as find faults in a usual run, and more in `scripts/test --long`.

use std::str::FromStr;

/// Returns `usual`, times `TOLLGATE_LONG` if it is set.
pub fn rounds(usual: u32) -> anyhow::Result<u32> {
    Ok(usual * long()?.unwrap_or(1))
}

/// The value of `TOLLGATE_LONG`, if this is a long run.
pub fn long() -> anyhow::Result<Option<u32>> {
    Ok(std::env::var("TOLLGATE_LONG").ok().map(|times| u32::from_str(&times)).transpose()?)
}
