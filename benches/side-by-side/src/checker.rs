use std::time::Duration;

use anyhow::ensure;

use crate::sample::Sample;
use crate::workload::{Expect, Terms, Workload};

/// What is wrong with a measurement: too much was granted of a key, or the answers are not those that the workload is about.
pub(crate) fn check(workload: &Workload, sample: &Sample, elapsed: Duration) -> anyhow::Result<()> {
    let Terms { capacity, token, expect, .. } = workload.terms;
    // The store's clock and this one run on the same machine, and are read at slightly different moments.
    let elapsed = elapsed.mul_f64(1.001) + Duration::from_millis(5);
    let most = u128::from(*capacity) + elapsed.as_nanos() / token.as_nanos();
    for (key, &granted) in &sample.grants {
        ensure!(
            u128::from(granted) <= most,
            "over-granted: {granted} tokens of key {key} within {elapsed:?}, and {most} were allowed"
        );
    }
    match expect {
        Expect::Grants => ensure!(sample.denied == 0, "{} denials where all is to be granted", sample.denied),
        Expect::Denials => ensure!(sample.granted == 0, "{} grants where all is to be denied", sample.granted),
        Expect::Both => ensure!(sample.granted > 0, "nothing was granted at all"),
    }
    Ok(())
}

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
    async fn a_peer_that_grants_all_is_found() {
        let workload = Workload::named("saturated").unwrap();
        let plan = Plan {
            tasks: 8,
            warm_up: Duration::from_millis(1),
            time: Duration::from_millis(20),
            sequence: workload.popularity.draw(100, 0).into(),
            keys: 100,
            server: None,
        };
        let sample = drive(Arc::new(GrantsAll), plan).await.unwrap();
        let fault = check(workload, &sample, Duration::from_secs(1)).unwrap_err();
        assert!(fault.to_string().starts_with("over-granted"), "{fault}");
    }

    #[test]
    fn one_token_more_than_the_window_holds_is_found() {
        let workload = Workload::named("attack").unwrap();
        let granted = |count| Sample { granted: count, grants: [(7, count)].into(), ..Sample::default() };
        assert!(check(workload, &granted(20), Duration::from_secs(1)).is_ok());
        assert!(check(workload, &granted(21), Duration::from_secs(1)).is_err());
    }
}
