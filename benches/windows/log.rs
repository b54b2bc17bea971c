use anyhow::Context;

use crate::{Mode, window};

/// All requests of all processes: when each was decided, in microseconds, and whether it was granted.
#[derive(Default)]
pub(crate) struct Log {
    granted: Vec<i64>,
    denied: Vec<i64>,
}

impl Log {
    pub(crate) const HEADER: &'static str = "\
        | mode | requests ÷ maximum | granted | beyond the maximum | by at most | denied | with room | room, mean |\n\
        |---|---|---|---|---|---|---|---|";

    /// What a process printed.
    pub(crate) fn read(&mut self, lines: &str) -> anyhow::Result<()> {
        for line in lines.lines() {
            let (at, granted) = line.split_once(' ').with_context(|| format!("'{line}'"))?;
            let requests = if granted == "true" { &mut self.granted } else { &mut self.denied };
            requests.push(at.parse()?);
        }
        Ok(())
    }

    /// A line of the table.
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    pub(crate) fn line(mut self, mode: Mode, load: f64) -> String {
        self.granted.sort_unstable();
        let window = window().expect("it is one");
        let most = i64::try_from(window.max_requests()).expect("a hundred");
        let interval = i64::try_from(window.interval().as_micros()).expect("seconds");
        // So many were granted in the interval that ends then.
        let seen = |at: i64| {
            let before = |at| self.granted.partition_point(|granted| *granted <= at);
            i64::try_from(before(at) - before(at - interval)).expect("thousands")
        };
        let beyond: Vec<i64> = self.granted.iter().map(|at| seen(*at) - most).filter(|beyond| *beyond > 0).collect();
        let room: Vec<i64> = self.denied.iter().map(|at| most - seen(*at)).filter(|room| *room > 0).collect();
        let share = |part: usize, all: usize| 100.0 * part as f64 / all.max(1) as f64;
        let mean = room.iter().sum::<i64>() as f64 / room.len().max(1) as f64;
        format!(
            "| {} | {load} | {} | {} ({:.1} %) | {} | {} | {} ({:.1} %) | {mean:.1} |",
            if mode == Mode::Exact { "exact" } else { "local reads" },
            self.granted.len(),
            beyond.len(),
            share(beyond.len(), self.granted.len()),
            beyond.iter().max().unwrap_or(&0),
            self.denied.len(),
            room.len(),
            share(room.len(), self.denied.len()),
        )
    }
}
