use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use parking_lot::Mutex;

use super::answer;
use super::call::Call;
use super::dialect::Dialect;
use super::sql::SqlStore;
use crate::{Adjusted, Adjustment, Error, Key, TakeError};

/// What came of adjustments, in their order.
type Answers = Vec<Option<Result<Adjusted, TakeError>>>;

/// Adjustments by their keys: those of a key are made one after the other, in their order.
struct Lines<'a> {
    waiting: Vec<Vec<(usize, &'a Adjustment)>>,
    answers: Answers,
    /// The first one, and how many there were.
    error: Option<Error>,
    errors: usize,
}

impl<'a> Lines<'a> {
    fn of(adjustments: &'a [Adjustment]) -> Self {
        let mut lines: HashMap<&Key, Vec<_>> = HashMap::new();
        for (place, adjustment) in adjustments.iter().enumerate() {
            lines.entry(adjustment.receipt.key()).or_default().push((place, adjustment));
        }
        let waiting = lines.into_values().collect();
        Self { waiting, answers: vec![None; adjustments.len()], error: None, errors: 0 }
    }

    /// The next key's, unless the database fails for all of them.
    fn next(&mut self) -> Option<Vec<(usize, &'a Adjustment)>> {
        if self.errors < AT_ONCE { self.waiting.pop() } else { None }
    }

    fn enter(&mut self, place: usize, answer: Result<Result<Adjusted, TakeError>, Error>) -> bool {
        match answer {
            Ok(adjusted) => self.answers[place] = Some(adjusted),
            Err(error) => {
                self.errors += 1;
                self.error.get_or_insert(error);
                return false;
            }
        }
        true
    }
}

impl<DB: Dialect> SqlStore<DB> {
    /// Makes adjustments, of several keys at a time. One that fails ends those of its own key.
    pub(super) async fn adjust_all(
        &self,
        adjustments: &[Adjustment],
    ) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        let lines = Mutex::new(Lines::of(adjustments));
        let at_once = AT_ONCE.min(lines.lock().waiting.len());
        join_all((0..at_once).map(|_| self.adjust_by_line(&lines))).await;
        let Lines { answers, error, .. } = lines.into_inner();
        match error {
            None => Ok(answers.into_iter().flatten().collect()),
            // The others have been made.
            Some(error) if answers.iter().any(Option::is_some) => Err(Error::OutcomeUnknown(Arc::new(error))),
            Some(error) => Err(error),
        }
    }

    async fn adjust_by_line(&self, lines: &Mutex<Lines<'_>>) {
        loop {
            let Some(line) = lines.lock().next() else { return };
            for (place, adjustment) in line {
                let answer = self.adjust_one(adjustment).await;
                if !lines.lock().enter(place, answer) {
                    break;
                }
            }
        }
    }

    async fn adjust_one(&self, adjustment: &Adjustment) -> Result<Result<Adjusted, TakeError>, Error> {
        let (reply, _) = self.converse(Call::Adjust(Arc::new(adjustment.clone()))).await?;
        answer::adjusted(reply, adjustment.receipt.key())
    }
}

/// Few enough to leave the host some connections of a small pool.
const AT_ONCE: usize = 4;
