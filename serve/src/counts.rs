//! The answers under each limit since the server began, for metrics and the dashboard.

use std::collections::HashMap;

use parking_lot::Mutex;

/// The answer under a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted,
    Denied,
    /// Passed without tokens: by a mode, or by a quota beside it that has some.
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
pub(crate) struct Counts(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    domains: HashMap<String, HashMap<String, [u64; 4]>>,
    limits: usize,
}

impl Counts {
    /// Counts an answer. Limits beyond the first thousand of all domains are counted as `other`.
    pub(crate) fn add(&self, domain: &str, limit: &str, answer: Answer) {
        let mut counted = self.0.lock();
        let Counted { domains, limits } = &mut *counted;
        if let Some(counts) = domains.get_mut(domain).and_then(|limits| limits.get_mut(limit)) {
            counts[answer as usize] += 1;
            return;
        }
        let (domain, limit) = if *limits < MAX_LIMITS { (domain, limit) } else { (OTHER, OTHER) };
        let of_limit = domains.entry(domain.to_owned()).or_default().entry(limit.to_owned()).or_insert_with(|| {
            *limits += 1;
            [0; 4]
        });
        of_limit[answer as usize] += 1;
    }

    /// All counts, in the order of the names.
    pub(crate) fn all(&self) -> Vec<(String, String, [u64; 4])> {
        let counted = self.0.lock();
        let of_domain = |(domain, limits): (&String, &HashMap<String, [u64; 4]>)| {
            limits.iter().map(|(limit, counts)| (domain.clone(), limit.clone(), *counts)).collect::<Vec<_>>()
        };
        let mut all: Vec<_> = counted.domains.iter().flat_map(of_domain).collect();
        all.sort();
        all
    }
}

const MAX_LIMITS: usize = 1000;
const OTHER: &str = "other";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_beyond_a_thousand_are_counted_together() {
        let counts = Counts::default();
        for number in 0..1500 {
            counts.add(&format!("domain {}", number % 7), &format!("limit {number}"), Answer::Denied);
        }
        counts.add("domain 0", "limit 0", Answer::Denied);
        let all = counts.all();
        let of = |limit: &str| all.iter().find(|(_, name, _)| name == limit).map(|(.., counts)| counts[1]);
        assert_eq!((all.len(), of("limit 0"), of(OTHER)), (1001, Some(2), Some(500)));
    }
}
