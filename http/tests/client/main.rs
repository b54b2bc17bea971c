//! Clients that keep to the limits of whom they call: over real sockets, with several replicas over one database.

// Nothing outside uses a test.
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
