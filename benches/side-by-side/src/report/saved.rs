//! Draws charts from the results of earlier runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Deserialize;

use super::ratios::ByWorkload;
use super::{dots, growth};
use crate::growth::Curve;
use crate::statistics::Row;

/// A file of results: of growth, of a workload, or a whole report.
#[derive(Deserialize)]
#[serde(untagged)]
enum Saved {
    Growth(Vec<Curve>),
    Workload {
        workload: String,
        rows: Vec<Row>,
    },
    Report {
        #[serde(rename = "ratios_to_redis_by_engine")]
        ratios: BTreeMap<String, ByWorkload>,
    },
}

/// Draws NAME.svg from each NAME.json of a directory.
pub(crate) fn draw_all(directory: &Path) -> anyhow::Result<()> {
    for (path, svg) in charts(directory)? {
        fs::write(&path, svg)?;
        println!("{}", path.display());
    }
    Ok(())
}

/// The paths of the charts, and the charts.
fn charts(directory: &Path) -> anyhow::Result<Vec<(PathBuf, String)>> {
    let mut charts = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "json") {
            let svg = chart(&path).with_context(|| path.display().to_string())?;
            charts.push((path.with_extension("svg"), svg));
        }
    }
    Ok(charts)
}

fn chart(path: &Path) -> anyhow::Result<String> {
    match serde_json::from_str(&fs::read_to_string(path)?)? {
        Saved::Growth(curves) => growth::chart(&curves),
        Saved::Report { ratios } => dots::ratios(&ratios),
        Saved::Workload { workload, rows } => {
            let tasks = rows.iter().map(|row| row.tasks).find(|tasks| *tasks == HEADLINE);
            let tasks = tasks.or_else(|| rows.first().map(|row| row.tasks)).context("no rows")?;
            dots::throughput(&workload, &rows, tasks)
        }
    }
}

/// The number of tasks of the charts in the documentation.
const HEADLINE: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_charts_match_their_results() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/charts");
        let charts = charts(&directory).expect("the results");
        for (path, svg) in &charts {
            let kept = fs::read_to_string(path).expect("a chart");
            assert!(kept == *svg, "{}: run tollgate-side-by-side --draw docs/charts", path.display());
        }
        let files = fs::read_dir(directory).expect("a directory").count();
        assert_eq!(files, 2 * charts.len(), "a chart without results");
    }
}
