//! Logs, metrics and traces of the server middleware.

mod layers;
mod refunds;
