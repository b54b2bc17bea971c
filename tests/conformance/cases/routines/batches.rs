//! The routines that decide batches, whose entries stand for several equal requests each.

use crate::matrix::Case;

mod mysql;
mod postgres;

pub(super) fn cases() -> Vec<Case> {
    [mysql::cases(), postgres::cases()].concat()
}
