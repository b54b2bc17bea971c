use super::ask::Ask;
use crate::model::answer::Answer;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
use crate::model::window::Counts;
use crate::model::{Adjusted, Adjustment, Decision, Error, Outcome, TakeError};

/// What became of an adjustment, and how many tokens were given back.
#[allow(unreachable_pub)]
pub type AdjustedColumns = (String, i64);

/// The answers to each request for one bucket, in the order of the requests, as often as each stands for one.
pub(super) fn of_each(answers: Vec<Answer>, asks: &[Ask], attempts: u32) -> Result<Vec<Outcome>, Error> {
    complete(answers.len(), asks.iter().map(|ask| ask.times).sum())?;
    let mut answers = answers.into_iter();
    let mut outcomes = Vec::with_capacity(answers.len());
    for ask in asks {
        for answer in answers.by_ref().take(usize::try_from(ask.times).unwrap_or(usize::MAX)) {
            let outcome = answer.outcome(&ask.take, 0);
            outcomes.push(outcome.map(|decision| decision.after(attempts)));
        }
    }
    Ok(outcomes)
}

/// The answers to requests for several buckets each, in the order of the requests.
pub(super) fn of_all(answers: Vec<Answer>, asks: &[Ask], attempts: u32) -> Result<Vec<Outcome>, Error> {
    let limits: usize = asks.iter().map(|ask| ask.take.limits.len()).sum();
    complete(answers.len(), limits.try_into().unwrap_or(i64::MAX))?;
    let mut answers = answers.into_iter();
    let outcome = |ask: &Ask| {
        // All of them are its own, whatever comes of the first.
        let own: Vec<Answer> = answers.by_ref().take(ask.take.limits.len()).collect();
        let decisions = own
            .into_iter()
            .enumerate()
            .map(|(place, answer)| answer.outcome(&ask.take, place).map(|decision| (place, decision)));
        let decisions = decisions.collect::<Result<Vec<_>, TakeError>>()?;
        Ok(Decision::of_all(decisions, &ask.take).expect("a request names a bucket").after(attempts))
    };
    Ok(asks.iter().map(outcome).collect())
}

/// What adjustments came to, in their order.
pub(super) fn adjusted(
    answers: Vec<AdjustedColumns>,
    adjustments: &[Adjustment],
) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
    complete(answers.len(), adjustments.len().try_into().unwrap_or(i64::MAX))?;
    let adjusted = answers.into_iter().zip(adjustments).map(|((outcome, given_back), Adjustment { receipt, .. })| {
        match outcome.as_str() {
            "done" => Ok(Ok(Adjusted::Done(given_back))),
            "late" => Ok(Ok(Adjusted::Late)),
            "repeated" => Ok(Ok(Adjusted::Repeated)),
            "unknown" => Ok(Err(TakeError::UnknownBucket(receipt.key.clone()))),
            other => Err(Error::other(sqlx::Error::Protocol(format!("the outcome {other:?}")))),
        }
    });
    adjusted.collect()
}

fn complete(answered: usize, asked: i64) -> Result<(), Error> {
    if i64::try_from(answered) != Ok(asked) {
        let lost = format!("{answered} answers to {asked} requests");
        return Err(Error::OutcomeUnknown(std::sync::Arc::new(sqlx::Error::Protocol(lost))));
    }
    Ok(())
}

/// A list of numbers in text, whatever is between them: pairs of a sub-interval's end and its count.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(super) fn parse_counts(text: &str) -> Result<Counts, sqlx::Error> {
    let numbers: Result<Vec<i64>, _> =
        text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty()).map(str::parse).collect();
    let numbers = numbers.map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
    Ok(numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
}
