//! Limits for everything that can grow, with their defaults.

use std::fmt;

use crate::error::{Error, ErrorCode, ErrorKind};

/// The share of a record for each event of a key, beside its payload. An event has an id of up to 100
/// characters of four bytes, and two times.
const KEY_EVENT_BYTES: usize = 2_048;
/// The share of a record for each run that waits for a key.
const KEY_RUN_BYTES: usize = 512;
/// The space for the retry policy and the timeouts of a task, beside its input.
const TASK_FRAME_BYTES: usize = 64 * 1024;
const MIB: usize = 1024 * 1024;

/// Reads one limit.
type LimitOf = fn(&Limits) -> usize;

/// Every size, count and length that is checked before a write.
///
/// A store checks what it can see: names, bodies, payloads, ops. The component that builds commits
/// checks steps of a run, sleeps, depths and diffs, because a store never parses a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Characters of a namespace. Default 64.
    pub namespace_chars_max: usize,
    /// Characters of a workflow's name, and of an activity or effect type. Default 64.
    pub workflow_chars_max: usize,
    /// Characters of a model's name. Default 32.
    pub model_chars_max: usize,
    /// Characters of a user's run id. Default 100.
    pub run_id_chars_max: usize,
    /// Characters of a run id that the engine builds. Default 400.
    pub run_id_composed_chars_max: usize,
    /// Characters of a step key, and of a step's name. Default 256.
    pub step_key_chars_max: usize,
    /// Characters of a queue's name. Default 100.
    pub queue_chars_max: usize,
    /// Characters of a message's id. Default 200.
    pub message_id_chars_max: usize,
    /// Characters of a message's name. Default 100.
    pub message_name_chars_max: usize,
    /// Characters of a limit's key. Default 200.
    pub limit_key_chars_max: usize,
    /// Characters of a ledger event's type. Default 100.
    pub event_type_chars_max: usize,
    /// Bytes of a ledger event's payload in canonical form. Default 32 KiB.
    pub event_payload_bytes_max: usize,
    /// Bytes of an actor, written as JSON. Default 8 KiB.
    pub actor_bytes_max: usize,
    /// Entries of a map's diff in an event's payload. Default 64.
    pub diff_entries_max: usize,
    /// Bytes of a body that is stored in its row; a larger one has a row of its own. Default 64 KiB, at
    /// least 4 KiB.
    pub inline_bytes_max: usize,
    /// Bytes of a run's input. Default 1 MiB, at most 16 MiB.
    pub input_bytes_max: usize,
    /// Bytes of a run's output or error. Default 1 MiB, at most 16 MiB.
    pub output_bytes_max: usize,
    /// Bytes of a model's snapshot of a run. Default 8 MiB, at most 16 MiB.
    pub state_bytes_max: usize,
    /// Bytes of a step's input, result or error. Default 1 MiB, at most 16 MiB.
    pub step_bytes_max: usize,
    /// Bytes of a message's body. Default 1 MiB, at most 16 MiB.
    pub message_bytes_max: usize,
    /// Unread messages of a run. A message that a caller asks to send is refused above it; results
    /// and control messages are not. Default 10,000.
    pub unread_messages_max: usize,
    /// Bytes of the bodies of a run's unread messages, checked as `unread_messages_max`. A run without
    /// unread messages accepts any message. Default 32 MiB.
    pub unread_bytes_max: usize,
    /// Bytes of a task's body, which has a retry policy and timeouts beside the input, and of its error
    /// history. Default 1 MiB and 64 KiB, at most 16 MiB and 64 KiB.
    pub task_bytes_max: usize,
    /// Bytes of the details of a heartbeat. Default 64 KiB.
    pub heartbeat_bytes_max: usize,
    /// Characters of a log line's message. Default 2,048.
    pub log_message_chars_max: usize,
    /// Characters of a log line's category. Default 64.
    pub log_category_chars_max: usize,
    /// Bytes of a log line's data. Default 1 MiB.
    pub log_data_bytes_max: usize,
    /// Log lines of one attempt of a step, and of the code between two of them. Default 5,000.
    pub log_lines_max: usize,
    /// Labels of a run. Default 32.
    pub labels_max: usize,
    /// Characters of a label's key. Default 64.
    pub label_key_chars_max: usize,
    /// Characters of a label's value. Default 256.
    pub label_value_chars_max: usize,
    /// Bytes of a run's headers, written as JSON. Default 64 KiB.
    pub headers_bytes_max: usize,
    /// Steps of a run, sleeps and waits not counted. Default 1,024.
    pub steps_per_run_max: usize,
    /// Days of a sleep or a wait. Default 365.
    pub sleep_days_max: u32,
    /// Depth of a JSON body. Default 64.
    pub json_depth_max: usize,
    /// Characters of a collection's name. Default 64.
    pub collection_chars_max: usize,
    /// Bytes of a record's id. Default 256.
    pub record_id_bytes_max: usize,
    /// Bytes of a record's body. Default 1 MiB, at most 16 MiB.
    pub record_bytes_max: usize,
    /// Terms of a record. Default 32.
    pub record_terms_max: usize,
    /// Bytes of a term's value. Default 256.
    pub record_term_bytes_max: usize,
    /// Records that one commit checks or writes, and that one read returns. Default 64.
    pub records_per_commit_max: usize,
    /// Bytes of the documents that one commit writes. Default 64 MiB.
    pub records_bytes_per_commit_max: usize,
    /// Bytes of a key that events are sent to. Default 256.
    pub event_key_bytes_max: usize,
    /// Characters of the id of an event that is sent to a key. Default 100.
    pub keyed_event_id_chars_max: usize,
    /// Events that are kept for one key. Default 100.
    pub key_events_max: usize,
    /// Bytes of the payloads that are kept for one key. Default 256 KiB.
    pub key_bytes_max: usize,
    /// Runs that wait for one key or have received one of its kept events. A further run is registered
    /// when there is space again. Default 2,000.
    pub key_runs_max: usize,
    /// Ops of one commit. Default 10,000.
    pub commit_ops_max: usize,
    /// Statements of user SQL in one commit. Default 1,000.
    pub user_sql_statements_max: usize,
    /// Bytes of user SQL in one commit, texts and parameters. Default 8 MiB.
    pub user_sql_bytes_max: usize,
    /// Rows of one page of a listing. Default 1,000.
    pub page_rows_max: u32,
    /// Turns and tasks of one claim. Default 1,000.
    pub claim_rows_max: u32,
    /// Characters of a setting's kind, and of its name. Default 200.
    pub setting_name_chars_max: usize,
    /// Bytes of a setting's value. Default 64 KiB.
    pub setting_bytes_max: usize,
    /// Trees of one deletion. Default 1,000.
    pub delete_trees_max: usize,
    /// Figures in one call that adds task statistics. Default 10,000.
    pub task_stats_max: usize,
}

