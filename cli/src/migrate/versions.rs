//! The versions in file names, by which tools order migrations.

use std::fmt;

use chrono::{NaiveDateTime, TimeDelta, Utc};

use super::script::Format;

/// A version. The next version increments the last number and keeps the part before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    before: String,
    last: i64,
    digits: usize,
}

impl Version {
    /// The first of `count` versions after all files of a directory. Numbers continue the existing sequence. Timestamps lie in the
    /// past, so that they never collide with a migration that the user creates later.
    pub(super) fn first(format: Format, files: &[String], count: usize) -> Self {
        let started = Utc::now().naive_utc() - TimeDelta::seconds(i64::try_from(count).unwrap_or(0));
        let Some(newest) =
            files.iter().filter_map(|file| FileVersion::by(format, file)).max_by(|a, b| a.numbers.cmp(&b.numbers))
        else {
            return Self::number(number(started));
        };
        match (newest.numbers[0], format) {
            (first, _) if time(first).is_some() => Self::number(number(started).max(after(first))),
            // Leaves the next whole number to the host. Otherwise its next migration would sort before some that have run.
            (_, Format::Flyway) if newest.is_own && newest.numbers.len() > 1 => newest.version().next(),
            (_, Format::Flyway) => Self { before: format!("{}.", newest.text), last: 1, digits: 1 },
            _ => newest.version().next(),
        }
    }

    /// The next version.
    pub(super) fn next(&self) -> Self {
        let last = if self.before.is_empty() { after(self.last) } else { self.last.saturating_add(1) };
        Self { last, ..self.clone() }
    }

    fn number(last: i64) -> Self {
        Self { before: String::new(), last, digits: 1 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:0digits$}", self.before, self.last, digits = self.digits)
    }
}

/// Whether a tool reads a version from this file name.
pub(super) fn is_named_for(format: Format, file: &str) -> bool {
    FileVersion::by(format, file).is_some()
}

/// The version in a file name, with all parts of Flyway's, such as 1.2.
struct FileVersion<'a> {
    text: &'a str,
    numbers: Vec<i64>,
    is_own: bool,
}

impl<'a> FileVersion<'a> {
    fn by(format: Format, file: &'a str) -> Option<Self> {
        let Some((name, "go" | "sql")) = file.rsplit_once('.') else { return None };
        let (text, title) = match format {
            Format::Flyway => name.strip_prefix(['B', 'V'])?.split_once("__")?,
            _ => name.split_at(name.find(|letter: char| !letter.is_ascii_digit())?),
        };
        let numbers = text.split(['.', '_']).map(|number| number.parse().ok()).collect::<Option<_>>()?;
        Some(Self { text, numbers, is_own: title.starts_with("tollgate_") })
    }

    fn version(&self) -> Version {
        let (before, last) = self.text.split_at(self.text.rfind(['.', '_']).map_or(0, |at| at + 1));
        Version { before: before.to_owned(), last: last.parse().unwrap_or(0), digits: last.len() }
    }
}

/// The next second if the version is a timestamp, else the next number.
fn after(version: i64) -> i64 {
    let later = time(version).and_then(|time| time.checked_add_signed(TimeDelta::seconds(1))).map_or(0, number);
    later.max(version.saturating_add(1))
}

fn time(version: i64) -> Option<NaiveDateTime> {
    // The parser would accept 13 digits and read one digit of seconds.
    Some(version.to_string())
        .filter(|text| text.len() == 14)
        .and_then(|text| NaiveDateTime::parse_from_str(&text, TIME).ok())
}

fn number(time: NaiveDateTime) -> i64 {
    time.format(TIME).to_string().parse().unwrap_or(0)
}

