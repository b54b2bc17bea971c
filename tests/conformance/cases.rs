//! The list of all cases. Each case listed here runs on every engine that supports it.

use crate::matrix::Case;

mod admin;
mod attack;
mod attacks;
mod batches;
mod bounds;
mod by_hand;
mod cancellation;
mod charsets;
mod clocks;
mod concurrency;
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
        attack::cases(),
        attacks::cases(),
        batches::cases(),
        bounds::cases(),
        by_hand::cases(),
        charsets::cases(),
        cancellation::cases(),
        concurrency::cases(),
        denials::cases(),
        faults::cases(),
        fleet::cases(),
        throttling::cases(),
        host::cases(),
        interval::cases(),
        mutants::cases(),
        keys::cases(),
        limits::cases(),
        locked::cases(),
        reads::cases(),
        migrations::cases(),
        privileges::cases(),
        removal::cases(),
        requester::cases(),
        oracle::cases(),
        levels::cases(),
        invariants::cases(),
        clocks::cases(),
        limit_changes::cases(),
        transcripts::cases(),
        slow_storage::cases(),
        updates::cases(),
        upgrades::cases(),
        routines::cases(),
        runbook::cases(),
        scenarios::cases(),
        sequences::cases(),
        sweeping::cases(),
        vectors::cases(),
        windows::cases(),
        retries::cases(),
        round_trips::cases(),
    ]
    .concat()
}
