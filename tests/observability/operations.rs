//! `ops/` and `docs/observability.md` name exactly the metrics that the crate emits.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, ensure};
use tollgate_tests::recorded::recorder;

/// Metric names in a text, without the suffixes that Prometheus adds for histograms.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter| !is_of_a_name(letter));
    let name = |word: &str| {
        let suffixes = ["_bucket", "_sum", "_count"];
        let base = suffixes.iter().find_map(|suffix| word.strip_suffix(suffix)).unwrap_or(word);
        base.to_owned()
    };
    words.filter(|word| word.starts_with("tollgate_")).map(name).collect()
}

fn read(path: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).context(path.to_owned())
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
async fn metrics_named_by_dashboard_and_alerts_are_emitted() -> anyhow::Result<()> {
    let (emitted, scrape) = emitted().await?;
    for file in ["ops/dashboard.json", "ops/alerts.yml", "ops/alerts.test.yml"] {
        let named = names(&read(file)?);
        ensure!(named.len() > 5, "{file} names {named:?}");
        // Those of the local server are not the library's.
        let is_librarys = |name: &&String| !name.starts_with("tollgate_serve_");
        let missing: Vec<_> = named.difference(&emitted).filter(is_librarys).collect();
        ensure!(missing.is_empty(), "{file} names {missing:?}, which is not in\n{scrape}");
    }
    Ok(())
}

/// A query with a label or a value that does not exist returns nothing, and no error.
#[tokio::test]
async fn labels_and_values_named_by_queries_are_emitted() -> anyhow::Result<()> {
    let (_, scrape) = emitted().await?;
    for (file, queries) in [("ops/dashboard.json", dashboard()?), ("ops/alerts.yml", alerts()?)] {
        ensure!(queries.len() > 5, "{file} has {} queries", queries.len());
        for Query { expr, shown } in queries {
            let selected = selected(&expr);
            ensure!(!selected.is_empty(), "{file}: {expr} is of no metric");
            for (metric, matched) in &selected {
                for pair in matched {
                    ensure!(has(&scrape, metric, pair), "{file}: no {metric} has {pair}: {expr}\n{scrape}");
                }
            }
            let grouped: Vec<&str> = expr.split(" by (").skip(1).filter_map(|rest| rest.split(')').next()).collect();
            let grouped: Vec<&str> = grouped.iter().flat_map(|labels| labels.split(',')).map(str::trim).collect();
            for label in &grouped {
                let known = selected.iter().any(|(metric, _)| has(&scrape, metric, &format!("{label}=\"")));
                ensure!(known, "{file}: none of its metrics has the label {label}: {expr}");
            }
            // Prometheus adds the scraped instance.
            let own = if grouped.is_empty() { &["instance"][..] } else { &grouped };
            let lost: Vec<_> = shown.iter().filter(|label| !own.contains(&label.as_str())).collect();
            ensure!(lost.is_empty(), "{file}: the result of {expr} has no {lost:?}");
        }
    }
    // Checks the input series of the rules' tests, too.
    for (metric, given) in selected(&read("ops/alerts.test.yml")?) {
        for pair in given {
            let label = pair.split('=').next().unwrap_or_default();
            let known = label == "instance" || has(&scrape, metric, &format!("{label}=\""));
            ensure!(known, "ops/alerts.test.yml: no {metric} has the label {label}");
        }
    }
    Ok(())
}

/// A Prometheus query, and the labels of its result that panels or alerts show.
struct Query {
    expr: String,
    shown: Vec<String>,
}

fn dashboard() -> anyhow::Result<Vec<Query>> {
    let dashboard: serde_json::Value = serde_json::from_str(&read("ops/dashboard.json")?)?;
    let panels = dashboard["panels"].as_array().context("panels")?;
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let query = |target: &serde_json::Value| {
        let legend = target["legendFormat"].as_str().unwrap_or_default();
        let shown = words_after(legend, "{{");
        anyhow::Ok(Query { expr: target["expr"].as_str().context("expr")?.to_owned(), shown })
    };
    targets.map(query).collect()
}

