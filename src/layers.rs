//! Layers: stores over stores. Each layer answers some requests from this process, and passes the others on.

pub(crate) mod batcher;
pub(crate) mod deny_cache;
pub(crate) mod lease;
pub(crate) mod local_reads;

pub use batcher::Batcher;
pub use deny_cache::DenyCache;
pub use lease::{BootClock, Lease, LeaseOptions};
pub use local_reads::LocalReads;
