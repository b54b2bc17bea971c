//! Random values of seeds: the same seeds in every run, so that a change does not fail for what others left, and new ones in
//! `scripts/test --long`. A failure names its seed, which `TOLLGATE_SEED` replays.

use std::future::Future;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use tokio::runtime::Handle;
use tokio::task::block_in_place;
use tollgate_tests::rounds::long;

/// The seeds of a case: the usual ones, and in a long run also new ones.
pub(crate) fn seeds(usual: impl IntoIterator<Item = u64>) -> anyhow::Result<Vec<u64>> {
    if let Ok(seed) = std::env::var("TOLLGATE_SEED") {
        return Ok(vec![seed.parse()?]);
    }
    let new = NEW_SEEDS * long()?.unwrap_or(0);
    Ok(usual.into_iter().chain((0..new).map(|_| fastrand::u64(..))).collect())
}

/// Checks `cases` values, and shrinks the first one that fails.
pub(crate) fn check<S, F>(cases: u32, values: &S, property: impl Fn(S::Value) -> F) -> anyhow::Result<()>
where
    S: Strategy,
    F: Future<Output = anyhow::Result<()>>,
{
    for seed in seeds([SEED])? {
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
const NEW_SEEDS: u32 = 2;
