//! Clients under the limits of their upstreams, over real sockets, with several replicas on one database.

// No other crate uses a test.
#![allow(unreachable_pub)]

mod answers;
mod clients;
mod estimates;
mod grpc;
mod hostile;
mod outcomes;
mod readiness;
mod refusals;
mod replicas;
mod slow;
mod turns;
mod upstream;
