//! The batch routines. An entry stands for several equal requests, or is a request for several buckets.

use crate::matrix::Case;

mod mysql;
mod mysql_alike;
mod mysql_several;
mod postgres;
mod postgres_new;

pub(super) fn cases() -> Vec<Case> {
    [mysql::cases(), mysql_alike::cases(), mysql_several::cases(), postgres::cases(), postgres_new::cases()].concat()
}
