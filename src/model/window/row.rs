use super::{Counted, MOST_REQUESTS, Ring, Window};
use crate::model::Mode;
use crate::model::answer::Word;
use crate::model::bucket::{Receipt, Request};
use crate::model::decide::{Account, Held, State};

/// A sliding window as a store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WindowRow {
    /// The terms that it was last counted under.
    pub(crate) window: Window,
    pub(crate) ring: Ring,
}

/// Decides a request, in the mode that holds until an instant; a denial changes nothing.
pub(crate) fn decide(
    row: &mut WindowRow,
    window: &Window,
    request: Request,
    (mode, until): (Mode, Option<i64>),
    held: Option<Held>,
    now: i64,
) -> Counted {
    let answer = |word, row: &WindowRow| Counted { mode, ..Counted::new(word, now, now, &row.ring) };
    if mode == Mode::Off {
        return answer(Word::Granted, row);
    }
    row.ring.step_back(now);
    if let Some(held) = held {
        let same = held.receipt.cost == request.cost && held.state != State::Cancelled;
        let word = if same { Word::Granted } else { Word::Reused };
        return Counted::new(word, now, held.receipt.acts_at.max(now), &row.ring);
    }
    if mode == Mode::Block {
        return Counted { acts_at: until, ..answer(Word::Denied, row) };
    }
    if request.cost > window.most() - request.keep {
        return answer(Word::Never, row);
    }
    // In shadow nobody waits.
    let max_wait = if mode == Mode::Shadow { 0 } else { request.max_wait };
    match row.ring.take(window, now, Request { max_wait, ..request }) {
        Some(acts_at) => {
            row.window = *window;
            Counted::new(Word::Granted, now, acts_at, &row.ring)
        }
        None if mode == Mode::Shadow => answer(Word::Granted, row),
        None => answer(Word::Denied, row),
    }
}

impl WindowRow {
    /// A window that nothing was counted in yet.
    pub(crate) fn new(window: Window, now: i64) -> Self {
        let (resolution_ns, kept_ns) = (window.resolution_ns, window.interval_ns);
        Self { window, ring: Ring { resolution_ns, kept_ns, since: now, ..Ring::default() } }
    }

    /// The terms that the SQL stores know: the longest interval since it was empty, and the newest sub-interval's resolution.
    pub(crate) fn terms(&self) -> Window {
        Window::stored(self.window.most, self.ring.kept_ns, self.ring.resolution_ns)
    }

    /// Whether nothing counts in it any more.
    pub(crate) fn is_empty(&self, now: i64) -> bool {
        self.ring.empty_at(&self.window) <= now
    }

    /// Counts requests now, whatever the maximum, unless everything passes or is denied.
    pub(crate) fn count_now(
        &mut self,
        window: &Window,
        (mode, until): (Mode, Option<i64>),
        cost: i64,
        now: i64,
    ) -> Counted {
        if mode != Mode::Off {
            self.ring.step_back(now);
        }
        let counts = matches!(mode, Mode::Enforce | Mode::Shadow);
        if counts && cost > 0 {
            self.ring.count(window, now, self.next(now), cost.min(MOST_REQUESTS));
            self.window = *window;
        }
        let counted = Counted { mode, ..Counted::new(Word::Granted, now, now, &self.ring) };
        if mode == Mode::Block { Counted { word: Word::Denied, acts_at: until, ..counted } } else { counted }
    }

    /// Now, or when the requests act that were granted last.
    fn next(&self, now: i64) -> i64 {
        self.ring.counts.last().map_or(now, |(end, _)| now.max(end - self.ring.resolution_ns))
    }
}

impl Account for WindowRow {
    const MOST: i64 = MOST_REQUESTS;

    fn cancel(&mut self, receipt: &Receipt, _: i64) -> Option<i64> {
        Some(self.ring.give_back(receipt.acts_at, receipt.cost))
    }

    fn refund(&mut self, receipt: &Receipt, tokens: i64) {
        self.ring.give_back(receipt.acts_at, tokens);
    }

    fn charge(&mut self, now: i64, tokens: i64, _: i64) {
        let window = self.terms();
        self.ring.step_back(now);
        self.ring.count(&window, now, self.next(now), tokens);
    }
}
