//! A limiter's own mode, set in the process or by its environment. It works without a database.

use std::process::Command;
use std::time::Duration;

use tokio::time::Instant;
use tollgate::{
    Adjusted, Adjustment, Error, Fallback, Limiter, MemoryStore, Mode, Quota, Take, TakeError,
    clock::ManualClock,
    model::{Outcome, Source},
    store::TestStore,
};

/// A store that never answers.
struct Silent;

impl TestStore for Silent {
    async fn take(&self, _: &[Take]) -> Result<Vec<Outcome>, Error> {
        std::future::pending().await
    }

    async fn adjust(&self, _: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn disabled_or_blocking_limiter_calls_no_store() -> anyhow::Result<()> {
    for (mode, passes) in [(Mode::Off, true), (Mode::Block, false)] {
        let limiter = Limiter::builder(Silent).mode(mode).build("1/h")?;
        for decision in [
            limiter.allow("a").await?,
            limiter.wait_n("a", 5, Duration::from_secs(1)).await?.decision().clone(),
            limiter.reserve("a").await?.decision().clone(),
        ] {
            assert_eq!((decision.is_granted(), decision.mode()), (passes, mode));
            assert_eq!(decision.source(), Source::Limiter);
        }
        limiter.reserve("a").await?.cancel().await?;
    }
    Ok(())
}

#[tokio::test]
async fn shadow_limiter_takes_tokens_and_passes_denied_requests() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), "2 once")?;
    let clone = limiter.clone();
    limiter.set_mode(Mode::Shadow);
    let first = clone.allow("a").await?;
    assert_eq!((first.remaining(), first.mode()), (Some(1), Mode::Enforce));
    assert!(clone.allow("a").await?.is_granted());
    let passed = clone.allow("a").await?;
    assert_eq!((passed.is_granted(), passed.mode(), passed.remaining()), (true, Mode::Shadow, Some(0)));
    assert_eq!(limiter.wait_n("a", 2, Duration::ZERO).await?.decision().mode(), Mode::Shadow);
    clone.set_mode(Mode::Enforce);
    assert!(!limiter.allow("a").await?.is_granted());
    assert_eq!(limiter.mode(), Mode::Enforce);
    Ok(())
}

/// The store's clock stands still. The runtime's clock advances whenever all tasks sleep.
#[tokio::test(start_paused = true)]
async fn shadow_limiter_does_not_wait_or_take_for_late_requests() -> anyhow::Result<()> {
    let (begun, longest) = (Instant::now(), Duration::from_secs(5));
    let of_memory = Limiter::new(MemoryStore::with_clock(ManualClock::default()), "1/s")?;
    of_memory.set_mode(Mode::Shadow);
    assert_eq!(of_memory.wait("a").await?.decision().mode(), Mode::Enforce);
    for _ in 0..3 {
        let waited = of_memory.wait_n("a", 1, longest).await?;
        let waited = waited.decision();
        assert_eq!((waited.is_granted(), waited.mode(), waited.wait()), (true, Mode::Shadow, Duration::ZERO));
        let reserved = of_memory.reserve("a").await?;
        assert_eq!((reserved.decision().mode(), reserved.delay()), (Mode::Shadow, Some(Duration::ZERO)));
        assert!(reserved.receipts().is_empty());
    }
    // Requests that the local fallback decides do not wait either.
    let local = Fallback::Local(Quota::per_second(1).build()?);
    let away =
        Limiter::builder(Silent).deadline(Duration::from_millis(1)).fallback(local).mode(Mode::Shadow).build("1/s")?;
    for mode in [Mode::Enforce, Mode::Shadow, Mode::Shadow] {
        assert_eq!(away.wait_n("a", 1, longest).await?.decision().mode(), mode);
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "a request waited");
    of_memory.set_mode(Mode::Enforce);
    assert_eq!(of_memory.wait("a").await?.decision().wait(), Duration::from_secs(1));
    Ok(())
}

/// The two tests below run this test in a process with its own environment.
#[test]
fn mode_of_the_environment_is_printed() {
    let built = Limiter::new(MemoryStore::new(), "1/h");
    let mode = built.map_or_else(|error| error.to_string(), |limiter| limiter.mode().to_string());
    let chosen = Limiter::builder(MemoryStore::new()).mode(Mode::Shadow).build("1/h");
    println!("\nthe mode is {mode}, or {}", chosen.expect("the builder sets a mode").mode());
}

fn with_environment(mode: Option<&str>) -> anyhow::Result<String> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", "mode_of_the_environment_is_printed", "--nocapture"]).env_remove("TOLLGATE_MODE");
    if let Some(mode) = mode {
        command.env("TOLLGATE_MODE", mode);
    }
    let printed = String::from_utf8(command.output()?.stdout)?;
    let line = printed.lines().find_map(|line| line.strip_prefix("the mode is "));
    Ok(line.ok_or_else(|| anyhow::anyhow!("it printed {printed}"))?.to_owned())
}

#[test]
fn environment_mode_applies_unless_the_program_sets_one() -> anyhow::Result<()> {
    for unset in [None, Some("")] {
        assert_eq!(with_environment(unset)?, "enforce, or shadow");
    }
    for mode in [Mode::Enforce, Mode::Shadow, Mode::Off, Mode::Block] {
        assert_eq!(with_environment(Some(mode.as_str()))?, format!("{mode}, or shadow"));
    }
    Ok(())
}

#[test]
fn invalid_mode_builds_no_limiter_and_lists_the_modes() -> anyhow::Result<()> {
    for text in ["of", " ", "OFF"] {
        let error =
            format!("TOLLGATE_MODE: {text:?} is not a mode: give \"enforce\", \"shadow\", \"off\" or \"block\"");
        assert_eq!(with_environment(Some(text))?, format!("{error}, or shadow"));
    }
    Ok(())
}
