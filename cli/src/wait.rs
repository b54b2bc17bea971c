//! Waits for a turn; whoever stops waiting gives the tokens back.

use std::io::Write as _;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tollgate::{Decision, Error, Limiter, Reservation, Store, Take};

use crate::output::{plain, progress};
use crate::signals::{EndingSignal, Signals};
use crate::{exit, times};

/// What became of a request.
pub(crate) enum WaitOutcome {
    /// It is denied, or its tokens may be used now.
    Decided(Decision),
    /// A signal came before, and no token is used.
    Interrupted(EndingSignal),
}

/// Asks for tokens, and returns when they may be used.
///
/// Signals are listened for before the database promises anything: one that nobody hears would keep what is promised. Who has
/// long to wait goes to rest meanwhile.
pub(crate) async fn turn<S: Store>(
    limiter: &Limiter<S>,
    take: &Take,
    signals: &mut Signals,
    resting: impl Future<Output = ()>,
) -> anyhow::Result<WaitOutcome> {
    let mut asking = pin!(limiter.reserve_all(take));
    let reservation = tokio::select! {
        biased;
        ended = signals.next() => {
            leave(async { give_back(asking.await?, take.tokens()).await }).await;
            return Ok(WaitOutcome::Interrupted(ended));
        }
        reservation = &mut asking => reservation?,
    };
    let decision = reservation.decision().clone();
    if !decision.is_granted() {
        return Ok(WaitOutcome::Decided(decision));
    }
    let delay = reservation.delay();
    let bar = (!delay.is_zero())
        .then(|| progress(format!("{}: a token in {}", plain(take.key().as_str()), times::span(delay))));
    let resting = async {
        if delay > MIN_DISCONNECT_WAIT {
            resting.await;
        }
    };
    let interrupted = tokio::select! {
        biased;
        ended = signals.next() => Some(ended),
        // Even without a delay: what came meanwhile is heard.
        _ = async { tokio::join!(sleep(delay), resting) } => None,
    };
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let Some(ended) = interrupted else { return Ok(WaitOutcome::Decided(decision)) };
    leave(give_back(reservation, take.tokens())).await;
    Ok(WaitOutcome::Interrupted(ended))
}

/// What is done before a signal ends the program, which it does whatever comes of that.
async fn leave(giving_back: impl Future<Output = anyhow::Result<()>>) {
    match timeout(CANCEL_TIMEOUT, giving_back).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) if !is_outcome_unknown(&error) => drop(exit::failed(&error)),
        Ok(Err(_)) | Err(_) => {
            complain("the database does not answer: whether tokens were taken, or given back, is unknown");
        }
    }
}

fn is_outcome_unknown(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(Error::is_outcome_unknown)
}

/// Says so if not all that the request cost comes back.
async fn give_back<S: Store>(reservation: Reservation<S>, cost: u64) -> anyhow::Result<()> {
    if !reservation.is_granted() {
        return Ok(());
    }
    if reservation.delay().is_zero() {
        // Its turn has come, so there is nothing to cancel; no more than it cost comes back.
        reservation.refund(ALL).await?;
    } else {
        let kept = cost.saturating_sub(reservation.cancel().await?);
        if kept > 0 {
            complain(&format!("others queue behind it, or its turn has come: {kept} of {cost} tokens count as used"));
        }
    }
    Ok(())
}

/// A line on standard error.
pub(crate) fn complain(text: &str) {
    // What cannot be written, nobody reads.
    let _ = writeln!(anstream::stderr(), "tollgate: {text}");
}

/// It is worth another connection, if there is to be one.
const MIN_DISCONNECT_WAIT: Duration = Duration::from_secs(1);

const ALL: u64 = i64::MAX.unsigned_abs();

/// Whoever interrupts wants to be rid of this program, even if the database is slow.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);
