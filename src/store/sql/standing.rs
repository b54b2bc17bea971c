//! Requests for several buckets each that were decided together: of many is only known how the buckets stood before.

use std::collections::HashMap;

use super::ask::Ask;
use crate::model::answer::{Answer, Word};

/// What was told of each bucket of each request.
pub(super) struct Told<'a> {
    asks: &'a [Ask],
    /// By the request and the bucket's place in it.
    answers: Vec<Vec<Option<Answer>>>,
    /// Of the requests that were decided by themselves, whose answers say what came of them.
    decided: Vec<bool>,
}

impl<'a> Told<'a> {
    pub(super) fn new(asks: &'a [Ask]) -> Self {
        let answers = asks.iter().map(|ask| vec![None; ask.take.limits.len()]).collect();
        Self { asks, answers, decided: vec![false; asks.len()] }
    }

    /// Of a bucket: how it stands before anything is taken, or, of a request that was decided by itself, what came of it, which
    /// counts whatever else is told.
    pub(super) fn tell(
        &mut self,
        (request, place): (usize, usize),
        standing: bool,
        answer: Answer,
    ) -> Result<(), sqlx::Error> {
        let unasked = || sqlx::Error::Protocol(format!("an answer about the bucket {place} of the request {request}"));
        let told = self.answers.get_mut(request).and_then(|answers| answers.get_mut(place)).ok_or_else(unasked)?;
        if !standing || !self.decided[request] {
            *told = Some(answer);
        }
        self.decided[request] |= !standing;
        Ok(())
    }

    /// The answers for each bucket of each request, as if they had been decided one after the other; fewer if something was
    /// not told.
    ///
    /// Those that were decided by themselves came after the others: their answers know what these took, also those that are
    /// behind them here.
    pub(super) fn in_turn(self) -> Vec<Answer> {
        let mut buckets: HashMap<&str, Bucket> = HashMap::new();
        let mut requests = Vec::with_capacity(self.asks.len());
        for ((ask, told), decided) in self.asks.iter().zip(self.answers).zip(self.decided) {
            let told: Vec<Answer> = told.into_iter().flatten().collect();
            let granted = told.iter().all(|answer| answer.word == Word::Granted);
            for (place, key) in ask.take.keys().enumerate().filter(|_| granted && !decided) {
                buckets.entry(key.as_str()).or_default().behind += ask.request_at(place).cost;
            }
            requests.push((ask, told, decided, granted));
        }
        let mut answers = Vec::new();
        for (ask, mut told, decided, granted) in requests {
            for (place, (answer, key)) in told.iter_mut().zip(ask.take.keys()).enumerate() {
                let bucket = buckets.entry(key.as_str()).or_default();
                let request = ask.request_at(place);
                if decided {
                    // Of several that were granted, one may be off.
                    bucket.taken += if answer.took() { request.cost } else { 0 };
                    answer.debit(-bucket.behind);
                    continue;
                }
                let cost = if granted { request.cost } else { 0 };
                bucket.taken += cost;
                bucket.behind -= cost;
                if !granted && answer.word == Word::Granted {
                    answer.spare(None);
                }
                answer.debit(bucket.taken);
                if answer.word == Word::Spared && !answer.has(request) {
                    answer.word = Word::Denied;
                }
            }
            answers.extend(told);
        }
        answers
    }
}

/// Tokens of a bucket.
#[derive(Default)]
struct Bucket {
    /// By those up to here.
    taken: i64,
    /// By those behind that were decided together.
    behind: i64,
}
