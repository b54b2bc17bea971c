//! Waits for the scheduled time of a request, and gives the tokens back if a signal ends the wait.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tollgate::{Decision, Error, Limiter, Reservation, Store, Take};

use crate::output::complain;
use crate::output::progress;
use crate::signals::{EndingSignal, Signals};
use crate::text::plain;
use crate::{failure, times};

/// The outcome of a request.
pub(crate) enum WaitOutcome {
    /// The request is denied, or its tokens can be used now.
    Decided(Decision),
    /// A signal ended the wait.
    Interrupted(EndingSignal),
}

/// Requests tokens, and returns at their scheduled time or when the request is denied.
///
/// The signal handlers are installed before the request, because an unhandled signal would end the process without giving the
/// tokens back. During a long wait, `disconnect` closes the database connections.
pub(crate) async fn reserve_and_wait<S: Store>(
    limiter: &Limiter<S>,
    take: &Take,
    signals: &mut Signals,
    disconnect: impl Future<Output = ()>,
) -> anyhow::Result<WaitOutcome> {
    let mut reserving = pin!(limiter.reserve_request(take));
    let reservation = tokio::select! {
        biased;
        ended = signals.next() => {
            finish_in_time(async { give_back(reserving.await?, take.get_cost()).await }).await;
            return Ok(WaitOutcome::Interrupted(ended));
        }
        reservation = &mut reserving => reservation?,
    };
    let decision = reservation.decision().clone();
    let Some(delay) = reservation.delay() else { return Ok(WaitOutcome::Decided(decision)) };
    let bar = (!delay.is_zero())
        .then(|| progress(format!("{}: a token in {}", plain(take.key().as_str()), times::span(delay))));
    let disconnect = async {
        if delay > MIN_DISCONNECT_WAIT {
            disconnect.await;
        }
    };
    let interrupted = tokio::select! {
        biased;
        ended = signals.next() => Some(ended),
        // Polled even without a delay, to receive signals that arrived during the request.
        _ = async { tokio::join!(sleep(delay), disconnect) } => None,
    };
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let Some(ended) = interrupted else { return Ok(WaitOutcome::Decided(decision)) };
    finish_in_time(give_back(reservation, take.get_cost())).await;
    Ok(WaitOutcome::Interrupted(ended))
}

/// Gives the tokens back before a signal ends the CLI. Reports a failure, but does not stop the exit.
async fn finish_in_time(refund: impl Future<Output = anyhow::Result<()>>) {
    match timeout(CANCEL_TIMEOUT, refund).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) if !is_outcome_unknown(&error) => drop(failure::report(&error)),
        Ok(Err(_)) | Err(_) => {
            complain("the database does not answer: whether tokens were taken, or given back, is unknown");
        }
    }
}

fn is_outcome_unknown(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(Error::is_outcome_unknown)
}

/// Gives the tokens back, and prints how many of them count as used.
async fn give_back<S: Store>(reservation: Reservation<S>, cost: u64) -> anyhow::Result<()> {
    let Some(delay) = reservation.delay() else { return Ok(()) };
    if delay.is_zero() {
        // The scheduled time has come, so nothing is left to cancel. A refund is limited to the cost.
        reservation.refund(ALL).await?;
    } else {
        let kept = cost.saturating_sub(reservation.cancel().await?);
        if kept > 0 {
            complain(&format!(
                "others queue behind it, or its scheduled time has come: {kept} of {cost} tokens count as used"
            ));
        }
    }
    Ok(())
}

/// A shorter wait keeps the connections open, because connecting again costs more.
const MIN_DISCONNECT_WAIT: Duration = Duration::from_secs(1);

const ALL: u64 = i64::MAX.unsigned_abs();

/// Bounds how long an interrupted CLI waits for a slow database.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);
