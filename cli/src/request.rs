//! What `take` and `run` ask for.

use tollgate::{Key, Limiter, MemoryStore, Mode, Rule, Store, Take};

use crate::quota_args::{key, rule};

/// Tokens, and whose terms hold for them.
#[derive(clap::Args)]
pub(crate) struct RequestArgs {
    /// How many tokens [default: 1]
    #[arg(long, value_name = "TOKENS", default_value_t = 1, hide_default_value = true, value_parser = clap::value_parser!(u64).range(1..))]
    cost: u64,
    /// How many must remain for others
    #[arg(long, value_name = "TOKENS", default_value_t = 0, hide_default_value = true)]
    min_remaining: u64,
    /// Terms in words, such as '10/s burst 20': the first request makes the bucket; or a sliding window, '100 in 60s at 5s'
    #[arg(long, value_name = "QUOTA", conflicts_with = "plan", value_parser = rule)]
    quota: Option<Rule>,
    /// The plan whose terms hold: the first request makes the bucket
    #[arg(long, value_name = "NAME", value_parser = key)]
    plan: Option<Key>,
}

impl RequestArgs {
    /// The request, for one key or for several: then from all of them or from none.
    pub(crate) fn take(&self, keys: &[Key]) -> Take {
        let rule = match (&self.quota, &self.plan) {
            (Some(rule), _) => rule.clone(),
            (None, Some(plan)) => Rule::Plan(plan.clone()),
            (None, None) => Rule::Provisioned,
        };
        let first = Take::from(keys[0].clone()).rule(rule.clone()).cost(self.cost).min_remaining(self.min_remaining);
        keys[1..].iter().fold(first, |take, key| take.and(key.clone(), rule.clone()))
    }
}

/// One request needs nothing of what a limiter does for many.
pub(crate) fn limiter<S: Store>(store: S) -> anyhow::Result<Limiter<S>> {
    Ok(Limiter::builder(store).without_batching().without_deny_cache().without_sweep().build(Rule::Provisioned)?)
}

/// Whether the environment switches every request off or blocks it: then no store is asked, whichever it is. A word that is no
/// mode is told before anything else is looked at.
pub(crate) fn is_switched() -> anyhow::Result<bool> {
    Ok(matches!(limiter(MemoryStore::new())?.mode(), Mode::Off | Mode::Block))
}
