use super::{MOST_AHEAD, MOST_COUNTS, Ring};
use crate::model::bucket::Request;
use crate::model::window::Window;

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

/// Every grant is checked against a log of all that were granted and not given back: whatever the terms of the others, no
/// more than the maximum act later than an interval before.
#[test]
fn no_grant_exceeds_the_maximum_whatever_was_promised_given_back_or_asked_under_other_terms() {
    let mut most_counts = 0;
    for seed in 0..4 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mixed = seed % 2 == 0;
        let [line, fine, long] = [window(2, 20, 1), window(150, 20, 1), window(6000, 60_000, 60)];
        let (mut ring, mut turns, mut now) = (Ring { since: START, ..Ring::default() }, Vec::new(), START);
        for _ in 0..9000 {
            now += if random.u16(..) < 8 { random.i64(0..90_000 * MS) } else { random.i64(0..2 * MS) };
            let window = if !mixed {
                &line
            } else if random.u8(..) < 8 {
                &long
            } else {
                &fine
            };
            let cost = random.i64(1..3);
            let max_wait = [0, 0, 3 * MS, 90_000 * MS][random.usize(..if mixed { 3 } else { 4 })];
            if let Some(at) = ask(&mut ring, window, now, cost, max_wait) {
                let counted = turns.iter().filter(|(other, _)| *other > at - window.interval_ns).map(|(_, cost)| cost);
                let counted: i64 = counted.sum();
                assert!(counted + cost <= window.most, "{counted} and {cost} of {window:?}, seed {seed}");
                turns.push((at, cost));
            }
            if !turns.is_empty() && random.u8(..) < 90 {
                // Sometimes one that acted long ago.
                let recent = 1 << random.u8(..12);
                let place = turns.len() - 1 - random.usize(..turns.len().min(recent));
                let (at, cost) = turns.swap_remove(place);
                let given_back = ring.give_back(at, cost);
                assert!(given_back <= cost);
                if given_back < cost {
                    turns.push((at, cost - given_back));
                }
            }
            turns.retain(|(at, _)| *at > now - 120_000 * MS);
            most_counts = ring.counts.len().max(most_counts);
            assert!(ring.counts.is_sorted_by(|(one, _), (next, _)| one < next));
        }
    }
    assert_eq!(most_counts, MOST_COUNTS);
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

#[test]
fn what_may_be_forgotten_gives_nothing_back_in_a_part_of_others() {
    let (fine, coarse) = (window(10, 10_000, 1000), window(10, 10_000, 10_000));
    let mut ring = Ring::default();
    let first = ask(&mut ring, &fine, START + 500 * MS, 1, 0).expect("the first");
    assert!(ask(&mut ring, &fine, START + 1500 * MS, 9, 0).is_some());
    assert!(ask(&mut ring, &coarse, START + 11_200 * MS, 1, 0).is_some());
    assert_eq!(ring.give_back(first, 1), 0);
    assert_eq!(ask(&mut ring, &coarse, START + 11_400 * MS, 1, 0), None);
}

#[test]
fn what_acted_under_a_coarser_resolution_than_the_last_is_given_back() {
    let (fine, coarse) = (window(10, 10_000, 1000), window(10, 10_000, 10_000));
    let mut ring = Ring::default();
    let first = ask(&mut ring, &coarse, START, 4, 0).expect("the first");
    assert!(ask(&mut ring, &fine, START + 10_500 * MS, 1, 0).is_some());
    assert_eq!(ring.resolution_ns, fine.resolution_ns);
    assert_eq!(ring.give_back(first, 4), 4);
}

#[test]
fn a_clock_set_back_locks_nobody_out_for_what_was_waited_long_before() {
    let (window, hour) = (window(1, 1000, 100), 3_600_000 * MS);
    let mut ring = Ring::default();
    for _ in 0..900 {
        assert!(ask(&mut ring, &window, START, 1, 2 * hour).is_some());
    }
    let later = START + 1000 * hour;
    assert!(ask(&mut ring, &window, later, 1, 0).is_some());
    assert_eq!(ask(&mut ring, &window, later - hour / 4, 1, 0), None);
    let next = ring.earliest(&window, 0, later - hour / 4) - (later - hour / 4);
    assert!(next <= 1100 * MS, "{next} ns");
}

#[test]
fn what_acted_before_a_clock_was_set_back_gives_nothing_back_of_what_came_after() {
    let window = window(10, 60_000, 1000);
    let mut ring = Ring { since: START, ..Ring::default() };
    let first = ask(&mut ring, &window, START, 10, 0).expect("there is room");
    assert_eq!(ask(&mut ring, &window, START - 100_000 * MS, 10, 0), None);
    assert!(ask(&mut ring, &window, START + 200 * MS, 10, 0).is_some());
    assert_eq!(ring.give_back(first, 10), 0);
    assert_eq!(ask(&mut ring, &window, START + 300 * MS, 1, 0), None);
}

#[test]
fn no_count_or_sum_of_counts_overflows() {
    let (coarse, mut ring) = (window(1, 3_600_000, 1000), Ring::default());
    for second in 0..3 {
        ring.count(&coarse, START, START + second * 1000 * MS, i64::MAX - 1);
        ring.count(&coarse, START, START + second * 1000 * MS, i64::MAX - 1);
    }
    assert_eq!(ring.counted(&coarse, START), i64::MAX);
    assert_eq!(ring.estimate(&coarse, START), i64::MAX);
    assert!(ring.earliest(&coarse, 0, START) > START);
}
