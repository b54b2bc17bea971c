//! The figures of runs, beside each other.

use std::time::Duration;

use serde_json::{Value, json};

use super::figures::{Count, Figures};
use crate::output::{Cell, Column, Table};
use crate::times;

/// What is said of a simulation.
pub(crate) struct Report<'a> {
    /// The limits as text, and what they came to.
    pub(crate) limits: &'a [(String, Figures)],
    /// How long the traffic lasted.
    pub(crate) lasted: Duration,
    /// The window that is looked for the worst of.
    pub(crate) window: Duration,
    /// The longest wait; none: the verb is allow.
    pub(crate) longest_wait: Option<Duration>,
}

impl Report<'_> {
    pub(crate) fn table(&self) -> String {
        let verb = match self.longest_wait {
            None => "allow".to_owned(),
            Some(longest) => format!("wait, at most {}", stated(longest)),
        };
        let text = format!("{} of traffic; verb: {verb}\n\n", stated(self.lasted));
        let mut table = Table::new([Column::Left(""), Column::Right(""), Column::Right("")]);
        let cells = |name: &str, cells: &[String]| {
            // Two limits at most: what is not there is empty.
            [name, cells.first().map_or("", |cell| cell), cells.get(1).map_or("", |cell| cell)].map(Cell::from)
        };
        table.row(cells("", &self.limits.iter().map(|(limit, _)| limit.clone()).collect::<Vec<_>>()));
        for (name, figures) in self.rows() {
            table.row(cells(&name, &figures));
        }
        // The columns have no headings: the first row is theirs.
        let table = table.render();
        text + table.split_once('\n').map_or("", |(_, rows)| rows)
    }

    pub(crate) fn json(&self) -> Value {
        let count = |count: Count| json!({ "requests": count.requests, "tokens": count.tokens });
        let limits = self.limits.iter().map(|(limit, figures)| {
            json!({
                "limit": limit,
                "arrived": count(figures.arrived),
                "granted": count(figures.granted),
                "denied": count(figures.denied),
                "never_possible": count(figures.never),
                "waited": count(figures.waited),
                "mean_wait_ms": times::milliseconds(figures.mean_wait()),
                "longest_wait_ms": times::milliseconds(figures.longest_wait),
                "longest_denied_ms": times::milliseconds(figures.longest_drought),
                "most_asked_in_window": figures.most_asked,
                "most_granted_in_window": figures.most_used,
            })
        });
        json!({
            "lasted_ms": times::milliseconds(self.lasted),
            "verb": if self.longest_wait.is_some() { "wait" } else { "allow" },
            "longest_wait_ms": self.longest_wait.map(times::milliseconds),
            "window_ms": times::milliseconds(self.window),
            "limits": limits.collect::<Vec<_>>(),
        })
    }

    /// Those that say something of any limit.
    fn rows(&self) -> Vec<(String, Vec<String>)> {
        let window = stated(self.window);
        let any = |of: fn(&Figures) -> bool| self.limits.iter().any(|(_, figures)| of(figures));
        let mut rows = Vec::new();
        let mut row = |name: String, cell: fn(&Figures) -> String| {
            rows.push((name, self.limits.iter().map(|(_, figures)| cell(figures)).collect()));
        };
        row("arrivals".to_owned(), |figures| figures.arrived.requests.to_string());
        row("granted".to_owned(), |figures| figures.share(figures.granted));
        row("denied".to_owned(), |figures| figures.share(figures.denied));
        if any(|figures| figures.never.requests > 0) {
            row("never possible".to_owned(), |figures| figures.share(figures.never));
        }
        if any(|figures| figures.arrived.tokens > figures.arrived.requests) {
            row("tokens asked for".to_owned(), |figures| figures.arrived.tokens.to_string());
            row("tokens granted".to_owned(), |figures| figures.granted.tokens.to_string());
        }
        if self.longest_wait.is_some() {
            row("waited".to_owned(), |figures| figures.share(figures.waited));
            row("mean wait".to_owned(), |figures| times::span(figures.mean_wait()));
            row("longest wait".to_owned(), |figures| times::span(figures.longest_wait));
        }
        row(format!("most asked for in any {window}"), |figures| figures.most_asked.to_string());
        row(format!("most granted in any {window}"), |figures| figures.most_used.to_string());
        row("longest time of denials only".to_owned(), |figures| times::span(figures.longest_drought));
        rows
    }
}

impl Figures {
    /// So many, and what part of all requests that is.
    fn share(&self, of: Count) -> String {
        #[expect(clippy::cast_precision_loss, reason = "one digit after the point")]
        let percent = of.requests as f64 * 100.0 / self.arrived.requests.max(1) as f64;
        format!("{} ({percent:.1} %)", of.requests)
    }
}

/// A time that somebody chose, as it may be written again, to the millisecond: `1m 30s`.
pub(crate) fn stated(span: Duration) -> String {
    let rounded = Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
    humantime::format_duration(if rounded.is_zero() { span } else { rounded }).to_string()
}
