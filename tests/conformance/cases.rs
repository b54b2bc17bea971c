//! Every case. Adding one here adds it on every engine that can run it.

use crate::matrix::Case;

mod interval;

pub fn all() -> Vec<Case> {
    [interval::cases()].concat()
}
