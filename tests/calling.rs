//! Clients that keep to the limits of whom they call: over real sockets, with several replicas over one database.

// Nothing outside uses a test.
#![allow(unreachable_pub)]

#[path = "calling/answers.rs"]
mod answers;
#[path = "calling/clients.rs"]
mod clients;
#[path = "calling/estimates.rs"]
mod estimates;
#[path = "calling/grpc.rs"]
mod grpc;
#[path = "calling/hostile.rs"]
mod hostile;
#[path = "calling/outcomes.rs"]
mod outcomes;
#[path = "calling/readiness.rs"]
mod readiness;
#[path = "calling/refusals.rs"]
mod refusals;
#[path = "calling/replicas.rs"]
mod replicas;
#[path = "calling/slow.rs"]
mod slow;
#[path = "calling/streams.rs"]
mod streams;
#[path = "calling/third_party.rs"]
mod third_party;
#[path = "calling/turns.rs"]
mod turns;