const TIME: &str = "%Y%m%d%H%M%S";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_order_as_migration_tools_order_files() {
        for (format, file, expected) in [
            (Format::Sqlx, "20260131235959_users.sql", Some(&[20_260_131_235_959][..])),
            (Format::Goose, "00012_users.go", Some(&[12])),
            (Format::Sqlx, "7_users.up.sql", Some(&[7])),
            (Format::Flyway, "V7__users.sql", Some(&[7])),
            (Format::Flyway, "V7.10__users.sql", Some(&[7, 10])),
            (Format::Flyway, "V7_1_0__users_and_more.sql", Some(&[7, 1, 0])),
            (Format::Flyway, "B8__users.sql", Some(&[8])),
            (Format::Flyway, "R__users.sql", None),
            (Format::Flyway, "Vacuum__users.sql", None),
            (Format::Flyway, "7_users.sql", None),
            (Format::Goose, "users.sql", None),
            (Format::Sqlx, "20260131235959_users.sql.tmp", None),
            (Format::Sqlx, "20260131 notes.txt", None),
            (Format::Goose, "99999999999999999999_users.sql", None),
        ] {
            assert_eq!(FileVersion::by(format, file).map(|printed| printed.numbers).as_deref(), expected, "{file}");
        }
    }

    #[test]
    fn next_version_is_next_second_or_next_number() {
        for (version, expected) in [
            (20_260_131_235_958, 20_260_131_235_959),
            (20_261_231_235_959, 20_270_101_000_000),
            (99_999_999_999_999, 100_000_000_000_000),
            (7, 8),
            (i64::MAX, i64::MAX),
        ] {
            assert_eq!(after(version), expected, "{version}");
        }
    }

    #[test]
    fn numbers_continue_those_of_the_directory() {
        for (format, files, first, second) in [
            (Format::Goose, &["00001_a.sql", "00009_b.go"][..], "00010", "00011"),
            (Format::Goose, &["9_a.sql", "10_b.sql", "100_notes.txt"], "11", "12"),
            (Format::Goose, &["00099_a.sql", "00100_tollgate_0001_b.sql"], "00101", "00102"),
            (Format::Goose, &["2026013123595_a.sql"], "2026013123596", "2026013123597"),
            (Format::Sqlx, &["0001_a.up.sql", "0001_a.down.sql"], "0002", "0003"),
            (Format::Flyway, &["V1__a.sql", "V2__b.sql", "R__c.sql"], "2.1", "2.2"),
            (Format::Flyway, &["V1.2__a.sql", "V1.10__b.sql"], "1.10.1", "1.10.2"),
            (Format::Flyway, &["V002__a.sql"], "002.1", "002.2"),
            (Format::Flyway, &["V2__a.sql", "V2.9__tollgate_0009_b.sql", "V2.1__tollgate_0001_c.sql"], "2.10", "2.11"),
            (Format::Flyway, &["V2.9__tollgate_0009_b.sql", "V3__a.sql"], "3.1", "3.2"),
            (Format::Flyway, &["V48__tollgate_0001_renumbered.sql"], "48.1", "48.2"),
            (Format::Flyway, &["V1_2__a.sql", "V1_2.9__tollgate_0009_b.sql"], "1_2.10", "1_2.11"),
        ] {
            let files: Vec<_> = files.iter().map(|file| (*file).to_owned()).collect();
            let version = Version::first(format, &files, 47);
            assert_eq!([version.to_string(), version.next().to_string()], [first, second], "{files:?}");
        }
    }

    #[test]
    fn timestamps_are_past_and_follow_existing_ones() {
        for format in [Format::Sqlx, Format::Goose, Format::Flyway] {
            let first = Version::first(format, &["users.sql".to_owned()], 47);
            let last = (1..47).fold(first, |version, _| version.next());
            assert!(last.last < number(Utc::now().naive_utc()), "{last}");
        }
        for (format, file, expected) in [
            (Format::Sqlx, "29991231235959_a.sql", "30000101000000"),
            (Format::Flyway, "V29991231235958.3__a.sql", "29991231235959"),
        ] {
            assert_eq!(Version::first(format, &[file.to_owned()], 47).to_string(), expected);
        }
    }
}
