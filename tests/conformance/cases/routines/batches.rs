//! The batch routines. An entry stands for several equal requests, or is a request for several buckets.

use crate::matrix::Case;

mod mysql;
mod mysql_several;
mod mysql_uniform;
mod postgres;
mod postgres_new;

pub(super) fn cases() -> Vec<Case> {
    [mysql::cases(), mysql_several::cases(), mysql_uniform::cases(), postgres::cases(), postgres_new::cases()].concat()
}
