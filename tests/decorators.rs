//! Stores over a store, each by itself.

// Nothing outside uses a test.
#![allow(unreachable_pub)]

mod decorators {
    mod any_store;
    mod counting;
    mod deny_cache;
    mod forwarding;
    mod lease;
    mod local_reads;
    mod underlying;
}
