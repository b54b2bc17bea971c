//! Shared by the tests: the contract of every store, the model of a bucket, and helpers.
#![allow(
    missing_docs,
    async_fn_in_trait,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    clippy::new_without_default,
    clippy::return_self_not_must_use,
    reason = "only the tests use it"
)]

pub mod cancellation;
pub mod logged;
pub mod model;
#[cfg(doctest)]
mod pages;
pub mod recorded;
pub mod rounds;
pub mod scenarios;
pub mod vectors;
