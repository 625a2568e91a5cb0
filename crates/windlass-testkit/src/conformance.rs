//! The suite that every store passes: one macro call a store, one test a rule.
//!
//! Each check gets a fresh [`World`](crate::world::World). What it holds a store to is written
//! down in docs/store-contract.md.

pub mod batches;
pub mod bodies;
pub mod breakers;
pub mod claims;
pub mod create;
pub mod fences;
pub mod guards;
pub mod health;
pub mod large_bodies;
pub mod ledger;
pub mod limits;
pub mod listings;
pub mod load;
pub mod local_completion;
pub mod messages;
pub mod model_state;
pub mod namespace_stats;
pub mod namespaces;
pub mod records;
pub mod resend;
pub mod retention;
pub mod settings;
pub mod tampering;
pub mod timers;
pub mod triggers;
pub mod user_sql;
pub mod wakeups;
pub mod workers;

/// Runs the whole suite against the stores that `$open` gives: an `async fn() -> Box<dyn Subject>`.
///
/// The calling crate needs `tokio` with `macros` and `rt-multi-thread`.
#[macro_export]
macro_rules! conformance {
    ($open:path) => {
        $crate::conformance_checks! { $open;
            local_completion: [
                one_failed_guard_writes_nothing,
                a_lost_answer_is_found,
                a_turn_that_stays_ready_sends_a_wakeup,
            ],
            batches: [
                applies_exactly_what_holds,
                two_commits_of_one_run,
                a_chain_of_commits,
                a_commit_on_a_head_that_never_was_fails_alone,
                a_broken_key_fails_alone,
                a_create_that_breaks_a_key_leaves_nothing,
                a_malformed_commit_fails_alone,
                messages_and_releases_in_order,
                a_message_after_the_end_is_refused,
                two_creates_of_one_name,
                many_messages_to_one_run,
                a_thousand_commits_with_planted_conflicts,
                settled_tasks_with_planted_conflicts,
            ],
            bodies: [
                come_back_byte_for_byte,
                empty_and_absent_differ,
                maximal_ones_are_taken,
                one_byte_too_many_is_refused,
                text_limits_hold,
            ],
            claims: [
                namespaces_take_turns,
                turns_of_namespaces_take_turns,
                by_priority_then_resumed_then_age,
                resumed_however_the_turn_came_back,
                oldest_whatever_its_priority,
                only_what_is_asked_for,
                never_a_future_task,
                never_one_task_twice,
                tasks_by_priority_and_age,
                several_routes_in_one_order,
                too_many_at_once_are_refused,
                nothing_of_a_paused_run,
                a_turn_is_left_to_its_last_worker_for_a_while,
            ],
            create: [
                writes_run_event_and_labels,
                is_idempotent_on_id_and_input,
                refuses_another_input,
                that_must_not_exist,
                of_children_and_generations,
                of_a_child_that_exists_writes_nothing,
                that_returns_is_not_for_children,
                with_a_later_due_time,
            ],
            fences: [
                of_unheld_tasks,
                after_release,
                after_reaping,
                after_revocation,
                after_claiming_again,
                of_tasks_after_reaping_and_release,
                of_tasks_after_reschedule,
                revoke_of_ended_and_unknown_runs,
                of_a_sleeping_run_that_is_revoked,
            ],
            guards: [
                a_run_from_start_to_end,
                a_stale_head_writes_nothing,
                a_foreign_hold_writes_nothing,
                a_missing_run_and_task,
                a_free_turn_can_be_taken,
                a_held_turn_is_not_free,
                a_task_and_its_message_settle_together,
                a_settled_step_is_final,
                an_open_step_is_replaced,
                an_ended_run_takes_nothing,
                a_run_that_exists_is_named_before_an_end,
                a_run_settles_its_own_tasks,
                a_task_is_not_enqueued_and_settled_at_once,
                an_end_begins_nothing,
                untried_tasks_keep_their_reclaims,
                retries_of_a_task,
                dead_letters,
                an_end_enqueues_what_the_run_says,
            ],
            health: [
                counts_runs_by_status,
                counts_and_ages_of_queues,
                counts_after_many_changes,
            ],
            ledger: [
                events_only,
                events_by_run_by_id_and_by_root,
                causes_that_are_there,
                causes_that_are_not_there,
                custom_events,
                event_ids_are_unique,
                the_chain_verifies,
            ],
            limits: [
                hold_back_claims,
                come_back_after_settling_and_reaping,
                are_shared_by_turns_and_tasks,
                are_listed_with_their_holders,
                never_exceeded_by_concurrent_claims,
                let_claims_see_past_a_long_queue,
                do_not_let_urgent_work_starve_the_oldest,
            ],
            listings: [
                counts_of_runs_with_a_label,
                runs_page_in_both_directions,
                runs_by_workflow_status_and_label,
                runs_by_time,
                steps_in_order_of_record,
                messages_tasks_logs_workers_and_letters,
                tasks_by_filter,
                a_look_gives_the_open_steps,
                generations_and_trees,
                page_sizes_are_checked,
            ],
            load: [
                selects_steps,
                selects_steps_of_many_runs,
            ],
            messages: [
                are_numbered_and_read_in_order,
                are_idempotent_by_id,
                are_refused_by_ended_runs,
                are_dropped_unless_required,
                wake_an_unheld_turn,
                are_not_lost_while_the_turn_is_held,
                do_not_wake_a_paused_run,
                of_control_wake_a_paused_run,
                do_not_start_a_delayed_run,
                unread_keep_a_paused_turn_ready,
                are_consumed_once,
                of_many_senders_at_once,
                between_load_and_release_never_lost,
                are_refused_above_the_limits,
            ],
            large_bodies: [
                are_stored_once_and_loaded_whole,
                belong_to_the_root_of_a_tree,
                of_models_are_put_read_and_copied,
                of_records_go_when_nothing_names_them,
                are_refused_under_a_wrong_owner,
                count_against_the_mailbox,
            ],
            model_state: [
                is_sealed_by_an_event_that_is_written_anyway,
                of_a_new_run_is_sealed,
                many_messages_are_consumed_by_one_event,
                events_of_models_have_a_version_and_a_cause,
            ],
            namespaces: [
                never_mix,
            ],
            records: [
                revisions_rise_with_each_write,
                expectations_are_guards,
                a_removed_record_never_repeats_a_revision,
                a_run_and_a_record_in_one_commit,
                a_lost_answer_is_found,
                one_writer_of_a_record_in_a_batch,
                racing_writers_write_each_revision_once,
                absence_is_checked_against_racing_writers,
                pages_by_id_and_by_term,
                versions_are_listed,
                a_write_sets_a_later_revision,
                one_of_racing_creators_holds,
                a_lost_answer_is_found_beside_other_writers,
                a_message_does_not_stand_for_a_record,
                rows_of_removed_records_are_deleted,
                collections_are_listed,
                limits_are_checked,
            ],
            resend: [
                of_a_create,
                of_a_turn_commit,
                of_a_turn_commit_after_others,
                of_a_message,
                of_a_settlement,
                of_an_enqueue,
                of_a_commit_that_took_a_turn,
                of_an_end_that_frees_the_turn,
                of_another_commit_is_a_conflict,
            ],
            retention: [
                deletes_whole_trees_that_are_over,
                spares_what_is_not_over,
                keeps_the_ledger_if_asked,
                keeps_later_generations_until_the_earlier_are_gone,
                keeps_earlier_generations_for_the_newer_if_asked,
                lists_what_is_over,
            ],
            breakers: [
                are_swapped_only_from_the_latest_version,
                rates_are_swapped_too,
                are_listed,
                rates_are_listed,
                old_ones_are_deleted,
            ],
            namespace_stats: [
                counts_what_a_namespace_has,
                figures_are_added_up_for_an_hour,
                figures_of_many_at_once,
            ],
            settings: [
                are_kept_replaced_and_forgotten,
                have_limits,
            ],
            timers: [
                become_ready_when_due_and_not_before,
                past_times_are_ready_at_once,
                the_next_due_time_is_returned,
                of_paused_runs_wait,
                a_limit_cuts_a_promotion_short,
                of_tasks,
            ],
            wakeups: [
                tell_of_what_became_ready,
                a_closed_store_refuses_calls,
            ],
            workers: [
                register_and_renew,
                a_drain_request_reaches_its_worker,
                a_lapsed_lease_is_reported,
                only_a_steady_worker_reaps,
                a_newcomer_continues_the_series_of_a_fleet,
                renewals_tell_the_next_lapse,
                reaping_frees_and_counts,
                progress_resets_reclaims,
                holds_are_listed_and_released,
                heartbeats_of_holders_are_kept,
                control_messages_reach_the_holder,
                stopped_workers_hold_nothing,
            ],
        }
    };
}

/// Runs the checks that need a database behind the store: triggers, user SQL, tampering.
#[macro_export]
macro_rules! conformance_sql {
    ($open:path) => {
        $crate::conformance_checks! { $open;
            tampering: [
                is_named_by_verification,
                of_bodies_that_are_not_loaded_is_not_noticed,
                of_a_message_does_not_lift_the_limits,
            ],
            triggers: [
                keep_events_immutable,
                keep_ended_runs_final,
                keep_settled_steps_final,
                keep_identities,
                keep_versions_of_records_immutable,
            ],
            user_sql: [
                commits_with_the_step,
                rolls_back_with_a_failed_guard,
                unique_violations_are_named,
                other_errors_fail_alone,
                in_a_batch_with_others,
            ],
        }
    };
}

/// Expands to one test a check; used by [`conformance!`] and [`conformance_sql!`].
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_checks {
    ($open:path; $($module:ident: [$($check:ident),+ $(,)?]),+ $(,)?) => {
        $(
            mod $module {
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $check() {
                        let world = $crate::world::World::new($open().await).await;
                        $crate::conformance::$module::$check(world).await;
                    }
                )+
            }
        )+
    };
}
