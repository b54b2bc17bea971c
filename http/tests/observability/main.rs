//! What an operator sees of the server middleware, in metrics and traces.

mod layers;
#[path = "../../../tests/seeing/recorded.rs"]
mod recorded;
mod refunds;
#[path = "../../../tests/seeing/told.rs"]
mod told;
