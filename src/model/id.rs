//! The ids of requests and receipts.

use uuid::Uuid;

/// The maker of a request's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdOf {
    /// The caller, which can repeat the request with the id.
    Caller,
    /// This crate, for one request alone.
    Crate,
}

/// Creates an id that no other caller can guess, because a request with a known id is granted and takes nothing.
pub(crate) fn random_id() -> Uuid {
    Uuid::new_v4()
}

/// Creates an id for the receipts of a request without an id. The store remembers it only with a refund, so it need not be
/// secret, and costs no system call.
pub(crate) fn receipt_id() -> Uuid {
    let mut bytes = [0; 16];
    fastrand::fill(&mut bytes);
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}
