//! The list of all cases. Each case listed here runs on every engine that supports it.

use crate::matrix::Case;

mod admin;
mod attacks;
mod batches;
mod bucket_levels;
mod calendar_periods;
mod cancellation;
mod charsets;
mod clocks;
mod concurrency;
mod damaged_rows;
mod denial_flood;
mod denials;
mod faults;
mod fleet;
mod heap_updates;
mod host;
mod interval;
mod invariants;
mod keys;
mod limit_changes;
mod locked;
mod migrations;
mod mutants;
mod operator_sql;
mod oracle;
mod privileges;
mod reads;
mod removal;
mod requester;
mod retries;
mod round_trips;
mod routines;
mod runbook;
mod scenarios;
mod sequences;
mod slow_storage;
mod sweeping;
mod throttling;
mod transcripts;
mod upgrades;
mod usage;
mod value_ranges;
mod vectors;
mod windows;

pub fn all() -> Vec<Case> {
    [
        admin::cases(),
        attacks::cases(),
        batches::cases(),
        bucket_levels::cases(),
        calendar_periods::cases(),
        cancellation::cases(),
        charsets::cases(),
        clocks::cases(),
        concurrency::cases(),
        damaged_rows::cases(),
        denial_flood::cases(),
        denials::cases(),
        faults::cases(),
        fleet::cases(),
        heap_updates::cases(),
        host::cases(),
        interval::cases(),
        invariants::cases(),
        keys::cases(),
        limit_changes::cases(),
        locked::cases(),
        migrations::cases(),
        mutants::cases(),
        operator_sql::cases(),
        oracle::cases(),
        privileges::cases(),
        reads::cases(),
        removal::cases(),
        requester::cases(),
        retries::cases(),
        round_trips::cases(),
        routines::cases(),
        runbook::cases(),
        scenarios::cases(),
        sequences::cases(),
        slow_storage::cases(),
        sweeping::cases(),
        throttling::cases(),
        transcripts::cases(),
        upgrades::cases(),
        usage::cases(),
        value_ranges::cases(),
        vectors::cases(),
        windows::cases(),
    ]
    .concat()
}
