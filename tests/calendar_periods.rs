//! Calendar periods: their texts, and when they begin in time zones whose clocks are set forward and back.

use chrono::DateTime;
use tollgate::model::bucket::BucketQuota;
use tollgate::model::{CalendarPeriod, QuotaError};
use tollgate::{Quota, Rule};

/// The start and the end of the period that contains an instant.
fn bounds(period: &str, now: &str) -> anyhow::Result<(String, String)> {
    let quota: Quota = format!("10 per calendar {period}").parse()?;
    let now = DateTime::parse_from_rfc3339(now)?.timestamp_nanos_opt().expect("in this era");
    let limits = BucketQuota::at(&quota, now);
    let text = |ns: i64| DateTime::from_timestamp_nanos(ns).to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
    Ok((text(limits.start.expect("a period")), text(limits.period_end)))
}

#[test]
fn period_begins_when_the_zones_clocks_show_its_start() -> anyhow::Result<()> {
    for (period, now, start, end) in [
        ("month", "2027-02-10T00:00:00Z", "2027-02-01T00:00:00Z", "2027-03-01T00:00:00Z"),
        ("month from day 31", "2027-02-10T00:00:00Z", "2027-01-31T00:00:00Z", "2027-02-28T00:00:00Z"),
        ("month from day 31", "2027-03-30T23:59:59Z", "2027-02-28T00:00:00Z", "2027-03-31T00:00:00Z"),
        ("month from day 15 08:00:30", "2027-02-15T08:00:29Z", "2027-01-15T08:00:30Z", "2027-02-15T08:00:30Z"),
        ("year from 02-29", "2027-12-31T00:00:00Z", "2027-02-28T00:00:00Z", "2028-02-29T00:00:00Z"),
        ("week", "2026-11-29T23:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"),
        ("week from sunday in +14:00", "2026-11-28T09:59:59Z", "2026-11-21T10:00:00Z", "2026-11-28T10:00:00Z"),
        ("day in -03:30", "2026-11-29T03:30:00Z", "2026-11-29T03:30:00Z", "2026-11-30T03:30:00Z"),
        // Days of 23 and of 25 hours.
        ("day in Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"),
        ("day in Europe/Berlin", "2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"),
        // The clocks skip the start, and the period begins as much later.
        ("day in America/Sao_Paulo", "2018-11-04T12:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"),
        ("day from 02:30 in Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"),
        // The clocks show the start twice, and the period begins the first time.
        ("day in America/Havana", "2026-11-01T04:30:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"),
        ("day in America/Havana", "2026-11-01T05:30:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"),
        ("day from 02:30 in Europe/Berlin", "2026-10-25T12:00:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"),
        // 30 December 2011 did not take place.
        ("day in Pacific/Apia", "2011-12-30T09:59:59Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"),
        ("day in Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"),
    ] {
        assert_eq!(bounds(period, now)?, (start.to_owned(), end.to_owned()), "{period} at {now}");
    }
    Ok(())
}

#[test]
fn period_round_trips_through_text() -> anyhow::Result<()> {
    for (text, stored) in [
        ("month", "month"),
        ("month from day 1", "month"),
        ("month from 2026-11-15T08:00Z in UTC", "month from day 15 08:00"),
        ("month from 2026-11-15T23:30Z in europe/berlin", "month from day 16 00:30 in Europe/Berlin"),
        ("month from 2026-11-15T08:00 in Europe/Berlin", "month from day 15 08:00 in Europe/Berlin"),
        ("week from Monday", "week"),
        ("week from sunday 06:30", "week from sunday 06:30"),
        ("week from 2026-11-29", "week from sunday"),
        ("day from 06:00:01 in +05:30", "day from 06:00:01 in +05:30"),
        ("year from 04-06 in Europe/London", "year from 04-06 in Europe/London"),
        ("year from 2024-02-29", "year from 02-29"),
        ("year in +00:00", "year"),
    ] {
        let period: CalendarPeriod = text.parse()?;
        assert_eq!(period.to_string(), stored, "{text}");
        assert_eq!(stored.parse::<CalendarPeriod>()?, period, "{text}");
        assert_eq!(format!("7 per calendar {stored}").parse::<Quota>()?, Quota::per_calendar(7, period)?, "{text}");
    }
    for text in ["9/month", "9/week from sunday", "9/day in Europe/Berlin", "9 / year", "9/month from day 15 08:00"] {
        let quota: Quota = text.parse()?;
        assert_eq!(quota, text.replacen('/', " per calendar ", 1).parse()?, "{text}");
        assert_eq!(Rule::try_from(text), Ok(Rule::Quota(quota)), "{text}");
    }
    // Without a start or a zone, a day is a length of time.
    assert_eq!("9/day".parse::<Quota>()?, Quota::per_day(9).build()?);
    let limits = Rule::try_from("10/s; day: 9/day from 06:00; month: 99/month from day 15 08:00 cost tokens")?;
    assert!(matches!(limits, Rule::Limits(limits) if limits.len() == 3));
    Ok(())
}

#[test]
fn invalid_period_is_an_error_that_names_it() {
    for text in [
        "",
        "fortnight",
        "month from",
        "month from day 0",
        "month from day 32",
        "month from sunday",
        "month in",
        "week from day 2",
        "week from someday",
        "day from 24:00",
        "day from 6",
        "day from sunday",
        "year from 02-30",
        "year from 13-01",
        "month day 15",
        "month from 1969-12-31",
        "month from 2201-01-01",
        "month from 2026-02-30",
        "month from 2026-11-15T08:00[Europe/Berlin]",
        "month from day 15 08:00 09:00",
    ] {
        assert_eq!(text.parse::<CalendarPeriod>(), Err(QuotaError::InvalidPeriod(text.to_owned())), "{text}");
    }
    for zone in ["Europe/Atlantis", "CET", "+15:00", "+1:00", "01:00", "+01:60", "Berlin"] {
        assert_eq!(CalendarPeriod::MONTH.in_zone(zone), Err(QuotaError::UnknownZone(zone.to_owned())), "{zone}");
    }
    assert!("0/month".parse::<Quota>().is_err());
    assert!(matches!("86400000000001/day in +01:00".parse::<Quota>(), Err(QuotaError::TooFast { .. })));
}

#[test]
fn start_is_that_of_a_subscription() -> anyhow::Result<()> {
    let signed_up = std::time::SystemTime::from(DateTime::parse_from_rfc3339("2026-01-31T22:15:00Z")?);
    let billed = CalendarPeriod::MONTH.in_zone("Asia/Tokyo")?.starting_at(signed_up)?;
    assert_eq!(billed.to_string(), "month from day 1 07:15 in Asia/Tokyo");
    let before_1970 = std::time::SystemTime::from(DateTime::parse_from_rfc3339("1969-06-01T00:00:00Z")?);
    assert!(matches!(CalendarPeriod::MONTH.starting_at(before_1970), Err(QuotaError::InvalidPeriod(_))));
    Ok(())
}
