//! What the crate says of itself, with the features `metrics` and `tracing`: `docs/seeing.md` lists it all.
//!
//! Without a feature its macros only look at their arguments, and its types are empty: what calls them asks for no feature.
//! The hot paths keep the instruments that they use, because a recorder looks each up by its name and labels. So the
//! recorder has to be there before the first decision.

#![cfg_attr(
    not(all(feature = "metrics", feature = "tracing", feature = "_sql")),
    allow(
        dead_code,
        unused_imports,
        unused_macros,
        clippy::if_same_then_else,
        clippy::needless_pass_by_ref_mut,
        clippy::trivially_copy_pass_by_ref,
        clippy::unused_self,
        reason = "what a feature would do is nothing without it"
    )
)]

mod calls;
mod code;
mod decisions;
mod emit;
mod instruments;
mod middleware;
mod names;
mod seldom;
mod share;

#[cfg(feature = "postgres")]
pub(crate) use calls::ignored;
pub(crate) use calls::swept;
#[cfg(feature = "_sql")]
pub(crate) use calls::{Call, less_durable, migrated, newer, observed, retried};
pub(crate) use decisions::Decisions;
pub(crate) use instruments::Begun;
pub use middleware::MiddlewareEvent;
pub(crate) use names::{LEASED, QUEUE, WAITERS};
pub(crate) use share::Share;

use names::describe;
