//! The programs of [frameworks](../../docs/frameworks.md).
//! Each module is a file to copy, so none uses another.
#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    reason = "copied, and not called from elsewhere"
)]

/// Middleware for actix-web.
pub mod actix_web;
/// A limiter for threads without an async runtime.
pub mod blocking;
/// The routine, called by diesel-async.
pub mod diesel;
/// Middleware for poem.
pub mod poem;
/// A request guard for Rocket.
pub mod rocket;
/// Middleware for salvo.
pub mod salvo;
/// A limiter over sea-orm's pool.
pub mod sea_orm;
/// The routine, called by tokio-postgres.
pub mod tokio_postgres;
