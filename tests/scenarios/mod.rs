//! The contract of every store, in a database or in memory, under a clock that the test sets.

pub(crate) mod adjustments;
pub(crate) mod admin;
pub(crate) mod inputs;
pub(crate) mod listing;
pub(crate) mod local_reads;
pub(crate) mod memory;
pub(crate) mod methods;
pub(crate) mod other_terms;
pub(crate) mod plans;
pub(crate) mod receipts;
pub(crate) mod several;
pub(crate) mod shadow;
pub(crate) mod throttling;
pub(crate) mod windows;

use std::time::Duration;

use tollgate::{Admin, Decision, Key, Limiter, LimiterBuilder, Mode, Quota, Rule, Store, Take, store::SharedWindows};

/// A store without data that affects a scenario, and the store's clock.
pub(crate) trait World: Sync {
    type Store: Store + Admin + SharedWindows + Clone;

    fn store(&self) -> Self::Store;

    /// Returns a limiter without a deny cache, whose entries would expire by the host's clock and not by the world's.
    fn limits(&self) -> LimiterBuilder<Self::Store> {
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
        self.store().create_plan(name, quota).await?;
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
pub(crate) fn under(key: &Key, quota: &str) -> anyhow::Result<Take> {
    Ok(Take::from(key.clone()).rule(Rule::try_from(quota)?))
}

/// Whether the decision granted the request, and the remaining tokens.
pub(crate) fn left(decision: &Decision) -> (bool, u64) {
    (decision.is_granted(), decision.remaining())
}

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A UTC day starts at this time.
pub(crate) const START: i64 = 1_800_057_600_000_000_000;

/// Lists the scenarios, and runs each one with `$run`.
#[macro_export]
macro_rules! for_each_scenario {
    ($run:ident) => {
        $run! {
            methods: a_denied_call_takes_nothing,
            methods: a_burst_of_ten_is_granted_and_then_a_token_a_millisecond,
            methods: tokens_are_kept_for_others,
            methods: a_reservation_says_how_long_to_wait_and_later_ones_queue_behind_it,
            methods: a_reservation_beyond_the_longest_wait_takes_nothing,
            methods: a_cancelled_reservation_is_as_if_it_had_never_been_if_it_was_the_last,
            methods: a_cancelled_reservation_gives_back_only_what_nobody_queues_behind,
            methods: a_reservation_whose_turn_has_come_gives_nothing_back,
            methods: reservation_cancelled_at_its_time_is_given_back,
            methods: a_wait_that_would_last_too_long_is_denied_and_takes_nothing,
            methods: a_wait_for_a_token_that_is_there_takes_it_at_once,
            methods: those_who_wait_are_served_in_the_order_in_which_they_came,
            methods: a_wait_that_is_given_up_gives_its_token_back,
            methods: a_wait_with_an_id_that_is_given_up_is_there_for_whoever_repeats_it,
            methods: more_than_the_burst_is_never_possible,
            methods: without_a_limit_everything_is_granted,
            methods: without_a_rate_the_burst_is_granted_and_then_nothing,
            methods: a_changed_limit_keeps_what_was_earned_at_the_old_rate,
            methods: a_calendars_day_begins_at_midnight,
            several: all_grant_or_none_takes_anything,
            several: a_full_call_is_decided_to_its_last_request,
            several: each_of_a_batch_is_told_what_those_before_it_have_left,
            several: the_limit_that_denies_for_longest_is_named,
            several: any_number_of_limits_is_decided_together,
            several: each_limit_takes_and_keeps_its_own_number_of_tokens,
            several: a_batch_takes_of_each_limit_its_own_number_of_tokens,
            several: what_each_limit_cost_is_settled_and_refunded_for_each,
            several: one_without_a_bucket_fails_the_request_and_spares_the_others,
            several: a_reservation_of_several_is_cancelled_in_all_of_them,
            several: a_batch_is_decided_in_its_order_be_it_of_one_bucket_or_of_several,
            several: among_several_one_without_a_limit_limits_nothing,
            plans: the_transcript_of_a_client_by_plan,
            plans: a_larger_plan_rules_from_the_next_request_on,
            plans: a_smaller_plan_leaves_no_more_than_it_holds,
            plans: a_faster_plan_does_not_keep_a_client_shut_at_the_old_rate,
            plans: two_changes_while_nobody_asks_are_one,
            plans: a_client_that_moves_to_another_plan_keeps_its_tokens,
            plans: a_client_moves_to_another_plan_while_an_override_rules,
            plans: an_override_that_turns_to_the_calendar_follows_it,
            plans: two_services_that_alternate_quotas_grant_no_more_than_the_larger,
            plans: an_unknown_plan_is_an_error_of_its_own,
            plans: a_provisioned_bucket_follows_no_plan_that_a_caller_names,
            plans: client_with_its_own_quota_leaves_its_plan,
            plans: a_plan_in_shadow_lets_pass_what_it_would_deny,
            plans: what_shadow_lets_pass_is_counted_by_its_key,
            shadow: who_would_have_to_wait_in_shadow_goes_at_once_and_takes_nothing,
            shadow: of_several_limits_those_in_shadow_have_nobody_wait,
            shadow: under_a_window_in_shadow_nobody_waits,
            shadow: who_was_given_a_turn_keeps_it_in_shadow,
            plans: a_plan_that_is_off_touches_no_bucket,
            plans: a_bucket_that_is_given_other_terms_while_off_is_brought_to_them_at_once,
            plans: a_bucket_that_was_made_in_the_future_grants_at_once_or_not_at_all,
            plans: terms_that_are_given_after_an_override_ended_begin_with_the_next_request,
            plans: an_override_that_equals_the_buckets_own_terms_rules_all_the_same,
            plans: a_plan_that_blocks_denies_everything,
            plans: a_bucket_is_made_full_under_the_terms_that_rule_it_then,
            receipts: a_request_that_is_repeated_with_its_id_pays_once,
            receipts: a_cancel_gives_back_more_than_a_bucket_holds_that_has_shrunk,
            receipts: an_id_that_is_another_requests_is_refused,
            receipts: a_denial_is_not_remembered,
            receipts: an_id_is_forgotten_when_it_was_held_long_enough,
            receipts: a_settled_request_pays_what_it_cost,
            receipts: a_request_is_settled_once,
            receipts: debt_of_settlements_ends_when_they_state,
            receipts: what_is_paid_after_the_clock_was_set_back_is_paid_from_then_on,
            receipts: a_reservation_is_cancelled_once,
            receipts: a_request_is_settled_in_time_or_not_at_all,
            receipts: what_was_not_used_is_given_back_once,
            receipts: a_turn_is_cancelled_before_it_comes_though_its_id_is_forgotten,
            receipts: after_a_reset_a_turn_gives_nothing_back_and_a_refund_no_more_than_there_is_room_for,
            receipts: another_buckets_receipt_cancels_and_settles_nothing,
            receipts: a_receipt_for_a_bucket_that_is_gone_is_an_error,
            adjustments: what_is_adjusted_at_once_comes_to_what_it_does_one_by_one,
            adjustments: what_is_adjusted_of_one_key_at_once_is_adjusted_in_the_order_given,
            adjustments: any_number_of_adjustments_is_answered_in_the_order_given,
            windows: window_grants_its_maximum_and_what_expires,
            windows: a_window_is_looked_at_without_counting,
            windows: no_interval_sees_more_than_the_maximum,
            windows: window_reservation_is_scheduled_and_can_be_cancelled,
            windows: a_window_keeps_some_for_others,
            windows: repeated_window_request_with_id_counts_once,
            windows: a_window_under_other_terms_keeps_its_counts,
            windows: clock_set_back_locks_a_window_for_at_most_its_interval,
            windows: shorter_interval_keeps_counts_of_a_longer_one,
            windows: a_finer_resolution_is_no_clock_set_back,
            windows: cancelled_window_reservation_blocks_no_request,
            windows: window_turn_cancelled_at_its_time_is_given_back,
            windows: expired_window_count_gives_nothing_back,
            windows: an_id_pays_in_a_bucket_and_in_a_window_of_the_same_key,
            windows: a_window_is_decided_by_itself,
            windows: impossible_window_request_is_the_same_error_in_a_batch,
            windows: a_late_or_another_windows_receipt_changes_no_count,
            windows: forced_counts_fill_a_window_beyond_its_maximum,
            windows: every_window_is_decided_as_by_the_oracle,
            other_terms: settlement_in_a_shorter_window_counts_for_the_longest,
            other_terms: expired_count_gives_nothing_back_to_coarser_parts,
            other_terms: count_in_a_coarser_part_is_given_back,
            local_reads: denial_from_local_reads_calls_no_store,
            local_reads: local_reads_see_shared_counts_at_a_boundary,
            admin: a_peek_takes_nothing,
            admin: a_limiter_peeks_at_what_nobody_has_used,
            admin: a_limiter_peeks_at_what_its_next_request_finds,
            listing: a_list_has_pages_and_filters,
            listing: overrides_are_listed_page_by_page,
            listing: windows_are_listed_page_by_page,
            admin: a_bucket_that_is_reset_is_full_and_earlier_receipts_give_nothing_back,
            admin: a_bucket_that_is_deleted_is_full_at_its_next_first_use,
            admin: counted_denials_add_up_for_a_day_and_the_most_denied_goes_first,
            admin: plans_are_made_changed_listed_and_deleted,
            admin: a_plans_mode_has_a_reason_and_ends,
            admin: an_override_rules_until_it_expires,
            admin: what_can_never_rule_is_refused,
            admin: an_end_that_no_clock_reaches_is_none,
            admin: an_explanation_names_what_rules,
            throttling: a_bucket_is_lowered_to_what_is_left_and_never_raised,
            throttling: no_token_comes_before_the_time_that_was_said,
            throttling: both_are_the_stricter_of_each,
            throttling: an_intervals_tokens_come_with_the_first_period_after_the_wait,
            throttling: a_bucket_that_nobody_has_used_is_held_back_too,
            throttling: what_was_granted_before_keeps_its_turn,
            throttling: ten_years_are_an_hour_unless_said,
            throttling: what_cannot_be_held_back_is_an_error_that_says_why,
            throttling: a_mode_that_is_off_holds_nothing_back,
            throttling: other_terms_rule_before_a_bucket_is_held_back,
            throttling: a_clock_set_back_shuts_a_held_bucket_for_no_longer_than_it_was_held,
            inputs: a_request_that_can_never_be_is_the_same_error_alone_and_among_others,
            inputs: what_nobody_made_is_an_error_whatever_is_asked_of_it,
            inputs: any_text_is_a_key_of_its_own_or_a_typed_error,
            inputs: a_hash_is_a_key_of_its_own_and_reads_as_16_digits,
            inputs: no_figure_of_an_adjustment_overflows,
            inputs: no_count_of_what_was_granted_overflows,
            inputs: no_sum_overflows_before_2160,
            inputs: no_cost_is_too_large_for_a_plan_that_does_not_limit,
        }
    };
}