impl Limits {
    /// The defaults.
    pub const DEFAULT: Limits = Limits {
        namespace_chars_max: 64,
        workflow_chars_max: 64,
        model_chars_max: 32,
        run_id_chars_max: 100,
        run_id_composed_chars_max: 400,
        step_key_chars_max: 256,
        queue_chars_max: 100,
        message_id_chars_max: 200,
        message_name_chars_max: 100,
        limit_key_chars_max: 200,
        event_type_chars_max: 100,
        event_payload_bytes_max: 32 * 1024,
        actor_bytes_max: 8 * 1024,
        diff_entries_max: 64,
        inline_bytes_max: 64 * 1024,
        input_bytes_max: MIB,
        output_bytes_max: MIB,
        state_bytes_max: 8 * MIB,
        step_bytes_max: MIB,
        message_bytes_max: MIB,
        unread_messages_max: 10_000,
        unread_bytes_max: 32 * MIB,
        task_bytes_max: MIB + TASK_FRAME_BYTES,
        heartbeat_bytes_max: 64 * 1024,
        log_message_chars_max: 2_048,
        log_category_chars_max: 64,
        log_data_bytes_max: MIB,
        log_lines_max: 5_000,
        labels_max: 32,
        label_key_chars_max: 64,
        label_value_chars_max: 256,
        headers_bytes_max: 64 * 1024,
        steps_per_run_max: 1_024,
        sleep_days_max: 365,
        json_depth_max: 64,
        collection_chars_max: 64,
        record_id_bytes_max: 256,
        record_bytes_max: MIB,
        record_terms_max: 32,
        record_term_bytes_max: 256,
        records_per_commit_max: 64,
        records_bytes_per_commit_max: 64 * MIB,
        event_key_bytes_max: 256,
        keyed_event_id_chars_max: 100,
        key_events_max: 100,
        key_bytes_max: 256 * 1024,
        key_runs_max: 2_000,
        commit_ops_max: 10_000,
        user_sql_statements_max: 1_000,
        user_sql_bytes_max: 8 * MIB,
        page_rows_max: 1_000,
        claim_rows_max: 1_000,
        setting_name_chars_max: 200,
        setting_bytes_max: 64 * 1024,
        delete_trees_max: 1_000,
        task_stats_max: 10_000,
    };

