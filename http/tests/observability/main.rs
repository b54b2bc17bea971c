//! What an operator sees of the server middleware, in metrics and traces.

mod layers;
#[path = "../../../tests/observability/logged.rs"]
mod logged;
#[path = "../../../tests/observability/recorded.rs"]
mod recorded;
mod refunds;
