//! Properties over random values: equal ones in every run, and a few of a new seed. A failure names its seed, which
//! `TOLLGATE_SEED` replays.

use std::future::Future;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

/// Checks `cases` values, and shrinks the first one that fails.
pub(crate) fn check<S, F>(cases: u32, values: &S, property: impl Fn(S::Value) -> F) -> anyhow::Result<()>
where
    S: Strategy,
    F: Future<Output = anyhow::Result<()>>,
{
    let seeds = match std::env::var("TOLLGATE_SEED") {
        Ok(seed) => vec![(seed.parse()?, cases)],
        Err(_) => vec![(SEED, cases), (fastrand::u64(..), cases.div_ceil(8))],
    };
    for (seed, cases) in seeds {
        let config = Config {
            cases,
            rng_seed: RngSeed::Fixed(seed),
            failure_persistence: None,
            max_shrink_iters: 400,
            ..Config::default()
        };
        TestRunner::new(config)
            .run(values, |value| {
                let checked = block_in_place(|| Handle::current().block_on(property(value)));
                checked.map_err(|error| TestCaseError::fail(format!("{error:?}")))
            })
            .map_err(|error| anyhow::anyhow!("TOLLGATE_SEED={seed} replays this: {error}"))?;
    }
    Ok(())
}

const SEED: u64 = 2_026;
