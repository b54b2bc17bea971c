//! Logs, metrics and traces of the server middleware.

mod layers;
#[path = "../../../tests/observability/logged.rs"]
mod logged;
#[path = "../../../tests/observability/recorded.rs"]
mod recorded;
mod refunds;