    /// The largest bytes of a body that limits may allow: 16 MiB.
    pub const BODY_BYTES_MAX: usize = 16 * MIB;
    /// The smallest `inline_bytes_max`: 4 KiB. A seal covers larger bodies by their digest, so a row
    /// that only refers to such a body can be sealed.
    pub const INLINE_BYTES_MIN: usize = crate::ledger::SEALED_BYTES_MAX;

    /// Sets the largest size of inputs, outputs, steps, messages, inputs of tasks and records.
    #[must_use]
    pub fn with_body_bytes_max(self, bytes: usize) -> Self {
        self.with_value_bytes_max(bytes).with_record_bytes_max(bytes)
    }

    /// Sets the largest size of inputs, outputs, steps, messages and inputs of tasks. The events that are kept for
    /// one key become fewer if a message cannot have as many bytes any more.
    #[must_use]
    pub fn with_value_bytes_max(mut self, bytes: usize) -> Self {
        self.input_bytes_max = bytes;
        self.output_bytes_max = bytes;
        self.step_bytes_max = bytes;
        self.message_bytes_max = bytes;
        self.task_bytes_max = bytes.saturating_add(TASK_FRAME_BYTES);
        self.key_bytes_max = self.key_bytes_max.min(bytes);
        self
    }

    /// Sets the largest size of a record. The limits of a key of events become smaller if they do not fit into
    /// one record any more.
    #[must_use]
    pub fn with_record_bytes_max(mut self, bytes: usize) -> Self {
        self.record_bytes_max = bytes;
        self.key_events_max = self.key_events_max.min(bytes / KEY_EVENT_BYTES);
        self.key_bytes_max = self.key_bytes_max.min(bytes / 4);
        self.key_runs_max = self.key_runs_max.min(bytes / KEY_RUN_BYTES);
        self
    }

    /// The most bytes of a body that is stored in a row of its own.
    pub fn large_body_bytes_max(&self) -> usize {
        let maxima = [
            self.input_bytes_max,
            self.output_bytes_max,
            self.state_bytes_max,
            self.step_bytes_max,
            self.message_bytes_max,
            self.record_bytes_max,
        ];
        maxima.into_iter().fold(0, usize::max)
    }

