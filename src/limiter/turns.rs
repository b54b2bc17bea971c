use std::collections::VecDeque;
use std::mem::{replace, take};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::{Instant, timeout_at};

/// When those go on who wait for a bucket: nobody before those who came earlier and still wait.
#[derive(Debug, Default)]
pub(super) struct Turns {
    waiting: VecDeque<(Instant, Weak<()>)>,
    /// As many as there may be until those are looked for who have gone from among them.
    most: usize,
    last: Ahead,
}

impl Turns {
    /// The latest of those who still wait.
    pub(super) fn latest(&mut self) -> Option<Instant> {
        let has_gone = |(_, place): &mut (Instant, Weak<()>)| place.strong_count() == 0;
        while self.waiting.pop_front_if(has_gone).is_some() {}
        while self.waiting.pop_back_if(has_gone).is_some() {}
        self.waiting.back().map(|(turn, _)| *turn)
    }

    /// Stands behind all others, at a turn that is no earlier than theirs.
    pub(super) fn push(&mut self, turn: Instant) -> Place {
        if self.waiting.len() >= self.most {
            self.waiting.retain(|(_, place)| place.strong_count() > 0);
            self.most = 2 * self.waiting.len().max(FEW);
        }
        let (behind, ahead) = oneshot::channel();
        let still = Arc::default();
        self.waiting.push_back((turn, Arc::downgrade(&still)));
        Place { ahead: replace(&mut self.last, Ahead(Some(ahead))), behind: Some(behind), _still: still }
    }
}

/// A place among them, until it is dropped. Then whoever is behind goes on, or stands behind those ahead of it.
#[derive(Debug)]
pub(super) struct Place {
    ahead: Ahead,
    behind: Option<oneshot::Sender<Ahead>>,
    _still: Arc<()>,
}

impl Place {
    /// Whose turn has come lets those go on who are ahead, whose turns have come as well: timers wake many at once, and threads
    /// take them in any order. Who is not polled by then holds nobody up for long, nor beyond what they would wait.
    pub(super) async fn is_first(&mut self, longest: Option<Instant>) {
        if self.ahead.is_there() {
            let polled = Instant::now() + LONGEST_GOING_ON;
            drop(timeout_at(longest.map_or(polled, |longest| longest.min(polled)), self.ahead.goes_on()).await);
        }
        // For those behind it has gone.
        self.ahead = Ahead::default();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.ahead.is_there()
            && let Some(behind) = self.behind.take()
        {
            drop(behind.send(take(&mut self.ahead)));
        }
    }
}

/// Who is next in line ahead, if anybody is: it tells when it goes on, or whom it was behind when it leaves.
#[derive(Debug, Default)]
struct Ahead(Option<oneshot::Receiver<Self>>);

impl Ahead {
    /// Whether somebody is there still.
    fn is_there(&mut self) -> bool {
        while let Some(ahead) = &mut self.0 {
            match ahead.try_recv() {
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Closed) => self.0 = None,
                Ok(mut further) => self.0 = further.0.take(),
            }
        }
        false
    }

    /// Returns once all have gone on.
    async fn goes_on(&mut self) {
        while let Some(ahead) = &mut self.0 {
            self.0 = ahead.await.ok().and_then(|mut further| further.0.take());
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        // One after the other: thousands who left may stand in each other's.
        while let Some(mut ahead) = self.0.take() {
            self.0 = ahead.try_recv().ok().and_then(|mut further| further.0.take());
        }
    }
}

/// So few are no matter.
const FEW: usize = 32;

/// A task that others keep from being polled is late by as much.
const LONGEST_GOING_ON: Duration = Duration::from_millis(25);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_leaves_puts_nobody_off() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        let at = |s| now + Duration::from_secs(s);
        let [first, second, last] = [1, 2, 30].map(|s| turns.push(at(s)));
        assert_eq!(turns.latest(), Some(at(30)));
        drop(last);
        assert_eq!(turns.latest(), Some(at(2)));
        drop(first);
        assert_eq!(turns.latest(), Some(at(2)));
        drop(second);
        assert_eq!((turns.latest(), turns.waiting.len()), (None, 0));
    }

    #[test]
    fn who_stays_does_not_have_those_remembered_who_have_gone() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        let _stays = turns.push(now);
        let mut last = turns.push(now);
        for _ in 0..10_000 {
            last = turns.push(now);
            assert!(turns.waiting.len() <= 2 * FEW);
        }
        drop(last);
    }

    #[test]
    fn those_who_leave_in_whatever_order_leave_the_line_as_it_was() {
        for seed in 0..4 {
            let (mut turns, now) = (Turns::default(), Instant::now());
            let first = turns.push(now);
            let mut leaving: Vec<Place> = (0..100_000).map(|_| turns.push(now)).collect();
            let mut last = turns.push(now);
            match seed {
                0 => leaving.reverse(),
                1 => {}
                seed => fastrand::Rng::with_seed(seed).shuffle(&mut leaving),
            }
            leaving.into_iter().for_each(drop);
            assert!(last.ahead.is_there());
            drop(first);
            assert!(!last.ahead.is_there());
        }
    }
}
