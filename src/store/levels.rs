use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::quota::Refill;
use crate::{Key, Quota};

/// A bucket as people think of it, at the instant when the database was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketLevel {
    /// Whose bucket.
    pub key: Key,
    /// Its terms.
    pub quota: Quota,
    /// Whether it was provisioned, and not made by its first request.
    pub provisioned: bool,
    /// The whole tokens there; negative: promised to requests that wait for them.
    pub available: i64,
    /// All tokens that were ever granted.
    pub granted: u64,
    /// When it is full again; `None`: it is.
    pub full_at: Option<DateTime<Utc>>,
    /// When the next token comes; `None`: it is full.
    pub next_refill_at: Option<DateTime<Utc>>,
}

/// Id, capacity, nanoseconds from empty to full, refill, provisioned, available, granted, full at, next refill at.
pub(super) type Columns = (String, i64, i64, String, bool, i64, i64, Option<DateTime<Utc>>, Option<DateTime<Utc>>);

impl TryFrom<Columns> for BucketLevel {
    type Error = sqlx::Error;

    fn try_from(columns: Columns) -> Result<Self, sqlx::Error> {
        let (id, capacity, refill_ns, refill, provisioned, available, granted, full_at, next_refill_at) = columns;
        let refill = Refill::parse(&refill).ok_or_else(|| sqlx::Error::Protocol(format!("the refill {refill:?}")))?;
        let time = Duration::from_nanos(refill_ns.unsigned_abs());
        let quota =
            Quota::new(capacity.unsigned_abs(), time, refill).map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
        let key = Key::try_from(id).map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
        Ok(Self { key, quota, provisioned, available, granted: granted.unsigned_abs(), full_at, next_refill_at })
    }
}
