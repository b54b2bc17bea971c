use std::time::Duration;

use tokio::time::Instant;

use super::denials::Known;
use crate::model::{Decision, Limit, Rule, Source, Take};

/// What the store denied, and what follows from it.
///
/// Tokens come only with time and by what is given back. So as long as the denied request would be denied again, so is each
/// that needs as many or more: those that it asks for, and those that it leaves.
#[derive(Clone, Debug)]
pub(super) struct Denial {
    rule: Rule,
    /// How many tokens it needed, its cost and what it kept.
    needed: u64,
    /// The most that a request may need and not be impossible, as far as is known.
    possible: u64,
    until: Instant,
    answered: Instant,
    decision: Decision,
}

impl Denial {
    /// What to keep of an answer now to a question sent then; nothing if it is no denial of the store's.
    pub(super) fn of(take: &Take, sent: Instant, decision: &Decision) -> Option<Self> {
        let Limit { rule, .. } = take.plain().filter(|_| take.max_wait.is_zero())?;
        let until = sent + decision.retry_after().min(LONGEST);
        // What is over when it is answered says nothing of those who come later.
        if decision.is_granted() || decision.source() != Source::Store || until <= Instant::now() {
            return None;
        }
        Some(Self {
            rule: rule.clone(),
            needed: needed(take),
            possible: decision.capacity().unwrap_or(0).max(needed(take)),
            until,
            // The caller was told how long to wait from then.
            answered: Instant::now(),
            decision: decision.clone().by(Source::DenyCache),
        })
    }

    /// What follows for a request now.
    #[inline]
    pub(super) fn answer(self, take: &Take, rule: &Rule) -> Known {
        if !self.covers(take, rule) || needed(take) > self.possible {
            return Known::Nothing;
        }
        let now = Instant::now();
        if now < self.until { Known::Denied(self.decision.aged(now - self.answered)) } else { Known::Past }
    }

    /// Adds what a later answer says. It replaces this one unless it follows from it: then it says only that so many
    /// tokens are possible.
    pub(super) fn add(&mut self, later: Self, take: &Take) {
        let same = later.needed == self.needed;
        if Instant::now() < self.until && self.covers(take, &later.rule) && !(same && later.until > self.until) {
            self.possible = self.possible.max(later.possible);
        } else {
            *self = later;
        }
    }

    #[inline]
    fn covers(&self, take: &Take, rule: &Rule) -> bool {
        take.cost > 0 && needed(take) >= self.needed && *rule == self.rule
    }
}

#[inline]
fn needed(take: &Take) -> u64 {
    take.cost.saturating_add(take.keep)
}

/// By when everything is seen that is not known here.
const LONGEST: Duration = Duration::from_secs(1);
