//! The answers under each limit since the server began, for metrics and the dashboard.

use std::collections::HashMap;

use parking_lot::Mutex;

/// The answer under a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted,
    Denied,
    /// Passed by a mode, without tokens.
    Shadow,
    Failed,
}

impl Answer {
    pub(crate) const ALL: [Self; 4] = [Self::Granted, Self::Denied, Self::Shadow, Self::Failed];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Denied => "denied",
            Self::Shadow => "shadow",
            Self::Failed => "failed",
        }
    }
}

/// How many requests had each answer, by domain and limit.
#[derive(Debug, Default)]
pub(crate) struct Counts(Mutex<HashMap<String, HashMap<String, [u64; 4]>>>);

impl Counts {
    /// Counts an answer. Limits beyond the first thousand are counted as `other`.
    pub(crate) fn add(&self, domain: &str, limit: &str, answer: Answer) {
        let mut counts = self.0.lock();
        if !counts.contains_key(domain) {
            let domain = if counts.len() < MAX_LIMITS { domain } else { OTHER };
            counts.entry(domain.to_owned()).or_default();
        }
        let limits: usize = counts.len();
        let domain = if counts.contains_key(domain) { domain } else { OTHER };
        let Some(of_domain) = counts.get_mut(domain) else { return };
        let limit = if of_domain.contains_key(limit) || of_domain.len() + limits < MAX_LIMITS { limit } else { OTHER };
        if !of_domain.contains_key(limit) {
            of_domain.insert(limit.to_owned(), [0; 4]);
        }
        if let Some(of_limit) = of_domain.get_mut(limit) {
            of_limit[answer as usize] += 1;
        }
    }

    /// All counts, in the order of the names.
    pub(crate) fn all(&self) -> Vec<(String, String, [u64; 4])> {
        let counts = self.0.lock();
        let mut all: Vec<_> = counts
            .iter()
            .flat_map(|(domain, limits)| limits.iter().map(|(limit, counts)| (domain.clone(), limit.clone(), *counts)))
            .collect();
        all.sort();
        all
    }
}

const MAX_LIMITS: usize = 1000;
const OTHER: &str = "other";
