//! Requests for several buckets each that were decided together: of many is only known how the buckets stood before.

use std::collections::HashMap;

use super::ask::Ask;
use crate::answer::{Answer, Word};

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
    pub(super) fn in_turn(self) -> Vec<Answer> {
        let mut taken: HashMap<&str, i64> = HashMap::new();
        let mut answers = Vec::new();
        for ((ask, told), decided) in self.asks.iter().zip(self.answers).zip(self.decided) {
            let mut told: Vec<Answer> = told.into_iter().flatten().collect();
            if !decided {
                let granted = told.iter().all(|answer| answer.word == Word::Granted);
                for (place, (answer, key)) in told.iter_mut().zip(ask.take.keys()).enumerate() {
                    let taken = taken.entry(key.as_str()).or_default();
                    if granted {
                        *taken += ask.request_at(place).cost;
                    } else if answer.word == Word::Granted {
                        answer.spare(None);
                    }
                    answer.debit(*taken);
                }
            }
            answers.extend(told);
        }
        answers
    }
}
