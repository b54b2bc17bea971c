//! Calendar periods: days, weeks, months and years in a time zone, and their form as text.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{Offset, TimeZone};
use jiff::{Timestamp, ToSpan as _};
use parking_lot::RwLock;

use crate::model::QuotaError;

/// Periods of the calendar in a time zone: days, weeks, months or years. Default zone: UTC.
///
/// A period begins when the zone's clocks first show its start. A start that a change to daylight saving time skips is as much
/// later as the clocks are set forward. In a month or year without its day, a period begins on the month's last day.
///
/// As text: `day`, `week`, `month` or `year`, then `from` and a start, then `in` and a zone.
///
/// | text | periods begin |
/// |---|---|
/// | `month` | on the first day of each month, at midnight in UTC |
/// | `month from day 15 in Europe/Berlin` | on day 15, at midnight in Berlin |
/// | `month from day 31 08:00` | on the last day, at 08:00 in UTC |
/// | `week from sunday` | on Sunday; default: Monday |
/// | `day from 06:00 in America/New_York` | at 6 in the morning in New York |
/// | `year from 04-06 in Europe/London` | on 6 April in London |
///
/// A start can also be a date or an instant, such as a subscription's: `month from 2026-11-15T08:00Z`. A zone is `UTC`, a name of
/// the IANA database with a slash, or an offset such as `+01:00`.
///
/// ```
/// use tollgate::{Quota, model::CalendarPeriod};
///
/// let monthly = Quota::per_calendar(100_000, CalendarPeriod::MONTH.in_zone("Europe/Berlin")?)?;
/// assert_eq!(monthly.to_string(), "100000 per calendar month in Europe/Berlin");
/// assert_eq!("100000/month in Europe/Berlin".parse::<Quota>()?, monthly);
///
/// let billed: CalendarPeriod = "month from 2026-11-15T08:00Z".parse()?;
/// assert_eq!(billed.to_string(), "month from day 15 08:00");
/// # Ok::<(), tollgate::model::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CalendarPeriod {
    unit: Unit,
    zone: Zone,
    /// Seconds from the start of the calendar's unit to the start of the period, on the zone's clocks. Those of a year are
    /// counted in a leap year.
    start: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Unit {
    Day,
    Week,
    Month,
    Year,
}

/// The place of a time zone in `ZONES`, so that a quota can be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Zone(u16);

/// The zones of this process's periods, with their names. A zone is never removed: about 600 names and 1,681 offsets exist.
static ZONES: LazyLock<RwLock<Vec<(String, TimeZone)>>> =
    LazyLock::new(|| RwLock::new(vec![("UTC".to_owned(), TimeZone::UTC)]));

const UTC: Zone = Zone(0);

impl CalendarPeriod {
    /// Days in UTC.
    pub const DAY: Self = Self { unit: Unit::Day, zone: UTC, start: 0 };
    /// Weeks from Monday in UTC.
    pub const WEEK: Self = Self { unit: Unit::Week, zone: UTC, start: 0 };
    /// Months in UTC.
    pub const MONTH: Self = Self { unit: Unit::Month, zone: UTC, start: 0 };
    /// Years in UTC.
    pub const YEAR: Self = Self { unit: Unit::Year, zone: UTC, start: 0 };

    /// Sets the time zone: a name of the IANA database, or an offset such as `+01:00`.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such zone.
    pub fn in_zone(self, name: &str) -> Result<Self, QuotaError> {
        Ok(Self { zone: Zone::find(name)?, ..self })
    }

    /// Sets the start to an instant, such as the start of a subscription: months then begin on its day and at its time in the
    /// zone.
    ///
    /// # Errors
    ///
    /// Returns an error if the instant is before 1970 or after 2200.
    pub fn starting_at(self, instant: std::time::SystemTime) -> Result<Self, QuotaError> {
        let out_of_range = || QuotaError::InvalidPeriod(format!("{self} from {instant:?}"));
        let instant = Timestamp::try_from(instant).map_err(|_| out_of_range())?;
        self.starting_on(self.zone.clock(instant)).ok_or_else(out_of_range)
    }

    /// Returns the nanoseconds of a usual period: 24 hours, 7 days, or the average month or year.
    pub(crate) const fn usual_ns(self) -> i64 {
        let seconds = match self.unit {
            Unit::Day => DAY,
            Unit::Week => 7 * DAY,
            Unit::Month => 2_629_746,
            Unit::Year => 31_556_952,
        };
        seconds as i64 * SECOND_NS
    }

    /// Returns the start and the end of the period that contains an instant, in nanoseconds since 1970.
    pub(crate) fn bounds(self, now: i64) -> (i64, i64) {
        let zone = self.zone.zone();
        let clock = zone.to_datetime(instant(now));
        // The zone's clocks can be set back over a start, so the period that they show can be a neighbour of the one that counts.
        let starts = (-1..=2).filter_map(|units| {
            let start = zone.to_ambiguous_timestamp(self.start_at(clock.date(), units)?).compatible().ok()?;
            i64::try_from(start.as_nanosecond()).ok()
        });
        let (mut from, mut to) = (i64::MIN, i64::MAX);
        for start in starts {
            if start <= now {
                from = from.max(start);
            } else {
                to = to.min(start);
            }
        }
        (from, to)
    }

