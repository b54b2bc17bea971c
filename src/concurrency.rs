//! Between tasks and threads: nothing here knows what a limit is.

pub(crate) mod atomics;
pub(crate) mod single_flight;
