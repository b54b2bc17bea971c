//! Every case. Adding one here adds it on every engine that can run it.

use crate::matrix::Case;

mod interval;
mod oracle;
mod vectors;

pub fn all() -> Vec<Case> {
    [interval::cases(), oracle::cases(), vectors::cases()].concat()
}
