//! Attacks by a login that has the application's role and speaks SQL to the database itself. Each test ends with the view of an
//! honest session: no token beyond the capacity, no row of others changed, no privilege gained, no secret read.
//!
//! | attack | tests |
//! |---|---|
//! | shadowing and escalation | `shadowing.rs`, `settings.rs`; objects that operators meet: `cli/shadowing.rs` |
//! | minting by arguments | `minting.rs`; one argument at a time: `routines/extremes.rs`, `routines/refusals.rs` |
//! | forged receipts | `receipts.rs`; how long they are kept: `sweeping.rs` |
//! | tricks across transactions | `transactions.rs`; an honest host's: `host/` |
//! | hostile upstreams | `http/tests/client/hostile.rs` |
//! | floods, held locks | `denial_flood.rs`, `faults/changes.rs`, `sweeping.rs` |

use crate::matrix::Case;

mod calls;
mod minting;
mod receipts;
mod settings;
mod shadowing;
mod transactions;

pub fn cases() -> Vec<Case> {
    // Without layers: the cases use SQL only, by a login of the application's role.
    [minting::cases(), receipts::cases(), settings::cases(), shadowing::cases(), transactions::cases()].concat()
}
