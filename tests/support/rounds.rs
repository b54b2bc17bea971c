//! The number of random rounds: as many as find faults in a usual run, and more in `scripts/test --long`.

use std::str::FromStr;

/// Returns `usual`, times `TOLLGATE_LONG` if it is set.
pub fn rounds(usual: u32) -> anyhow::Result<u32> {
    let times = std::env::var("TOLLGATE_LONG").map_or(Ok(1), |times| u32::from_str(&times))?;
    Ok(usual * times)
}
