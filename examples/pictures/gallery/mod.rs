//! Which pictures there are.

use std::time::Duration;

use tollgate::{Quota, Rule, Window};

mod draw;
mod run;

/// The requests of the story, under one rule.
pub(crate) struct Picture {
    pub(crate) name: &'static str,
    title: &'static str,
    rule: Rule,
    provisioned: bool,
    longest_wait: Duration,
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
        Self { name, title, rule: rule.into(), provisioned: false, longest_wait: Duration::ZERO }
    }

    /// The bucket is there before the first request.
    fn provisioned(self) -> Self {
        Self { provisioned: true, ..self }
    }

    /// Each request would wait so long.
    fn wait(self, longest_wait: Duration) -> Self {
        Self { longest_wait, ..self }
    }

    /// Lives the story, and draws it.
    pub(crate) async fn svg(&self) -> anyhow::Result<String> {
        draw::svg(self.title, &run::requests(self).await?, &run::tokens(self).await?)
    }
}

const FIVE_SECONDS: Duration = Duration::from_secs(5);
