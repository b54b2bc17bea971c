use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use tokio::time::Instant;

/// When those go on who wait for a bucket: nobody before those who came earlier and still wait.
#[derive(Debug, Default)]
pub(super) struct Turns(VecDeque<(Instant, Weak<()>)>);

/// A place among them, until it is dropped.
pub(super) type Place = Arc<()>;

impl Turns {
    /// The latest of those who still wait.
    pub(super) fn latest(&mut self) -> Option<Instant> {
        let has_gone = |(_, place): &mut (Instant, Weak<()>)| place.strong_count() == 0;
        while self.0.pop_front_if(has_gone).is_some() {}
        while self.0.pop_back_if(has_gone).is_some() {}
        self.0.back().map(|(turn, _)| *turn)
    }

    /// Stands behind all others, at a turn that is no earlier than theirs.
    pub(super) fn push(&mut self, turn: Instant) -> Place {
        let place = Place::default();
        self.0.push_back((turn, Arc::downgrade(&place)));
        place
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        assert_eq!((turns.latest(), turns.0.len()), (None, 0));
    }
}
