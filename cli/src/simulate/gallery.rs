//! The pictures of `docs/choosing.md`: the same requests under one rule after another, drawn as by `tollgate simulate`.
//!
//! The library decides the requests in memory, on a simulated clock, so a picture is the same wherever it is drawn.

use std::path::Path;
use std::time::Duration;

use tollgate::{Quota, Rule, Window};

use super::draw;
use super::run::SimulatedLimit;
use super::traffic::{Arrival, Traffic};

/// Compares the pictures in `docs/pictures`, or draws them there if `TOLLGATE_DRAW` is set.
#[tokio::test]
async fn pictures_match_the_code() -> anyhow::Result<()> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let text = std::fs::read_to_string(docs.join("choosing.md"))?;
    let pictures = pictures()?;
    for picture in &pictures {
        let file = format!("pictures/{}.svg", picture.name);
        assert!(text.contains(&file), "docs/choosing.md does not show {file}");
        let drawn = picture.svg().await?;
        if std::env::var_os("TOLLGATE_DRAW").is_some() {
            std::fs::write(docs.join(&file), &drawn)?;
        }
        let kept = std::fs::read_to_string(docs.join(&file))?;
        assert!(drawn == kept, "docs/{file} is another: TOLLGATE_DRAW=1 cargo test -p tollgate-cli gallery");
    }
    // The `live` tests compare the pictures of `docs/cli.md`.
    let others = std::fs::read_to_string(docs.join("cli.md"))?.matches("](pictures/").count();
    assert_eq!(
        std::fs::read_dir(docs.join("pictures"))?.count(),
        pictures.len() + others + BY_HAND.len(),
        "a picture that nothing draws"
    );
    Ok(())
}

/// The pictures that no command draws.
const BY_HAND: [&str; 6] = ["connections", "layers", "outage", "reservation", "roles", "shared-bucket"];

/// The requests of the story, under one rule.
struct Picture {
    name: &'static str,
    title: &'static str,
    limit: SimulatedLimit,
}

/// One line makes a picture. All but one let a token pass each second in the long run.
fn pictures() -> anyhow::Result<Vec<Picture>> {
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
    async fn svg(&self) -> anyhow::Result<String> {
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
