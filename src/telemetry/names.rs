pub(super) const DECISIONS: &str = "tollgate_decisions_total";
pub(super) const DECISION_SECONDS: &str = "tollgate_decision_duration_seconds";
pub(super) const ERRORS: &str = "tollgate_errors_total";
pub(super) const FALLBACKS: &str = "tollgate_fallbacks_total";
pub(super) const HOLDS: &str = "tollgate_holds_total";
pub(super) const REFUND_ERRORS: &str = "tollgate_refund_errors_total";
#[cfg(feature = "_sql")]
pub(super) const CALL_SECONDS: &str = "tollgate_store_call_duration_seconds";
#[cfg(feature = "_sql")]
pub(super) const CALL_REQUESTS: &str = "tollgate_store_call_requests";
#[cfg(feature = "_sql")]
pub(super) const RETRIES: &str = "tollgate_store_retries_total";
pub(super) const SWEEPS: &str = "tollgate_sweeps_total";
pub(super) const SWEPT: &str = "tollgate_swept_total";
pub(crate) const QUEUE: &str = "tollgate_queue_length";
pub(crate) const WAITERS: &str = "tollgate_waiters";
pub(crate) const LEASED: &str = "tollgate_leased_tokens";

/// Tells the recorder what each metric is. It may be told as often as there are limiters.
#[cfg(feature = "metrics")]
pub(super) fn describe() {
    use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

    describe_counter!(DECISIONS, "Decisions of limiters, by outcome, by where they were made, and by mode");
    describe_histogram!(DECISION_SECONDS, Unit::Seconds, "How long a decision took that was not made from memory");
    describe_counter!(ERRORS, "Requests without a decision of the store, by what was wrong");
    describe_counter!(FALLBACKS, "Decisions that the fallback made instead of the store, by what was wrong");
    describe_counter!(HOLDS, "What third parties said of their limits, by whether it lowered a bucket");
    describe_counter!(REFUND_ERRORS, "Refunds of layers that failed, by what was wrong");
    describe_counter!(SWEEPS, "Steps of clearing away, by outcome");
    describe_counter!(SWEPT, "Rows that were cleared away");
    describe_gauge!(QUEUE, "Requests of this process that wait for the next call of the store");
    describe_gauge!(WAITERS, "Callers of this process that wait for their turn");
    describe_gauge!(LEASED, "Tokens that this process has taken ahead and not used");
    #[cfg(feature = "_sql")]
    {
        describe_histogram!(CALL_SECONDS, Unit::Seconds, "How long a call of the database took, with its retries");
        describe_histogram!(CALL_REQUESTS, "How many requests a call of the database carried");
        describe_counter!(RETRIES, "Calls that were made once more, by the database's error code");
    }
}

#[cfg(not(feature = "metrics"))]
pub(super) fn describe() {}
