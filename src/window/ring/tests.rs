use super::{MOST_AHEAD, MOST_COUNTS, Ring};
use crate::bucket::Request;
use crate::window::Window;

const MS: i64 = 1_000_000;
const START: i64 = 1_700_000_000_000_000_000;

/// At most so many in so many milliseconds, counted in so many.
fn window(most: i64, interval: i64, resolution: i64) -> Window {
    Window::stored(most, interval * MS, resolution * MS)
}

fn ask(ring: &mut Ring, window: &Window, now: i64, cost: i64, max_wait: i64) -> Option<i64> {
    ring.step_back(now);
    ring.take(window, now, Request { cost, keep: 0, max_wait })
}

#[test]
fn no_turn_is_promised_that_would_begin_a_part_beyond_the_thousandth_and_each_can_be_cancelled() {
    let (window, mut ring) = (window(2, 10, 10), Ring::default());
    let mut turns = Vec::new();
    while let Some(at) = ask(&mut ring, &window, START, 1, 3_600_000 * MS) {
        turns.push(at);
    }
    assert_eq!((ring.counts.len(), turns.len()), (MOST_AHEAD, 2 * MOST_AHEAD), "the last part is promised in full");
    assert_eq!(ask(&mut ring, &window, START + 9 * MS, 1, 3_600_000 * MS), None);
    assert!(ask(&mut ring, &window, START + 10 * MS, 1, 3_600_000 * MS).is_some(), "one has passed");
    for at in turns.into_iter().filter(|at| *at > START) {
        assert_eq!(ring.give_back(at, 1), 1);
    }
}

#[test]
fn what_finer_parts_leave_no_room_for_counts_for_a_sixteenth_longer_at_most() {
    let (long, fine) = (window(i64::MAX, 3_600_000, 60_000), window(1_000_000, 1000, 1));
    let (mut ring, mut turns, mut now) = (Ring::default(), Vec::new(), START);
    assert!(ask(&mut ring, &long, now, 1, 0).is_some());
    for _ in 0..15_000 {
        now += 500 * MS;
        assert!(ask(&mut ring, &fine, now, 1, 0).is_some());
        turns.push(now);
    }
    assert_eq!(ring.counts.len(), MOST_COUNTS);
    for interval in [long.interval_ns, 60_000 * MS, fine.interval_ns] {
        let counted = ring.counted(&Window { interval_ns: interval, ..long }, now);
        let acted = |span: i64| i64::try_from(turns.iter().filter(|at| **at > now - span).count()).expect("few");
        assert!(counted >= acted(interval));
        assert!(counted <= acted(interval + interval / 16 + fine.resolution_ns), "{counted} in {interval}");
    }
}
