//! Instants in columns. sqlx's `chrono` feature would tie each host to the version of `libsqlite3-sys` that sqlx uses,
//! even a host of PostgreSQL alone.

use chrono::{DateTime, Utc};
#[cfg(feature = "mysql")]
use chrono::{NaiveDate, NaiveDateTime};
#[cfg(feature = "mysql")]
use sqlx::mysql::{MySql, MySqlValueRef};
#[cfg(feature = "postgres")]
use sqlx::postgres::{PgArgumentBuffer, PgTypeInfo, PgValueRef, Postgres, types::Oid};
#[cfg(any(feature = "postgres", feature = "mysql"))]
use sqlx::{Decode, error::BoxDynError};
#[cfg(feature = "postgres")]
use sqlx::{Encode, Type, encode::IsNull};

/// A `timestamptz` of PostgreSQL, a `datetime` in UTC of MySQL, or milliseconds since 1970 of SQLite.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instant(pub(super) DateTime<Utc>);

#[cfg(feature = "sqlite")]
impl Instant {
    pub(super) fn from_millis(milliseconds: i64) -> Option<Self> {
        DateTime::from_timestamp_millis(milliseconds).map(Self)
    }
}

#[cfg(feature = "postgres")]
impl Type<Postgres> for Instant {
    fn type_info() -> PgTypeInfo {
        const TIMESTAMPTZ: Oid = Oid(1184);
        PgTypeInfo::with_oid(TIMESTAMPTZ)
    }
}

#[cfg(feature = "postgres")]
impl Decode<'_, Postgres> for Instant {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        let microseconds = <i64 as Decode<Postgres>>::decode(value)?;
        let instant = microseconds.checked_add(YEAR_2000_US).and_then(DateTime::from_timestamp_micros);
        instant.map(Self).ok_or_else(|| format!("the instant {microseconds}").into())
    }
}

#[cfg(feature = "postgres")]
impl Encode<'_, Postgres> for Instant {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <i64 as Encode<Postgres>>::encode(self.0.timestamp_micros() - YEAR_2000_US, buffer)
    }
}

/// PostgreSQL counts microseconds from the year 2000.
#[cfg(feature = "postgres")]
const YEAR_2000_US: i64 = 946_684_800_000_000;

#[cfg(feature = "mysql")]
impl Decode<'_, MySql> for Instant {
    /// Reads the binary format: the length of the rest, then year, month, day, hour, minute, second and microseconds. Parts at the end that
    /// are zero are missing.
    fn decode(value: MySqlValueRef<'_>) -> Result<Self, BoxDynError> {
        let bytes = <&[u8] as Decode<MySql>>::decode(value)?;
        let part = |at: usize| bytes.get(at).copied().map_or(0, u32::from);
        let year = part(1) + 256 * part(2);
        let microseconds = (8..12).rev().fold(0, |sum, at| 256 * sum + part(at));
        let date = NaiveDate::from_ymd_opt(year.try_into()?, part(3), part(4));
        let instant: Option<NaiveDateTime> =
            date.and_then(|date| date.and_hms_micro_opt(part(5), part(6), part(7), microseconds));
        instant.map(|instant| Self(instant.and_utc())).ok_or_else(|| format!("the instant {bytes:?}").into())
    }
}

#[cfg(feature = "mysql")]
impl Instant {
    /// The text that MySQL reads as a `datetime`.
    pub(super) fn to_datetime(self) -> String {
        self.0.format("%Y-%m-%d %H:%M:%S%.6f").to_string()
    }
}
