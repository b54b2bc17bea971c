use sqlx::Pool;

use super::examine::Examine;
use super::report::DoctorReport;
use crate::lock_timeout::with_lock_timeout;
use crate::output::progress;
use crate::text::{counted, operand, plain, quoted};

/// The number of buckets for each missing plan. Requests for these buckets fail unless they name other limits.
pub(crate) struct OrphanedBuckets {
    /// The most followed first.
    plans: Vec<(String, u64)>,
    rows_read: u64,
}

impl OrphanedBuckets {
    /// Counts the buckets of missing plans, as if the plan `deleted` were missing too. Reads at most `MAX_BUCKETS`, so that an
    /// operator need not wait for a large table.
    pub(crate) async fn find<DB: Examine>(pool: &Pool<DB>, deleted: Option<&str>) -> anyhow::Result<Self> {
        let bar = progress("looking for buckets whose plan is missing");
        // No plan has an empty name.
        let counts = with_lock_timeout(DB::count_orphans(pool, MAX_BUCKETS, deleted.unwrap_or_default())).await;
        bar.finish_and_clear();
        let counts = counts?;
        Ok(Self::of(counts.into_iter().map(|(plan, buckets)| (plan, u64::try_from(buckets).unwrap_or(0))).collect()))
    }

    /// Of the counts by absent plan, and of those buckets that follow none.
    fn of(counts: Vec<(Option<String>, u64)>) -> Self {
        let rows_read = counts.iter().map(|(_, buckets)| buckets).sum();
        // A further limit that was removed from its plan leaves buckets behind, which no request names.
        let is_plan =
            |(plan, buckets): (Option<String>, u64)| Some((plan.filter(|plan| !plan.contains('\u{1}'))?, buckets));
        let mut plans: Vec<_> = counts.into_iter().filter_map(is_plan).collect();
        plans.sort_unstable_by(|(one, more), (other, fewer)| fewer.cmp(more).then_with(|| one.cmp(other)));
        Self { plans, rows_read }
    }

    /// Describes the buckets that follow a plan. `None`: no bucket does.
    pub(crate) fn followers(&self, name: &str) -> Option<String> {
        let part = self.part();
        match self.buckets(name) {
            0 if self.is_all() => None,
            0 => Some(format!("no bucket{part} follows it")),
            1 => Some(format!("1 bucket{part} follows it")),
            buckets => Some(format!("{buckets} buckets{part} follow it")),
        }
    }

    /// Describes the buckets that a deleted plan leaves behind, and the commands that make the plan again.
    pub(crate) fn of_deleted(&self, name: &str, recreate: &str) -> Option<String> {
        let consequence = match self.buckets(name) {
            0 => format!("`tollgate list --plan {}` looks through all", quoted(name)),
            1 => format!("its requests fail from now on; to make it again: {recreate}"),
            _ => format!("their requests fail from now on; to make it again: {recreate}"),
        };
        self.followers(name).map(|followers| format!("{followers}: {consequence}"))
    }

    /// The number of buckets that follow a plan. `None`: not all were counted.
    pub(crate) fn count(&self, name: &str) -> Option<u64> {
        self.is_all().then(|| self.buckets(name))
    }

    pub(crate) fn buckets(&self, name: &str) -> u64 {
        self.plans.iter().find(|(plan, _)| plan == name).map_or(0, |(_, buckets)| *buckets)
    }

    pub(super) fn report_to(&self, report: &mut DoctorReport) {
        let Some((largest, _)) = self.plans.first() else {
            report.ok("plans", format!("each plan that a bucket{} follows exists", self.part()));
            return;
        };
        let all: u64 = self.plans.iter().map(|(_, buckets)| buckets).sum();
        let follow = if all == 1 { "follows a plan that is" } else { "follow plans that are" };
        let first = self.plans.iter().take(MAX_NAMES).map(|(plan, buckets)| format!("{} ({buckets})", plain(plan)));
        let more = self.plans.len().saturating_sub(MAX_NAMES);
        let more = (more > 0).then(|| format!("and {more} more"));
        let names = first.chain(more).collect::<Vec<_>>().join(", ");
        let buckets = counted(all, "bucket");
        let found = format!("{buckets}{} {follow} not there, and requests for them fail: {names}", self.part());
        let advice = format!(
            "make it again with its limits: `{}`; `tollgate list --plan NAME` shows its buckets",
            recreate_command(largest, "QUOTA")
        );
        report.warn("plans", found, advice);
    }

    fn is_all(&self) -> bool {
        self.rows_read < MAX_BUCKETS.unsigned_abs()
    }

    /// Of which, if not of all.
    fn part(&self) -> String {
        if self.is_all() { String::new() } else { format!(" of the {MAX_BUCKETS} looked at") }
    }
}

/// The command that makes a plan.
pub(crate) fn recreate_command(name: &str, quota: &str) -> String {
    if quota.contains(';') {
        let limits: Vec<String> = quota.split(';').map(|limit| quoted(limit.trim())).collect();
        return format!("tollgate plan set {} {}", operand(name), limits.join(" "));
    }
    format!("tollgate plan set --quota {} {}", quoted(quota), operand(name))
}

/// A second's work, or a few.
const MAX_BUCKETS: i64 = 1_000_000;

/// As many as a line has room for.
const MAX_NAMES: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn description(counts: &[(Option<&str>, u64)]) -> (&'static str, String) {
        let counts = counts.iter().map(|(plan, buckets)| (plan.map(str::to_owned), *buckets));
        let mut report = DoctorReport::default();
        OrphanedBuckets::of(counts.collect()).report_to(&mut report);
        (report.status(), report.found("plans").to_owned())
    }

    #[test]
    fn most_missed_plans_are_named_first_with_a_count() {
        assert_eq!(description(&[]), ("ok", "each plan that a bucket follows exists".to_owned()));
        assert_eq!(
            description(&[(None, 7), (Some("gold"), 1)]),
            ("warn", "1 bucket follows a plan that is not there, and requests for them fail: gold (1)".to_owned())
        );
        let (status, found) = description(&[
            (Some("a"), 1),
            (Some("f"), 2),
            (Some("b"), 9),
            (Some("c"), 1),
            (Some("d"), 1),
            (Some("e"), 1),
        ]);
        assert_eq!(status, "warn");
        assert!(found.starts_with("15 buckets follow plans that are not there"), "{found}");
        assert!(found.ends_with(": b (9), f (2), a (1), c (1), d (1), and 1 more"), "{found}");
    }

    #[test]
    fn unscanned_table_is_reported() {
        let (_, found) = description(&[(None, 999_990), (Some("gold"), 10)]);
        assert!(found.starts_with("10 buckets of the 1000000 looked at follow plans"), "{found}");
        let left = |buckets| OrphanedBuckets::of(vec![(None, buckets)]).of_deleted("gold", "tollgate plan set");
        assert_eq!(left(999_999), None);
        let sought = "no bucket of the 1000000 looked at follows it: `tollgate list --plan gold` looks through all";
        assert_eq!(left(1_000_000).as_deref(), Some(sought));
        assert_eq!(
            description(&[(None, 1_000_000)]).1,
            "each plan that a bucket of the 1000000 looked at follows exists"
        );
    }
}
