//! The contract of every store, in a database or in memory, under a clock that the test sets.

pub mod adjustments;
pub mod admin;
pub mod inputs;
pub mod listing;
pub mod local_reads;
pub mod memory;
pub mod methods;
pub mod named_limits;
pub mod other_limits;
pub mod periods;
pub mod plans;
pub mod receipts;
pub mod several;
pub mod shadow;
pub mod throttling;
pub mod windows;

use std::time::Duration;

use tollgate::{Admin, Decision, Key, Limiter, LimiterBuilder, Mode, Quota, Rule, Store, Take, store::SharedWindows};

/// A store without data that affects a scenario, and the store's clock.
pub trait World: Sync {
    type Store: Store + Admin + SharedWindows + Clone;

    fn store(&self) -> Self::Store;

    /// Returns the builder of a limiter without a deny cache, whose entries would expire by the host's clock and not by the
    /// world's.
    fn limiter_builder(&self) -> LimiterBuilder<Self::Store> {
        // A sweep at this clock would delete the buckets of other cases, which have their own clocks.
        Limiter::builder(self.store()).without_deny_cache().without_sweep()
    }

    /// Sets the clock, in nanoseconds since 1970.
    async fn at(&self, now: i64) -> anyhow::Result<()>;

    /// Returns a key that no other case uses.
    fn key(&self) -> Key;

    /// Provisions a bucket, or changes its limits.
    async fn create(&self, key: &Key, quota: Quota) -> anyhow::Result<()> {
        Ok(self.store().create_bucket(key, quota).await?)
    }

    /// Creates a plan, or changes its quota, and sets its mode if `mode` is not `None`.
    async fn plan(&self, name: &Key, quota: Quota, mode: Option<Mode>) -> anyhow::Result<()> {
        self.store().create_plan(name, quota.into()).await?;
        self.store().set_plan_mode(name, mode, None, None).await?;
        Ok(())
    }

    /// Sets the clock, in milliseconds after the start of the scenarios' time.
    async fn at_ms(&self, ms: i64) -> anyhow::Result<()> {
        self.at(START + ms * 1_000_000).await
    }

    /// Decides a request that must not be an error.
    async fn decide(&self, take: Take) -> anyhow::Result<Decision> {
        Ok(self.store().take_one(&take).await??)
    }
}

/// A request under a quota in text form.
pub fn under(key: &Key, quota: &str) -> anyhow::Result<Take> {
    Ok(Take::from(key.clone()).rule(Rule::try_from(quota)?))
}

/// Whether the decision granted the request, and the remaining tokens. Fails if no bucket was read.
pub fn left(decision: &Decision) -> (bool, u64) {
    (decision.is_granted(), decision.remaining().expect("a bucket was read"))
}

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A UTC day starts at this time.
pub const START: i64 = 1_800_057_600_000_000_000;