fn alerts() -> anyhow::Result<Vec<Query>> {
    let text = read("ops/alerts.yml")?;
    let query = |rule: &str| {
        let (expr, rest) = rule.split_once("expr:").and_then(|(_, rest)| rest.split_once(" for:")).context("a rule")?;
        anyhow::Ok(Query { expr: expr.to_owned(), shown: words_after(rest, "$labels.") })
    };
    text.split("- alert:").skip(1).map(query).collect()
}

/// The word that follows each occurrence of `mark`.
fn words_after(text: &str, mark: &str) -> Vec<String> {
    let word = |rest: &str| rest.chars().take_while(|letter| is_of_a_name(*letter)).collect();
    text.split(mark).skip(1).map(word).collect()
}

/// The metrics of a query, and its label matchers: `outcome="denied"`, or `limiter="` for a pattern.
fn selected(expr: &str) -> Vec<(&str, Vec<String>)> {
    let metric = |(at, _): (usize, &str)| {
        let end = expr[at..].find(|letter| !is_of_a_name(letter)).map_or(expr.len(), |length| at + length);
        let braces = expr[end..].strip_prefix('{').and_then(|rest| rest.split('}').next());
        let pairs = braces.into_iter().flat_map(|pairs| pairs.split(',')).map(str::trim).map(|pair| {
            match pair.split_once("=~") {
                Some((label, _)) => format!("{label}=\""),
                None => pair.replace("!=", "="),
            }
        });
        (&expr[at..end], pairs.collect())
    };
    expr.match_indices("tollgate_").map(metric).collect()
}

/// Whether one of the metric's series has the label pair.
fn has(scrape: &str, metric: &str, pair: &str) -> bool {
    scrape
        .lines()
        .any(|line| line.strip_prefix(metric).is_some_and(|rest| rest.starts_with('{') && rest.contains(pair)))
}

fn is_of_a_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

#[tokio::test]
async fn emitted_metrics_are_described_documented_and_on_dashboard() -> anyhow::Result<()> {
    let (emitted, scrape) = emitted().await?;
    let (dashboard, documented) = (names(&read("ops/dashboard.json")?), names(&read("docs/observability.md")?));
    for name in &emitted {
        ensure!(scrape.contains(&format!("# HELP {name} ")), "{name} is not described");
        ensure!(dashboard.contains(name), "{name} is not on the dashboard");
        ensure!(documented.contains(name), "{name} is not in docs/observability.md");
    }
    let unknown: Vec<_> = documented.difference(&emitted).collect();
    ensure!(unknown.is_empty(), "docs/observability.md names {unknown:?}");
    Ok(())
}

#[tokio::test]
async fn documentation_lists_each_metrics_kind_and_labels() -> anyhow::Result<()> {
    let (emitted, scrape) = emitted().await?;
    let page = read("docs/observability.md")?;
    let rows = page.lines().filter(|line| line.starts_with("| `tollgate_"));
    let mut listed = 0;
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, _] = cells[..] else { anyhow::bail!("a row of another kind: {row}") };
        let (name, labels) =
            (name.trim_matches('`'), labels.split(", ").map(|label| label.trim_matches('`').to_owned()));
        ensure!(scrape.contains(&format!("# TYPE {name} {kind}\n")), "{name} is no {kind}");
        let labels: BTreeSet<String> = labels.filter(|label| !label.is_empty()).collect();
        assert_eq!(labels_of(name, &scrape), labels, "of {name}");
        listed += 1;
    }
    assert_eq!(listed, emitted.len());
    Ok(())
}

/// The labels of all series of a metric, except `le`, which Prometheus adds for histogram buckets.
fn labels_of(metric: &str, scrape: &str) -> BTreeSet<String> {
    let series = scrape.lines().filter(|line| names(line).contains(metric) && !line.starts_with('#'));
    let braces = series.filter_map(|line| line.split_once('{')?.1.split_once('}'));
    // The text between quotes is a value.
    let labels = braces.flat_map(|(pairs, _)| pairs.split('"').step_by(2));
    let labels = labels.map(|label| label.trim_matches([',', '=']).to_owned());
    labels.filter(|label| !label.is_empty() && label != "le").collect()
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
