//! The checks that each engine defines.

use sqlx::Pool;
use sqlx::error::DatabaseError;

use super::report::DoctorReport;
use crate::blockers::Blockers;
use crate::clock::ServerClock;

/// The checks of one engine.
pub(crate) trait Examine: Blockers + ServerClock {
    fn examine(pool: &Pool<Self>, report: &mut DoctorReport) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Compares what follows from other rows, or must be there, with what is: a restore or a cleaner may have left it out.
    fn content(pool: &Pool<Self>, report: &mut DoctorReport) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Returns the remedy for a refused call, if the check knows one.
    fn remedy(
        pool: &Pool<Self>,
        error: &dyn DatabaseError,
    ) -> impl Future<Output = Result<Option<String>, sqlx::Error>> + Send;

    /// Counts the buckets of each missing plan, as if the plan `deleted` were missing too. Reads `most` buckets. `None` counts
    /// the buckets that follow another plan or none.
    fn count_orphans(
        pool: &Pool<Self>,
        most: i64,
        deleted: &str,
    ) -> impl Future<Output = Result<Vec<(Option<String>, i64)>, sqlx::Error>> + Send;
}
