//! Calls of the routines in SQL within the host's transactions and sessions, and attempts to change these.

use crate::matrix::Case;

mod mysql;
mod postgres;
mod public;
mod snapshots;
mod within;

pub fn cases() -> Vec<Case> {
    // Without layers: the cases use the host's SQL, in its transactions.
    [mysql::cases(), postgres::cases(), public::cases(), snapshots::cases(), within::cases()].concat()
}

/// The settings that differ, by name. Ignores those that a language added when its first routine ran.
fn changed<'a>(before: &'a [(String, String)], after: &'a [(String, String)]) -> Vec<&'a (String, String)> {
    let existed = |name: &str| before.iter().any(|(other, _)| other == name);
    after.iter().filter(|setting| existed(&setting.0) && !before.contains(setting)).collect()
}

const NONE: [&(String, String); 0] = [];
