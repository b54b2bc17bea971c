//! Stores that wrap a store, each tested alone.

// No other crate uses the items of a test.
#![allow(unreachable_pub)]

mod any_store;
mod counting;
mod deny_cache;
mod forwarding;
mod lease;
mod local_reads;
mod underlying;
