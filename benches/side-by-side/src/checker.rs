use std::time::Duration;

use anyhow::{bail, ensure};
use common::fleet::checker::{Call, Limit};
use tollgate::model::bucket::BucketQuota;

use crate::peers::tollgate::quota;
use crate::sample::Sample;
use crate::system::{Kind, System};
use crate::workload::{BucketLimits, Expect, Workload};

/// Checks a measurement: no key was granted too much, in any window or in total, and the answers fit the workload.
pub(crate) fn check(system: System, workload: &Workload, sample: &Sample, elapsed: Duration) -> anyhow::Result<()> {
    let BucketLimits { capacity, token, expect, .. } = workload.bucket_limits;
    // The store's clock and this clock belong to the same machine, but are read at slightly different times.
    let elapsed = elapsed.mul_f64(1.001) + Duration::from_millis(5);
    let most = u128::from(*capacity) + elapsed.as_nanos() / token.as_nanos();
    for (key, &granted) in &sample.grants {
        ensure!(
            u128::from(granted) <= most,
            "over-granted: {granted} tokens of key {key} within {elapsed:?}, and {most} were allowed"
        );
    }
    // Leased tokens were debited earlier, so their grants can come closer together. The store's accounting covers them.
    if system.kind != Kind::Leased {
        let stale = if system.kind == Kind::Memory { STALE_NS } else { 0 };
        every_window(workload.bucket_limits, sample, stale)?;
    }
    match expect {
        Expect::Grants => ensure!(sample.denied == 0, "{} denials where all is to be granted", sample.denied),
        Expect::Denials => ensure!(sample.granted == 0, "{} grants where all is to be denied", sample.granted),
        Expect::Both => ensure!(sample.granted > 0, "nothing was granted at all"),
    }
    Ok(())
}

/// Checks windows by the callers' clocks. The time of a decision can precede its request by `stale`.
fn every_window(bucket_limits: &BucketLimits, sample: &Sample, stale: i64) -> anyhow::Result<()> {
    let limit = Limit { quota: BucketQuota::at(&quota(bucket_limits)?, 0), anchor: 0 };
    for (key, calls) in &sample.calls {
        let calls: Vec<Call> = calls.iter().map(|call| Call { sent: call.sent - stale, ..*call }).collect();
        if let Some(fault) = limit.faults(&calls).first() {
            bail!("over-granted of key {key}: {fault}");
        }
    }
    Ok(())
}

/// Maximum age of the time that `MemoryStore` uses.
const STALE_NS: i64 = 10_000;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::drive::{Plan, drive};
    use crate::peer::Peer;

    struct GrantsAll;

    impl Peer for GrantsAll {
        async fn ask(&self, _: u32) -> anyhow::Result<bool> {
            Ok(true)
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn peer_that_grants_everything_is_detected() {
        let workload = Workload::named("saturated").unwrap();
        let plan = Plan {
            tasks: 8,
            warm_up: Duration::from_millis(1),
            time: Duration::from_millis(20),
            sequence: workload.popularity.draw(100, 0).into(),
            keys: 100,
            server: None,
            noted: true,
        };
        let sample = drive(Arc::new(GrantsAll), plan).await.unwrap();
        let fault = check(MEMORY, workload, &sample, Duration::from_secs(1)).unwrap_err();
        assert!(fault.to_string().starts_with("over-granted"), "{fault}");
    }

    #[test]
    fn one_token_more_than_the_window_holds_is_found() {
        let workload = Workload::named("attack").unwrap();
        let granted = |count| Sample { granted: count, grants: [(7, count)].into(), ..Sample::default() };
        assert!(check(MEMORY, workload, &granted(20), Duration::from_secs(1)).is_ok());
        assert!(check(MEMORY, workload, &granted(21), Duration::from_secs(1)).is_err());
    }

    #[test]
    fn over_grant_in_short_window_is_detected_in_long_window() {
        let workload = Workload::named("attack").unwrap();
        let call = |nth| Call { sent: nth * 1000, done: nth * 1000 + 500, at: None, cost: 1, granted: true };
        let at_once = |count: i64| Sample {
            granted: 1,
            calls: [(7, (0..count).map(call).collect())].into(),
            ..Sample::default()
        };
        assert!(check(MEMORY, workload, &at_once(10), Duration::from_hours(1)).is_ok());
        let fault = check(MEMORY, workload, &at_once(11), Duration::from_hours(1)).unwrap_err();
        assert!(fault.to_string().starts_with("over-granted of key 7"), "{fault}");
    }

    const MEMORY: System = System { kind: Kind::Memory, server: None };
}
