//! Limited services, called by real clients over real sockets.

// No other crate uses a test.
#![allow(unreachable_pub)]

mod addresses;
mod answers;
mod broken;
mod client;
mod connections;
mod databases;
mod documented;
mod exact;
mod examples;
mod gated;
mod grpc;
mod handlers;
mod headers;
mod hyper;
mod injection;
mod keys;
mod modes;
mod outcomes;
mod paths;
mod process;
mod routers;
mod server;
mod several;
mod windows;
