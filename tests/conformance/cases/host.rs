//! The host's transactions and sessions, when it calls the routines by SQL, and what it may try to change by them.

use crate::matrix::Case;

mod forgery;
mod mysql;
mod postgres;

pub fn cases() -> Vec<Case> {
    [forgery::cases(), mysql::cases(), postgres::cases()].concat()
}

/// The settings that differ, by name.
fn changed<'a>(before: &'a [(String, String)], after: &'a [(String, String)]) -> Vec<&'a (String, String)> {
    after.iter().filter(|setting| !before.contains(setting)).collect()
}
