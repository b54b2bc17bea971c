//! What `ops/` and `docs/seeing.md` name is what the crate emits.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, ensure};

use crate::recorded::recorder;

/// Names of metrics in a text, without what Prometheus adds to those of a histogram.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let name = |word: &str| {
        let suffixes = ["_bucket", "_sum", "_count"];
        let base = suffixes.iter().find_map(|suffix| word.strip_suffix(suffix)).unwrap_or(word);
        base.to_owned()
    };
    words.filter(|word| word.starts_with("tollgate_")).map(name).collect()
}

fn read(path: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).context(path.to_owned())
}

async fn emitted() -> anyhow::Result<(BTreeSet<String>, String)> {
    let recorder = recorder()?;
    let (handle, _guard) = (recorder.handle(), metrics::set_default_local_recorder(&recorder));
    crate::exercise(&handle).await?;
    let scrape = handle.render();
    let samples: Vec<&str> = scrape.lines().filter(|line| !line.starts_with('#')).collect();
    Ok((names(&samples.join("\n")), scrape))
}

#[tokio::test]
async fn every_metric_that_the_dashboard_and_the_alerts_name_is_emitted() -> anyhow::Result<()> {
    let (emitted, scrape) = emitted().await?;
    for file in ["ops/dashboard.json", "ops/alerts.yml", "ops/alerts.test.yml"] {
        let named = names(&read(file)?);
        ensure!(named.len() > 5, "{file} names {named:?}");
        let missing: Vec<_> = named.difference(&emitted).collect();
        ensure!(missing.is_empty(), "{file} names {missing:?}, which is not in\n{scrape}");
    }
    // Labels too: a query by one that does not exist finds nothing, and says nothing.
    for query in read("ops/dashboard.json")?.lines().filter(|line| line.contains("\"expr\"")) {
        let grouped = query.split(" by (").skip(1).filter_map(|rest| rest.split(')').next());
        let matched = query.split('{').skip(1).filter_map(|rest| rest.split('}').next());
        for label in grouped.chain(matched).flat_map(|labels| labels.split(',')) {
            let label = label.split(['=', '!']).next().unwrap_or(label).trim();
            ensure!(scrape.contains(&format!("{label}=\"")), "no metric has the label {label}: {query}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn every_metric_that_is_emitted_is_described_and_on_the_dashboard_and_in_the_documentation() -> anyhow::Result<()>
{
    let (emitted, scrape) = emitted().await?;
    let (dashboard, documented) = (names(&read("ops/dashboard.json")?), names(&read("docs/seeing.md")?));
    for name in &emitted {
        ensure!(scrape.contains(&format!("# HELP {name} ")), "{name} is not described");
        ensure!(dashboard.contains(name), "{name} is not on the dashboard");
        ensure!(documented.contains(name), "{name} is not in docs/seeing.md");
    }
    let unknown: Vec<_> = documented.difference(&emitted).collect();
    ensure!(unknown.is_empty(), "docs/seeing.md names {unknown:?}");
    Ok(())
}

#[test]
fn the_dashboard_is_json_and_each_panel_has_a_place_of_its_own() -> anyhow::Result<()> {
    let dashboard: serde_json::Value = serde_json::from_str(&read("ops/dashboard.json")?)?;
    let panels = dashboard["panels"].as_array().context("panels")?;
    let places: BTreeSet<String> = panels.iter().map(|panel| panel["gridPos"].to_string()).collect();
    let ids: BTreeSet<u64> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
    assert_eq!((places.len(), ids.len()), (panels.len(), panels.len()));
    Ok(())
}
