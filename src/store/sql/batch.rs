use std::sync::Arc;

use super::ask::Ask;
use super::outcomes;
use crate::model::answer::Answer;
use crate::model::{Error, Outcome};

/// Requests for one bucket each, in the order of their keys; equal ones that follow each other are one, so many times over.
pub(super) struct Batch {
    pub(super) asks: Arc<[Ask]>,
    /// Where each request stood in the caller's order.
    places: Vec<usize>,
}

impl Batch {
    pub(super) fn of(mut each: Vec<(usize, Ask)>) -> Self {
        // A stable sort: requests for one bucket stay in their order.
        each.sort_by(|(_, one), (_, other)| one.key().cmp(other.key()));
        let places = each.iter().map(|(place, _)| *place).collect();
        let mut asks: Vec<Ask> = Vec::with_capacity(each.len());
        for (_, ask) in each {
            match asks.last_mut() {
                Some(last) if last.is_repeated_by(&ask) => last.times += 1,
                _ => asks.push(ask),
            }
        }
        Self { asks: asks.into(), places }
    }

    /// Enters the answers where their requests stood.
    pub(super) fn enter(
        self,
        answers: Vec<Answer>,
        attempts: u32,
        outcomes: &mut [Option<Outcome>],
    ) -> Result<(), Error> {
        for (place, outcome) in self.places.into_iter().zip(outcomes::of_each(answers, &self.asks, attempts)?) {
            outcomes[place] = Some(outcome);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Ask, Batch};
    use crate::model::{Key, Take};

    fn batch(takes: &[(&str, u64, u64)]) -> (Vec<(String, i64, i64)>, Vec<usize>) {
        let ask = |&(key, cost, keep): &(&str, u64, u64)| {
            Ask::try_from(&Take::from(Key::try_from(key).unwrap()).cost(cost).keep(keep)).unwrap()
        };
        let Batch { asks, places } = Batch::of(takes.iter().map(ask).enumerate().collect());
        (asks.iter().map(|ask| (ask.key().to_string(), ask.request.cost, ask.times)).collect(), places)
    }

    #[test]
    fn equal_requests_for_a_bucket_are_one_and_unequal_ones_keep_their_order() {
        let (asks, places) = batch(&[("b", 1, 0), ("a", 2, 0), ("b", 1, 0), ("a", 1, 0), ("a", 1, 0), ("b", 1, 5)]);
        let expected = [("a", 2, 1), ("a", 1, 2), ("b", 1, 2), ("b", 1, 1)];
        assert_eq!(asks, expected.map(|(key, cost, times)| (key.to_owned(), cost, times)));
        assert_eq!(places, [1, 3, 4, 0, 2, 5]);
    }
}
