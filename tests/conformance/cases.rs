//! Every case. Adding one here adds it on every engine that can run it.

use crate::matrix::Case;

mod clocks;
mod interval;
mod invariants;
mod keys;
mod levels;
mod limits;
mod oracle;
mod routines;
mod terms;
mod vectors;

pub fn all() -> Vec<Case> {
    [
        interval::cases(),
        keys::cases(),
        limits::cases(),
        oracle::cases(),
        levels::cases(),
        invariants::cases(),
        clocks::cases(),
        terms::cases(),
        routines::cases(),
        vectors::cases(),
    ]
    .concat()
}
