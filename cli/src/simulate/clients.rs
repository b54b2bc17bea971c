//! Counts denials per client.

use std::collections::HashMap;

use anyhow::Context;
use tollgate::Key;

use super::run::{RequestOutcome, SimulatedRequest};

/// Clients in the order of their first request.
#[derive(Default)]
pub(crate) struct ClientNames(HashMap<Key, u32>);

impl ClientNames {
    /// The client's position in this order.
    pub(crate) fn place(&mut self, name: &str) -> anyhow::Result<u32> {
        let key = Key::try_from(name).context("the client is not a valid key")?;
        let next = u32::try_from(self.0.len()).context("too many clients")?;
        Ok(*self.0.entry(key).or_insert(next))
    }

    pub(crate) fn into_keys(self) -> Vec<Key> {
        let mut keys: Vec<_> = self.0.into_iter().collect();
        keys.sort_unstable_by_key(|(_, place)| *place);
        keys.into_iter().map(|(key, _)| key).collect()
    }
}

/// The counts of one client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) arrived: u64,
    /// Includes requests that can never be granted.
    pub(crate) denied: u64,
}

/// Counts the requests of each client.
pub(crate) fn tallies(clients: usize, requests: &[SimulatedRequest]) -> Vec<Tally> {
    let mut tallies = vec![Tally::default(); clients];
    for SimulatedRequest { arrival, outcome } in requests {
        let tally = &mut tallies[arrival.client as usize];
        tally.arrived += 1;
        tally.denied += u64::from(!matches!(outcome, RequestOutcome::Granted(_)));
    }
    tallies
}

/// The number of clients with a denial.
pub(crate) fn denied(tallies: &[Tally]) -> usize {
    tallies.iter().filter(|tally| tally.denied > 0).count()
}

/// The positions of the most denied clients under any of the limits.
pub(crate) fn most_denied(names: &[Key], limits: &[Vec<Tally>]) -> Vec<usize> {
    let worst = |place: usize| limits.iter().map(|tallies| tallies[place].denied).max().unwrap_or(0);
    let mut places: Vec<_> =
        (0..names.len()).map(|place| (worst(place), place)).filter(|(most, _)| *most > 0).collect();
    places
        .sort_unstable_by(|(more, one), (fewer, other)| fewer.cmp(more).then_with(|| names[*one].cmp(&names[*other])));
    places.into_iter().map(|(_, place)| place).take(MAX_SHOWN).collect()
}

/// Limits the rows, so that the report fits on a screen.
const MAX_SHOWN: usize = 10;
