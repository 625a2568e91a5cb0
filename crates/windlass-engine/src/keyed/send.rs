//! Sending an event to a key.

use std::collections::BTreeSet;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use windlass_kernel::{
    Body, BoxFuture, Commit, CommitError, Conflict, Error, ErrorCode, ErrorKind, IntoDuration,
    Namespace, Refusal, RunKey, Timestamp,
};

use super::state::NewKeptEvent;
use super::{EventAddress, KeyedEvents, ROUNDS_MAX};
use crate::env::new_uuid;
use crate::record_change::conflict_delay;
use crate::turn::refusal;

const TTL_MIN: Duration = Duration::from_secs(1);

/// An event to a key that is not sent yet. It is sent when it is awaited.
#[must_use = "an event is sent only when it is awaited"]
pub struct SendByKey {
    keyed: Arc<KeyedEvents>,
    namespace: Namespace,
    prepared: Result<(EventAddress, Body), Error>,
    id: Option<String>,
    ttl: Option<Result<Duration, Error>>,
}

/// An event that was sent to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentByKey {
    /// The id of the event.
    pub id: String,
    /// How many runs got it with this call. Others that wait get it soon, or when they begin to wait.
    pub delivered: usize,
    /// Until when runs that begin to wait get it.
    pub expires_at: Timestamp,
    /// Whether the key had the event already, so that nothing was written.
    pub repeated: bool,
}

impl SendByKey {
    pub(crate) fn new(
        keyed: Arc<KeyedEvents>,
        namespace: Namespace,
        address: Result<EventAddress, Error>,
        payload: Result<Body, Error>,
    ) -> Self {
        let prepared = address.and_then(|address| Ok((address, payload?)));
        Self { keyed, namespace, prepared, id: None, ttl: None }
    }

    /// Gives the event an id. While the key keeps the event, the same id and payload again have no effect, and
    /// the same id with another payload is an error.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// How long the key keeps the event for runs that begin to wait later: from a second to
    /// `sleep_days_max` days. By default `Options::event_ttl`, a day.
    pub fn ttl(mut self, ttl: impl IntoDuration) -> Self {
        self.ttl = Some(ttl.into_duration().map_err(|error| {
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidDuration, error.to_string())
        }));
        self
    }

    async fn send(self) -> Result<SentByKey, Error> {
        let (address, body) = self.prepared?;
        let core = &self.keyed.core;
        let limits = &core.options.limits;
        let ttl = self.ttl.unwrap_or(Ok(core.options.event_ttl))?;
        check_ttl(ttl, limits.sleep_days_max)?;
        let now = core.clock.now();
        let id = match self.id {
            Some(id) => checked_id(id, limits.keyed_event_id_chars_max)?,
            None => new_uuid(&*core.env, now).to_string(),
        };
        let payload: Box<RawValue> = body.read()?;
        let new =
            NewKeptEvent { id: &id, payload: &payload, sent_at: now, expires_at: now.plus(ttl) };
        self.keyed.send(&self.namespace, &address, &new).await
    }
}

impl IntoFuture for SendByKey {
    type Output = Result<SentByKey, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

impl KeyedEvents {
    async fn send(
        &self,
        namespace: &Namespace,
        address: &EventAddress,
        new: &NewKeptEvent<'_>,
    ) -> Result<SentByKey, Error> {
        let core = &self.core;
        let mut ended: BTreeSet<RunKey> = BTreeSet::new();
        // The last error after which the event may have been written.
        let mut unknown: Option<CommitError> = None;
        let mut losses = 0;
        while losses < ROUNDS_MAX {
            let now = core.clock.now();
            let mut key = self.read(namespace, address).await?;
            if let Some(error) = unknown.as_ref().filter(|_| now >= new.expires_at) {
                return Err(refusal(error));
            }
            key.state.prune(now);
            key.state.remove_runs(&ended);
            if !key.state.add_event(new, &core.options.limits)? {
                let kept = key.state.event(new.id);
                let expires_at = kept.map_or(new.expires_at, |kept| kept.expires_at());
                let id = new.id.to_owned();
                // If an answer was lost, the event that is kept is this one.
                let repeated = unknown.is_none();
                return Ok(SentByKey { id, delivered: 0, expires_at, repeated });
            }
            let deliveries = key.state.deliver();
            let delivered = deliveries.list.len();
            let ops = self.ops(address, key, deliveries, now)?;
            let commit = Commit::new(None, None, ops);
            match Arc::clone(&self.commits).commit_for_caller(commit.clone()).await {
                Ok(_) => {
                    self.announce(&commit).await;
                    let (id, expires_at) = (new.id.to_owned(), new.expires_at);
                    return Ok(SentByKey { id, delivered, expires_at, repeated: false });
                }
                Err(CommitError::Refused(
                    Refusal::RunEnded { run_key, .. } | Refusal::RunMissing { run_key },
                )) if ended.insert(run_key) => continue,
                Err(CommitError::Conflict(Conflict::Record { .. })) => {}
                Err(error) if error.code() == ErrorCode::OutcomeUnknown => unknown = Some(error),
                Err(error) => return Err(refusal(&error)),
            }
            losses += 1;
            core.env.sleep(conflict_delay(core.env.random(), losses)).await;
        }
        Err(unknown.map_or_else(|| busy(address), |error| refusal(&error)))
    }
}

fn checked_id(id: String, chars_max: usize) -> Result<String, Error> {
    let chars = id.chars().count();
    if id.is_empty() || chars > chars_max || id.chars().any(char::is_control) {
        let message = format!(
            "the id of the event has {chars} characters or a control character; use 1 to {chars_max} \
             characters without control characters"
        );
        return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidEventId, message));
    }
    Ok(id)
}

pub(crate) fn check_ttl(ttl: Duration, days_max: u32) -> Result<(), Error> {
    let max = Duration::from_secs(u64::from(days_max) * 24 * 60 * 60);
    if (TTL_MIN..=max).contains(&ttl) {
        return Ok(());
    }
    let message = format!("an event is kept for a second to {days_max} days, and not for {ttl:?}");
    Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidDuration, message))
}

fn busy(address: &EventAddress) -> Error {
    let EventAddress { event_type, key } = address;
    let message = format!(
        "the event of type {event_type:?} to key {key:?} lost against other writers {ROUNDS_MAX} times; \
         send it again with the same id"
    );
    Error::new(ErrorKind::Unavailable, ErrorCode::EventKeyBusy, message)
}