    /// Refuses limits above those with which a store was opened. The store would refuse a commit that
    /// the engine takes for valid, and its run could not go on. Limits that only the engine checks, such
    /// as the number of steps, may be higher.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidOption`]; the message names the limit.
    pub fn check_store(&self, store: &Limits) -> Result<(), Error> {
        let checked_by_stores: [(&str, LimitOf); 37] = [
            ("namespace_chars_max", |limits| limits.namespace_chars_max),
            ("workflow_chars_max", |limits| limits.workflow_chars_max),
            ("model_chars_max", |limits| limits.model_chars_max),
            ("run_id_chars_max", |limits| limits.run_id_chars_max),
            ("run_id_composed_chars_max", |limits| limits.run_id_composed_chars_max),
            ("step_key_chars_max", |limits| limits.step_key_chars_max),
            ("queue_chars_max", |limits| limits.queue_chars_max),
            ("message_id_chars_max", |limits| limits.message_id_chars_max),
            ("message_name_chars_max", |limits| limits.message_name_chars_max),
            ("limit_key_chars_max", |limits| limits.limit_key_chars_max),
            ("event_type_chars_max", |limits| limits.event_type_chars_max),
            ("event_payload_bytes_max", |limits| limits.event_payload_bytes_max),
            ("input_bytes_max", |limits| limits.input_bytes_max),
            ("output_bytes_max", |limits| limits.output_bytes_max),
            ("state_bytes_max", |limits| limits.state_bytes_max),
            ("step_bytes_max", |limits| limits.step_bytes_max),
            ("message_bytes_max", |limits| limits.message_bytes_max),
            ("task_bytes_max", |limits| limits.task_bytes_max),
            ("heartbeat_bytes_max", |limits| limits.heartbeat_bytes_max),
            ("log_message_chars_max", |limits| limits.log_message_chars_max),
            ("log_category_chars_max", |limits| limits.log_category_chars_max),
            ("log_data_bytes_max", |limits| limits.log_data_bytes_max),
            ("labels_max", |limits| limits.labels_max),
            ("label_key_chars_max", |limits| limits.label_key_chars_max),
            ("label_value_chars_max", |limits| limits.label_value_chars_max),
            ("headers_bytes_max", |limits| limits.headers_bytes_max),
            ("record_bytes_max", |limits| limits.record_bytes_max),
            ("record_terms_max", |limits| limits.record_terms_max),
            ("record_term_bytes_max", |limits| limits.record_term_bytes_max),
            ("records_per_commit_max", |limits| limits.records_per_commit_max),
            ("records_bytes_per_commit_max", |limits| limits.records_bytes_per_commit_max),
            ("commit_ops_max", |limits| limits.commit_ops_max),
            ("user_sql_statements_max", |limits| limits.user_sql_statements_max),
            ("user_sql_bytes_max", |limits| limits.user_sql_bytes_max),
            ("page_rows_max", |limits| limits.page_rows_max as usize),
            ("claim_rows_max", |limits| limits.claim_rows_max as usize),
            ("setting_bytes_max", |limits| limits.setting_bytes_max),
        ];
        for (name, limit) in checked_by_stores {
            let (found, max) = (limit(self), limit(store));
            if found > max {
                let message = format!(
                    "the limit {name} is {found}, and the store was opened with {max}; open the \
                     store with the same limits"
                );
                return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message));
            }
        }
        Ok(())
    }

    /// Refuses limits that a store cannot keep.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidOption`]; the message names the limit.
    pub fn validate(&self) -> Result<(), Error> {
        let events_max = (self.record_bytes_max / KEY_EVENT_BYTES).min(1_000);
        let bounds = [
            ("input_bytes_max", self.input_bytes_max, Self::BODY_BYTES_MAX),
            ("output_bytes_max", self.output_bytes_max, Self::BODY_BYTES_MAX),
            ("state_bytes_max", self.state_bytes_max, Self::BODY_BYTES_MAX),
            ("step_bytes_max", self.step_bytes_max, Self::BODY_BYTES_MAX),
            ("message_bytes_max", self.message_bytes_max, Self::BODY_BYTES_MAX),
            ("task_bytes_max", self.task_bytes_max, Self::BODY_BYTES_MAX + TASK_FRAME_BYTES),
            ("record_bytes_max", self.record_bytes_max, Self::BODY_BYTES_MAX),
            // PostgreSQL takes at most 1 GiB of parameters, and a kept version is a second copy.
            (
                "records_bytes_per_commit_max",
                self.records_bytes_per_commit_max,
                16 * Self::BODY_BYTES_MAX,
            ),
            // The index of terms has rows of at most 2,704 bytes in PostgreSQL.
            ("record_term_bytes_max", self.record_term_bytes_max, 1_024),
            ("collection_chars_max", self.collection_chars_max, 64),
            ("record_id_bytes_max", self.record_id_bytes_max, 256),
            // All of them are in one record.
            ("event_key_bytes_max", self.event_key_bytes_max, 256),
            ("keyed_event_id_chars_max", self.keyed_event_id_chars_max, 100),
            ("key_events_max", self.key_events_max, events_max),
            ("key_bytes_max", self.key_bytes_max, self.record_bytes_max / 4),
            ("key_runs_max", self.key_runs_max, self.record_bytes_max / KEY_RUN_BYTES),
        ];
        for (name, found, max) in bounds {
            if found > max {
                let message = format!("the limit {name} is {found}; use at most {max}");
                return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message));
            }
        }
        if self.inline_bytes_max < Self::INLINE_BYTES_MIN {
            let (found, min) = (self.inline_bytes_max, Self::INLINE_BYTES_MIN);
            let message = format!("the limit inline_bytes_max is {found}; use at least {min}");
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message));
        }
        Ok(())
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits::DEFAULT
    }
}

/// Refuses a size above its limit. The error names both.
pub(crate) fn check_max(
    what: impl fmt::Display,
    unit: &str,
    found: usize,
    max: usize,
) -> Result<(), Error> {
    if found <= max {
        return Ok(());
    }
    let message = format!("{what} has {found} {unit}; at most {max} are allowed");
    Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidSize, message))
}

/// Refuses text that is too long or that PostgreSQL cannot store.
pub(crate) fn check_text(what: &str, text: &str, chars_max: usize) -> Result<(), Error> {
    if text.len() > chars_max {
        check_max(what, "characters", text.chars().count(), chars_max)?;
    }
    if text.contains('\0') {
        let message = format!("{what} contains a NUL character; only bodies may contain one");
        return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidText, message));
    }
    Ok(())
}