/// Lists the scenarios, and runs each one with `$run`.
#[macro_export]
macro_rules! for_each_scenario {
    ($run:ident) => {
        $run! {
            methods: denied_call_takes_nothing,
            methods: burst_of_ten_is_granted_then_a_token_per_millisecond,
            methods: min_remaining_keeps_tokens_for_others,
            methods: reservation_returns_its_wait_and_later_ones_queue,
            methods: a_reservation_beyond_the_longest_wait_takes_nothing,
            methods: last_reservation_cancelled_gives_all_back,
            methods: earlier_reservation_cancelled_gives_the_unqueued_part_back,
            methods: reservation_cancelled_after_its_time_gives_nothing_back,
            methods: reservation_cancelled_at_its_time_is_given_back,
            methods: wait_beyond_the_maximum_is_denied_and_takes_nothing,
            methods: wait_for_an_available_token_takes_it_at_once,
            methods: waiters_are_served_in_arrival_order,
            methods: cancelled_wait_gives_its_token_back,
            methods: cancelled_wait_with_id_is_kept_for_a_retry,
            methods: more_than_the_burst_is_never_possible,
            methods: without_a_limit_everything_is_granted,
            methods: without_a_rate_the_burst_is_granted_and_then_nothing,
            methods: changed_limit_keeps_tokens_refilled_at_the_old_rate,
            methods: calendar_day_starts_at_midnight,
            periods: month_ends_when_the_calendars_does,
            periods: wait_reaches_the_next_period_and_no_further,
            periods: debt_is_paid_by_the_next_period_even_if_unused,
            periods: override_has_a_period_of_its_own,
            periods: larger_plan_applies_to_the_next_period_in_full,
            periods: bucket_created_under_an_override_counts_its_requests,
            periods: clock_set_back_over_a_start_grants_no_second_period,
            several: several_limits_are_taken_all_or_none,
            several: full_call_is_decided_to_its_last_request,
            several: batch_answers_show_tokens_left_by_earlier_requests,
            several: decision_names_the_limit_with_the_longest_wait,
            several: any_number_of_limits_is_decided_together,
            several: each_limit_takes_and_keeps_its_own_number_of_tokens,
            several: a_batch_takes_of_each_limit_its_own_number_of_tokens,
            several: requests_that_differ_for_the_caller_share_a_call,
            several: cost_of_each_limit_is_settled_and_refunded,
            several: missing_bucket_fails_the_request_and_takes_nothing,
            several: a_reservation_of_several_is_cancelled_in_all_of_them,
            several: batch_for_one_or_several_buckets_is_decided_in_order,
            several: unlimited_limit_among_several_limits_nothing,
            named_limits: two_limits_of_one_key_count_separately,
            named_limits: a_plan_of_several_limits_takes_from_all_or_none,
            named_limits: one_limit_of_a_plan_has_its_own_override_and_mode,
            named_limits: a_plan_gains_and_loses_limits,
            named_limits: a_limit_counts_a_cost_of_its_own,
            named_limits: invalid_limits_of_a_plan_are_errors,
            named_limits: a_charge_takes_more_than_the_bucket_holds,
            plans: the_transcript_of_a_client_by_plan,
            plans: larger_plan_applies_from_the_next_request,
            plans: smaller_plan_limits_tokens_to_its_capacity,
            plans: faster_plan_ends_the_wait_at_the_old_rate,
            plans: two_changes_without_a_request_count_as_one,
            plans: client_moving_to_another_plan_keeps_its_tokens,
            plans: client_moves_to_another_plan_during_an_override,
            plans: override_with_calendar_refill_follows_the_calendar,
            plans: services_alternating_quotas_stay_within_the_larger,
            plans: unknown_plan_is_a_separate_error,
            plans: plan_named_for_a_provisioned_bucket_is_an_error,
            plans: client_with_its_own_quota_leaves_its_plan,
            plans: plan_in_shadow_grants_requests_it_would_deny,
            plans: shadow_grants_are_counted_by_key,
            shadow: shadow_request_short_of_tokens_passes_and_takes_nothing,
            shadow: limits_in_shadow_among_several_cause_no_wait,
            shadow: limit_with_a_mode_of_its_own,
            shadow: window_in_shadow_causes_no_wait,
            shadow: reservation_keeps_its_time_in_shadow,
            plans: plan_with_mode_off_touches_no_bucket,
            plans: limits_changed_while_off_apply_at_once,
            plans: bucket_created_in_the_future_grants_without_a_wait,
            plans: limits_set_after_an_override_apply_from_the_next_request,
            plans: override_equal_to_the_own_limits_still_applies,
            plans: plan_with_mode_block_denies_everything,
            plans: new_bucket_is_full_under_the_effective_limits,
            receipts: repeated_request_with_id_is_charged_once,
            receipts: cancel_gives_back_more_than_a_reduced_capacity,
            receipts: id_of_another_request_is_refused,
            receipts: denial_with_id_is_not_remembered,
            receipts: id_is_forgotten_after_its_hold_time,
            receipts: settled_request_is_charged_its_actual_cost,
            receipts: request_is_settled_once,
            receipts: settlement_debt_is_limited_by_max_debt,
            receipts: debt_after_a_clock_set_back_counts_from_then_on,
            receipts: reservation_is_cancelled_once,
            receipts: settlement_after_the_hold_time_is_late,
            receipts: unused_tokens_are_refunded_once,
            receipts: reservation_with_forgotten_id_can_be_cancelled,
            receipts: cancel_after_a_reset_gives_nothing_back,
            receipts: receipt_of_another_bucket_changes_nothing,
            receipts: receipt_for_a_deleted_bucket_is_an_error,
            adjustments: batch_of_adjustments_equals_one_by_one,
            adjustments: adjustments_of_one_key_are_done_in_order,
            adjustments: adjustments_are_answered_in_order,
            windows: window_grants_its_maximum_again_after_expiry,
            windows: window_peek_counts_nothing,
            windows: window_grants_at_most_the_maximum_in_any_interval,
            windows: window_reservation_is_scheduled_and_can_be_cancelled,
            windows: window_min_remaining_keeps_requests_for_others,
            windows: repeated_window_request_with_id_counts_once,
            windows: window_with_changed_limits_keeps_its_counts,
            windows: clock_set_back_locks_a_window_for_at_most_its_interval,
            windows: shorter_interval_keeps_counts_of_a_longer_one,
            windows: finer_resolution_is_not_a_clock_set_back,
            windows: cancelled_window_reservation_blocks_no_request,
            windows: window_reservation_cancelled_at_its_time_is_given_back,
            windows: expired_window_count_gives_nothing_back,
            windows: id_is_charged_in_bucket_and_window_of_one_key,
            windows: window_among_other_limits_is_an_error,
            windows: impossible_window_request_is_the_same_error_in_a_batch,
            windows: late_or_foreign_receipt_changes_no_count,
            windows: forced_counts_fill_a_window_beyond_its_maximum,
            windows: window_decisions_equal_the_oracle,
            other_limits: settlement_in_a_shorter_window_counts_for_the_longest,
            other_limits: expired_count_gives_nothing_back_to_coarser_parts,
            other_limits: count_in_a_coarser_part_is_given_back,
            local_reads: denial_from_local_reads_calls_no_store,
            local_reads: local_reads_see_shared_counts_at_a_boundary,
            admin: a_peek_takes_nothing,
            admin: limiter_peek_shows_an_unused_bucket_as_full,
            admin: limiter_peek_shows_what_the_next_request_finds,
            listing: a_list_has_pages_and_filters,
            listing: overrides_are_listed_page_by_page,
            listing: windows_are_listed_page_by_page,
            admin: reset_fills_the_bucket_and_voids_earlier_receipts,
            admin: deleted_bucket_is_full_at_its_next_first_use,
            admin: denials_are_summed_for_a_day_and_sorted,
            admin: plans_are_made_changed_listed_and_deleted,
            admin: a_plans_mode_has_a_reason_and_ends,
            admin: override_applies_until_it_expires,
            admin: invalid_override_or_mode_is_refused,
            admin: an_end_that_no_clock_reaches_is_none,
            admin: explain_shows_the_effective_limit_and_mode,
            throttling: throttle_lowers_a_bucket_and_never_raises_it,
            throttling: throttled_bucket_grants_nothing_before_retry_after,
            throttling: throttle_with_both_values_applies_the_stricter,
            throttling: interval_tokens_come_with_the_first_period_after_the_wait,
            throttling: unused_bucket_can_be_throttled,
            throttling: earlier_reservation_keeps_its_time_when_throttled,
            throttling: throttle_of_ten_years_is_an_hour_by_default,
            throttling: throttle_that_cannot_apply_is_an_error_with_reason,
            throttling: mode_off_ignores_throttles,
            throttling: changed_limits_apply_before_a_throttle,
            throttling: clock_set_back_does_not_extend_a_throttle,
            inputs: impossible_request_is_the_same_error_in_a_batch,
            inputs: request_for_a_missing_bucket_or_plan_is_an_error,
            inputs: any_text_is_a_separate_key_or_a_typed_error,
            inputs: hash_is_a_separate_key_of_16_digits,
            inputs: adjustment_with_extreme_values_does_not_overflow,
            inputs: count_of_granted_tokens_does_not_overflow,
            inputs: sums_do_not_overflow_before_2160,
            inputs: plan_that_does_not_limit_accepts_any_cost,
        }
    };
}
