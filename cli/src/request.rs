//! The requests of `take` and `run`.

use tollgate::{Error, Key, Limiter, MemoryStore, Mode, Rule, Store, Take, TakeError, model::LimitName};

use crate::exit::CliError;
use crate::failure;
use crate::quota_args::{key, limit_name, rule};
use crate::text::plain;

/// The cost of a request, and its limit.
#[derive(clap::Args)]
pub(crate) struct RequestArgs {
    /// How many tokens [default: 1]
    #[arg(long, value_name = "TOKENS", default_value_t = 1, hide_default_value = true, value_parser = clap::value_parser!(u64).range(1..))]
    cost: u64,
    /// How much a limit with a cost of this name counts
    #[arg(long, value_name = "NAME=TOKENS", value_parser = named_cost)]
    cost_of: Vec<(LimitName, u64)>,
    /// How many tokens must remain after the request
    #[arg(long, value_name = "TOKENS", default_value_t = 0, hide_default_value = true)]
    min_remaining: u64,
    /// The limit, such as '10/s burst 20', or a sliding window, '100 in 60s at 5s'; the first request creates the bucket
    #[arg(long, value_name = "QUOTA", conflicts_with = "plan", value_parser = rule)]
    quota: Option<Rule>,
    /// The plan that sets the limit; the first request creates the bucket
    #[arg(long, value_name = "NAME", value_parser = key)]
    plan: Option<Key>,
}

impl RequestArgs {
    /// The request for one or more keys. With several keys, all grant it or none does.
    pub(crate) fn take(&self, keys: &[Key]) -> Take {
        let rule = self.rule();
        let first = Take::from(keys[0].clone()).rule(rule.clone()).cost(self.cost).min_remaining(self.min_remaining);
        let first = self.cost_of.iter().fold(first, |take, (name, cost)| take.cost_of(name.clone(), *cost));
        keys[1..].iter().fold(first, |take, key| take.and(key.clone(), rule.clone()))
    }

    /// The limit, or the plan that sets it.
    pub(crate) fn rule(&self) -> Rule {
        match (&self.quota, &self.plan) {
            (Some(rule), _) => rule.clone(),
            (None, Some(plan)) => Rule::Plan(plan.clone()),
            (None, None) => Rule::Provisioned,
        }
    }

    /// Hints at `--quota` if its own capacity is too small for the cost.
    pub(crate) fn explain_error(&self, error: anyhow::Error) -> anyhow::Error {
        let given = match &self.quota {
            Some(Rule::Quota(quota)) => quota.capacity(),
            Some(Rule::Window(window)) => window.max_requests(),
            _ => return error,
        };
        match error.downcast_ref() {
            Some(Error::Take(TakeError::ExceedsCapacity { capacity, .. })) if *capacity == given => {
                CliError::never(failure::message(&error), "raise --quota, or lower --cost and --min-remaining").into()
            }
            _ => error,
        }
    }
}

/// Parses `tokens=1200`.
fn named_cost(text: &str) -> Result<(LimitName, u64), CliError> {
    let wrong = || CliError::arguments(format!("'{}' is not a cost with a name", plain(text)), "write NAME=TOKENS");
    let (name, cost) = text.split_once('=').ok_or_else(wrong)?;
    Ok((limit_name(name)?, cost.parse().map_err(|_| wrong())?))
}

/// A limiter without batching, deny cache and sweep, because the CLI makes a single request.
pub(crate) fn limiter<S: Store>(store: S) -> anyhow::Result<Limiter<S>> {
    Ok(Limiter::builder(store).without_batching().without_deny_cache().without_sweep().build(Rule::Provisioned)?)
}

/// Whether the mode in the environment is off or block, which needs no store. Fails first if the environment has an invalid
/// mode.
pub(crate) fn is_decided_by_mode() -> anyhow::Result<bool> {
    Ok(matches!(limiter(MemoryStore::new())?.mode(), Mode::Off | Mode::Block))
}