    /// The start of the period in the calendar's unit that contains a date, or `units` later.
    fn start_at(self, date: Date, units: i32) -> Option<DateTime> {
        let (days, seconds) = (self.start / DAY, self.start % DAY);
        let first = match self.unit {
            Unit::Day => date.checked_add(units.days()).ok()?,
            Unit::Week => {
                let monday = date.checked_sub(i32::from(date.weekday().to_monday_zero_offset()).days()).ok()?;
                monday.checked_add(units.weeks()).ok()?.checked_add(i64::from(days).days()).ok()?
            }
            Unit::Month => on_day(date.first_of_month().checked_add(units.months()).ok()?, days),
            Unit::Year => {
                let (month, day) = self.day_of_year();
                let year = i16::try_from(i32::from(date.year()) + units).ok()?;
                on_day(Date::new(year, month, 1).ok()?, day - 1)
            }
        };
        Some(first.to_datetime(time(seconds)))
    }

    /// The month and the day of a year's start.
    fn day_of_year(self) -> (i8, u32) {
        let date = LEAP_YEAR.checked_add(i64::from(self.start / DAY).days()).unwrap_or(LEAP_YEAR);
        (date.month(), date.day().unsigned_abs().into())
    }

    /// These periods with a start at this time of the zone's clocks.
    fn starting_on(self, start: DateTime) -> Option<Self> {
        if !(1970..=2200).contains(&start.year()) {
            return None;
        }
        let days = match self.unit {
            Unit::Day => 0,
            Unit::Week => start.weekday().to_monday_zero_offset().unsigned_abs().into(),
            Unit::Month => u32::from(start.day().unsigned_abs()) - 1,
            Unit::Year => days_of_leap_year(start.month(), start.day())?,
        };
        let time = start.time();
        let seconds = (i32::from(time.hour()) * 60 + i32::from(time.minute())) * 60 + i32::from(time.second());
        Some(Self { start: days * DAY + seconds.unsigned_abs(), ..self })
    }

    /// Parses a start: `day 15`, `sunday`, `04-06`, each with a time or without, `06:00`, or a date or an instant.
    fn parse_start(self, words: &[&str]) -> Option<Self> {
        let with_days = |days: u32, time: &[&str]| match time {
            [] => Some(Self { start: days * DAY, ..self }),
            [time] => Some(Self { start: days * DAY + parse_time(time)?, ..self }),
            _ => None,
        };
        match (self.unit, words) {
            (_, [moment]) if moment.len() >= 10 && !moment.contains('[') => self.parse_moment(moment),
            (Unit::Day, [time]) => with_days(0, &[time]),
            (Unit::Week, [day, time @ ..]) => {
                let place = WEEKDAYS.iter().position(|name| name.eq_ignore_ascii_case(day))?;
                with_days(u32::try_from(place).ok()?, time)
            }
            (Unit::Month, ["day", day, time @ ..]) => {
                let day = parse_number(day, 2).filter(|day| (1..=31).contains(day))?;
                with_days(day - 1, time)
            }
            (Unit::Year, [day, time @ ..]) => {
                let (month, day) = day.split_once('-')?;
                let number = |digits| i8::try_from(parse_number(digits, 2)?).ok();
                with_days(days_of_leap_year(number(month)?, number(day)?)?, time)
            }
            _ => None,
        }
    }

    /// Parses a date, a date with a time on the zone's clocks, or an instant.
    fn parse_moment(self, text: &str) -> Option<Self> {
        match text.parse::<Timestamp>() {
            Ok(instant) => self.starting_on(self.zone.clock(instant)),
            Err(_) => self.starting_on(text.parse().ok()?),
        }
    }
}

impl Zone {
    fn find(name: &str) -> Result<Self, QuotaError> {
        let zone = match parse_offset(name) {
            Some(Offset::UTC) => return Ok(UTC),
            Some(offset) => TimeZone::fixed(offset),
            // A server reads `CET` as an abbreviation without daylight saving time.
            None if name == "UTC" => return Ok(UTC),
            None => match TimeZone::get(name) {
                Ok(zone) if name.contains('/') => zone,
                _ => return Err(QuotaError::UnknownZone(name.chars().take(60).collect())),
            },
        };
        let name = zone.iana_name().unwrap_or(name);
        if name == "Etc/UTC" {
            return Ok(UTC);
        }
        let place = |zones: &[(String, TimeZone)]| zones.iter().position(|(other, _)| other == name);
        let number = |place: usize| Self(u16::try_from(place).expect("there are fewer zones"));
        if let Some(place) = place(&ZONES.read()) {
            return Ok(number(place));
        }
        let mut zones = ZONES.write();
        let place = place(&zones).unwrap_or(zones.len());
        if place == zones.len() {
            zones.push((name.to_owned(), zone));
        }
        Ok(number(place))
    }

    fn zone(self) -> TimeZone {
        if self == UTC { TimeZone::UTC } else { ZONES.read()[usize::from(self.0)].1.clone() }
    }

