//! Which pictures there are, and the story that they tell. It is lived and drawn as by the command `tollgate simulate`.

use std::time::Duration;

use tollgate::{Quota, Rule, Window};

#[path = "../../../src/simulate/draw/mod.rs"]
mod draw;
#[path = "../../../src/simulate/run.rs"]
mod run;
#[path = "../../../src/simulate/traffic.rs"]
mod traffic;

use run::SimulatedLimit;
use traffic::{Arrival, Traffic};

/// The requests of the story, under one rule.
pub(crate) struct Picture {
    pub(crate) name: &'static str,
    title: &'static str,
    limit: SimulatedLimit,
}

/// One line makes a picture. All but one let a token pass each second in the long run.
pub(crate) fn pictures() -> anyhow::Result<Vec<Picture>> {
    Ok(vec![
        Picture::of("interval", "5 each 5 s, from when the bucket was made", Quota::interval(5, FIVE_SECONDS)?)
            .provisioned(),
        Picture::of("calendar", "5 each 5 s of the calendar", Quota::calendar(5, FIVE_SECONDS)?),
        Picture::of("large-burst", "1 a second, evenly, burst 5", Quota::per_second(1).burst(5).build()?),
        Picture::of("small-burst", "1 a second, evenly, burst 1", Quota::per_second(1).build()?),
        Picture::of("wait", "1 a second, evenly, burst 1, waiting for up to 5 s", Quota::per_second(1).build()?)
            .wait(FIVE_SECONDS),
        Picture::of(
            "window",
            "5 in any 5 s, counted in seconds",
            Window::new(5, FIVE_SECONDS, Duration::from_secs(1))?,
        ),
        Picture::of("once", "8 once", Quota::once(8)?),
    ])
}

impl Picture {
    fn of(name: &'static str, title: &'static str, rule: impl Into<Rule>) -> Self {
        let limit = SimulatedLimit { rule: rule.into(), provisioned: false, max_wait: Duration::ZERO };
        Self { name, title, limit }
    }

    /// The bucket is there before the first request.
    fn provisioned(self) -> Self {
        Self { limit: SimulatedLimit { provisioned: true, ..self.limit }, ..self }
    }

    /// Each request would wait so long.
    fn wait(self, max_wait: Duration) -> Self {
        Self { limit: SimulatedLimit { max_wait, ..self.limit }, ..self }
    }

    /// Simulates the traffic, and draws the result.
    pub(crate) async fn svg(&self) -> anyhow::Result<String> {
        let story = story();
        let run = self.limit.run(&story).await?;
        draw::svg(&story, &mut [(self.title.to_owned(), run)]).await
    }
}

/// A burst, a second burst right after it, a steady stream, a pause, and a last burst. All waiting requests are granted by the
/// end.
fn story() -> Traffic {
    let burst = |from: i64, requests: i64| (0..requests).map(move |n| from + n * 200);
    let times = burst(3_800, 6).chain(burst(5_200, 6)).chain((0..9).map(|n| 8_000 + n * 500)).chain(burst(17_200, 8));
    let arrivals = times.map(|ms| Arrival { at: START + ms * 1_000_000, cost: 1, client: 0 }).collect();
    Traffic { arrivals, begin: START, end: START + 24 * SECOND_NS, clients: Vec::new(), skipped: 0 }
}

const FIVE_SECONDS: Duration = Duration::from_secs(5);
const SECOND_NS: i64 = 1_000_000_000;

/// Three seconds into a window aligned to the calendar, so that the next window begins two seconds into the traffic.
const START: i64 = 1_800_000_003 * SECOND_NS;
