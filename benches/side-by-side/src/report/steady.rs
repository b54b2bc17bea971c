use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use plotters::prelude::*;
use serde::Serialize;

use super::panel;
use super::style::labelled;
use crate::goals::Bound;
use crate::statistics::median;
use crate::steady::Stretch;

/// Writes `steady.json`, `steady.md` and `steady.svg`, and returns the table.
pub(crate) fn write(stretches: &[Stretch], directory: &Path) -> anyhow::Result<String> {
    let goals = judge(stretches);
    let text = markdown(stretches, &goals);
    let json = serde_json::json!({ "goals": goals, "stretches": stretches });
    fs::write(directory.join("steady.json"), serde_json::to_string_pretty(&json)?)?;
    fs::write(directory.join("steady.md"), &text)?;
    fs::write(directory.join("steady.svg"), chart(stretches)?)?;
    Ok(text)
}

#[derive(Debug, Serialize)]
struct Judged {
    goal: &'static str,
    measured: f64,
    met: bool,
}

/// Compares later stretches with the first. By the end of the first, every row has been updated and the table has its
/// size.
fn judge(stretches: &[Stretch]) -> Vec<Judged> {
    let (Some(first), Some(last)) = (stretches.first(), stretches.last()) else { return Vec::new() };
    let third = stretches.len().div_ceil(3);
    let speed = |stretches: &[Stretch]| median(stretches.iter().map(|stretch| stretch.per_second));
    let updates: i64 = stretches.iter().map(|stretch| stretch.updates).sum();
    let hot: i64 = stretches.iter().map(|stretch| stretch.hot_updates).sum();
    let bytes =
        |stretch: &Stretch| ratio(last.table_bytes + last.index_bytes, stretch.table_bytes + stretch.index_bytes);
    let goals = [
        ("heap-only updates ÷ updates ≥ 0.99", ratio(hot, updates), Bound::AtLeast(0.99)),
        ("bytes of table and index, last ÷ first stretch ≤ 1.05", bytes(first), Bound::AtMost(1.05)),
        (
            "decisions a second, last ÷ first third ≥ 0.95",
            speed(&stretches[stretches.len() - third..]) / speed(&stretches[..third]),
            Bound::AtLeast(0.95),
        ),
    ];
    goals.map(|(goal, measured, bound)| Judged { goal, measured, met: bound.holds(measured) }).into()
}

fn markdown(stretches: &[Stretch], goals: &[Judged]) -> String {
    let mut text = "# Steady load on PostgreSQL: half of it on one key, half on many\n\n\
         | minutes | thousand/s | p99 ms | table MB | index MB | heap-only | dead rows | vacuums | WAL bytes a grant |\n\
         |---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for stretch in stretches {
        let _ = writeln!(
            text,
            "| {:.1} | {:.1} | {:.2} | {:.1} | {:.1} | {:.4} | {} | {} | {:.0} |",
            stretch.minutes,
            stretch.per_second / 1e3,
            stretch.p99_ms,
            megabytes(stretch.table_bytes),
            megabytes(stretch.index_bytes),
            ratio(stretch.hot_updates, stretch.updates),
            stretch.dead_rows,
            stretch.vacuums,
            stretch.wal_per_grant,
        );
    }
    let _ = writeln!(text, "\n| goal | measured | met? |\n|---|---|---|");
    for judged in goals {
        let met = if judged.met { "yes" } else { "no" };
        let _ = writeln!(text, "| {} | {:.4} | {met} |", judged.goal, judged.measured);
    }
    text
}

fn chart(stretches: &[Stretch]) -> anyhow::Result<String> {
    let line = |of: &dyn Fn(&Stretch) -> f64| {
        let points = stretches.iter().map(|stretch| (stretch.minutes, of(stretch))).collect();
        vec![("tollgate@postgres", points)]
    };
    let panels = [
        ("thousand decisions a second", line(&|stretch| stretch.per_second / 1e3)),
        ("MB of table and index", line(&|stretch| megabytes(stretch.table_bytes + stretch.index_bytes))),
        ("heap-only updates, %", line(&|stretch| 100.0 * ratio(stretch.hot_updates, stretch.updates))),
        ("WAL bytes a grant", line(&|stretch| stretch.wal_per_grant)),
    ];
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (1080, 640)).into_drawing_area();
        area.fill(&WHITE)?;
        for (plot, (title, series)) in area.split_evenly((2, 2)).iter().zip(&panels) {
            panel::course(plot, ("minutes", title), series)?;
        }
        area.present()?;
    }
    let description = panels.iter().map(|(title, _)| *title).collect::<Vec<_>>().join("; ");
    Ok(labelled(&svg, "An hour of load on PostgreSQL", &format!("By minutes: {description}.")))
}

#[expect(clippy::cast_precision_loss, reason = "a share is no more precise")]
fn ratio(part: i64, of: i64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}

fn megabytes(bytes: i64) -> f64 {
    ratio(bytes, 1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(per_second: f64, table_bytes: i64, hot_updates: i64) -> Stretch {
        Stretch {
            minutes: 0.5,
            per_second,
            p99_ms: 1.0,
            table_bytes,
            index_bytes: 0,
            dead_rows: 0,
            updates: 1000,
            hot_updates,
            vacuums: 0,
            wal_per_grant: 100.0,
        }
    }

    fn met(stretches: &[Stretch]) -> Vec<bool> {
        judge(stretches).iter().map(|judged| judged.met).collect()
    }

    #[test]
    fn steady_series_meets_goals_and_growing_series_does_not() {
        assert_eq!(met(&[stretch(10.0, 100, 999), stretch(10.0, 105, 990), stretch(9.5, 105, 990)]), [true; 3]);
        assert_eq!(met(&[stretch(10.0, 100, 990), stretch(10.0, 105, 990), stretch(9.4, 106, 989)]), [false; 3]);
    }
}