    fn name(self) -> String {
        ZONES.read()[usize::from(self.0)].0.clone()
    }

    /// Returns the local time of an instant.
    fn clock(self, instant: Timestamp) -> DateTime {
        self.zone().to_datetime(instant)
    }
}

impl FromStr for CalendarPeriod {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        Self::parse(&text.split_whitespace().collect::<Vec<_>>())
    }
}

impl CalendarPeriod {
    /// Whether words begin with a calendar unit.
    pub(super) fn is_named_by(words: &[&str]) -> bool {
        match words {
            [unit] => ["week", "month", "year"].contains(unit),
            [unit, "from" | "in", ..] => UNITS.iter().any(|(name, _)| name == unit),
            _ => false,
        }
    }

    pub(super) fn parse(words: &[&str]) -> Result<Self, QuotaError> {
        let invalid = || QuotaError::InvalidPeriod(words.join(" ").chars().take(60).collect());
        let (unit, words) = words.split_first().ok_or_else(invalid)?;
        let &(_, unit) = UNITS.iter().find(|(name, _)| name == unit).ok_or_else(invalid)?;
        let (start, zone) = match words {
            [start @ .., "in", zone] => (start, Zone::find(zone)?),
            start => (start, UTC),
        };
        let period = Self { unit, zone, start: 0 };
        match start {
            [] => Ok(period),
            ["from", start @ ..] => period.parse_start(start).ok_or_else(invalid),
            _ => Err(invalid()),
        }
    }
}

impl fmt::Display for CalendarPeriod {
    /// Writes the text that tollgate stores: [`parse`](str::parse) converts it to the same periods.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, seconds) = (self.start / DAY, self.start % DAY);
        let unit = UNITS.iter().find(|(_, unit)| *unit == self.unit).map_or("", |(name, _)| name);
        f.write_str(unit)?;
        if self.start != 0 {
            f.write_str(" from")?;
            match self.unit {
                Unit::Day => {}
                Unit::Week => write!(f, " {}", WEEKDAYS[days as usize % 7])?,
                Unit::Month => write!(f, " day {}", days + 1)?,
                Unit::Year => {
                    let (month, day) = self.day_of_year();
                    write!(f, " {month:02}-{day:02}")?;
                }
            }
        }
        if seconds != 0 {
            write!(f, " {:02}:{:02}", seconds / 3600, seconds / 60 % 60)?;
            if seconds % 60 != 0 {
                write!(f, ":{:02}", seconds % 60)?;
            }
        }
        if self.zone == UTC { Ok(()) } else { write!(f, " in {}", self.zone.name()) }
    }
}

const SECOND_NS: i64 = 1_000_000_000;
const DAY: u32 = 86_400;
const LEAP_YEAR: Date = jiff::civil::date(2000, 1, 1);
const UNITS: [(&str, Unit); 4] =
    [("day", Unit::Day), ("week", Unit::Week), ("month", Unit::Month), ("year", Unit::Year)];
const WEEKDAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

fn instant(ns: i64) -> Timestamp {
    Timestamp::from_nanosecond(ns.into()).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// A day of a month, or its last one.
fn on_day(first: Date, days: u32) -> Date {
    let last = u32::from(first.days_in_month().unsigned_abs()) - 1;
    first.checked_add(i64::from(days.min(last)).days()).unwrap_or(first)
}

fn days_of_leap_year(month: i8, day: i8) -> Option<u32> {
    let date = Date::new(LEAP_YEAR.year(), month, day).ok()?;
    u32::try_from(date.day_of_year() - 1).ok()
}

fn time(seconds: u32) -> Time {
    let part = |number: u32| i8::try_from(number).unwrap_or(0);
    jiff::civil::time(part(seconds / 3600), part(seconds / 60 % 60), part(seconds % 60), 0)
}

/// Parses `06:00` or `06:00:30` to seconds of the day.
fn parse_time(text: &str) -> Option<u32> {
    let mut parts = text.split(':').map(|part| parse_number(part, 2));
    let (hour, minute) = (parts.next()??, parts.next()??);
    let second = parts.next().unwrap_or(Some(0))?;
    let is_time = hour < 24 && minute < 60 && second < 60 && parts.next().is_none();
    is_time.then_some((hour * 60 + minute) * 60 + second)
}

/// Parses an offset from UTC such as `+01:00`, at most 14 hours.
fn parse_offset(text: &str) -> Option<Offset> {
    let (sign, rest) = text.split_at_checked(1)?;
    let sign = match sign {
        "+" => 1,
        "-" => -1,
        _ => return None,
    };
    let (hours, minutes) = rest.split_once(':').filter(|(hours, minutes)| hours.len() == 2 && minutes.len() == 2)?;
    let (hours, minutes) = (parse_number(hours, 2)?, parse_number(minutes, 2).filter(|minutes| *minutes < 60)?);
    let seconds = i32::try_from((hours * 60 + minutes) * 60).ok()?;
    (seconds <= 14 * 3600).then(|| Offset::from_seconds(sign * seconds).ok())?
}

fn parse_number(digits: &str, longest: usize) -> Option<u32> {
    let is_number = (1..=longest).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok())?
}
