use anyhow::Context;

use crate::{Mode, window};

/// All requests of all processes, in microseconds. Each was decided between its request and its answer.
#[derive(Default)]
pub(crate) struct Log {
    /// When granted requests were sent. `granted` has the times of their answers.
    requested: Vec<i64>,
    granted: Vec<i64>,
    /// When denied requests were answered.
    denied: Vec<i64>,
}

impl Log {
    pub(crate) const HEADER: &'static str = "\
        | mode | requests ÷ maximum | granted | beyond the maximum | by at most | denied | with room | room, mean |\n\
        |---|---|---|---|---|---|---|---|";

    /// Reads the output of a process.
    pub(crate) fn read(&mut self, lines: &str) -> anyhow::Result<()> {
        for line in lines.lines() {
            let mut parts = line.split(' ');
            let mut next = || parts.next().with_context(|| format!("'{line}'"));
            let (requested, answered, granted) = (next()?.parse()?, next()?.parse()?, next()? == "true");
            if granted {
                self.requested.push(requested);
                self.granted.push(answered);
            } else {
                self.denied.push(answered);
            }
        }
        Ok(())
    }

    /// Formats a line of the table.
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    pub(crate) fn line(mut self, mode: Mode, load: f64) -> String {
        self.requested.sort_unstable();
        self.granted.sort_unstable();
        let window = window().expect("it is one");
        let most = i64::try_from(window.max_requests()).expect("a hundred");
        let interval = i64::try_from(window.interval().as_micros()).expect("seconds");
        let until = |times: &[i64], at| times.partition_point(|time| *time <= at);
        // The number of grants in the interval that ends at a time: the certain ones, or also the possible ones.
        let seen = |at: i64, before: &[i64]| {
            i64::try_from(until(&self.granted, at).saturating_sub(until(before, at - interval))).expect("thousands")
        };
        let beyond = self.granted.iter().map(|at| seen(*at, &self.requested) - most);
        let beyond: Vec<i64> = beyond.filter(|beyond| *beyond > 0).collect();
        let room = self.denied.iter().map(|at| most - seen(*at, &self.granted));
        let room: Vec<i64> = room.filter(|room| *room > 0).collect();
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
