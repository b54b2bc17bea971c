//! The metrics that a Prometheus server would scrape.

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

/// A recorder for one test's thread, set up as in `docs/observability.md`.
pub fn recorder() -> anyhow::Result<PrometheusRecorder> {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &[0.001, 0.1, 10.0])?
        .set_buckets_for_metric(Matcher::Suffix("_requests".into()), &[1.0, 10.0, 100.0])?;
    Ok(builder.build_recorder())
}

/// The value of the only series of `name` that has these labels.
pub fn value(handle: &PrometheusHandle, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let scrape = handle.render();
    let mut series = scrape.lines().filter(|line| {
        let end = |line: &str| line.starts_with(['{', ' ']);
        let pair = |(name, value): &(&str, &str)| line.contains(&format!("{name}=\"{value}\""));
        line.strip_prefix(name).is_some_and(end) && labels.iter().all(pair)
    });
    let found = series.next()?;
    assert_eq!(series.next(), None, "more than one {name} with {labels:?}");
    found.rsplit(' ').next()?.parse().ok()
}
