//! The list of all cases. Each case listed here runs on every engine that supports it.

use crate::matrix::Case;

mod admin;
mod attacks;
mod batches;
mod bounds;
mod by_hand;
mod cancellation;
mod charsets;
mod clocks;
mod concurrency;
mod denial_flood;
mod denials;
mod faults;
mod fleet;
mod host;
mod interval;
mod invariants;
mod keys;
mod levels;
mod limit_changes;
mod limits;
mod locked;
mod migrations;
mod mutants;
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
mod updates;
mod upgrades;
mod vectors;
mod windows;

pub fn all() -> Vec<Case> {
    [
        admin::cases(),
        attacks::cases(),
        batches::cases(),
        bounds::cases(),
        by_hand::cases(),
        cancellation::cases(),
        charsets::cases(),
        clocks::cases(),
        concurrency::cases(),
        denial_flood::cases(),
        denials::cases(),
        faults::cases(),
        fleet::cases(),
        host::cases(),
        interval::cases(),
        invariants::cases(),
        keys::cases(),
        levels::cases(),
        limit_changes::cases(),
        limits::cases(),
        locked::cases(),
        migrations::cases(),
        mutants::cases(),
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
        updates::cases(),
        upgrades::cases(),
        vectors::cases(),
        windows::cases(),
    ]
    .concat()
}
