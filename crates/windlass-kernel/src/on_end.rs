//! What a run's end enqueues: kept with the run, so that whoever ends it enqueues it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::body::Body;
use crate::digest::Sha256Digest;
use crate::error::{Error, ErrorKind};
use crate::ids::{EventId, Namespace, QueueName, RouteName, RunKey, TaskId};
use crate::ledger::Stamp;
use crate::rows::{Route, Run, Task};

/// The kind of a task that nobody waits for: an effect.
pub const EFFECT: &str = "effect";

/// A task that the commit which ends a run enqueues, whatever process sends it and for whatever
/// reason. The task works for the run and is told nothing else of the end: what came of the run stands
/// in its row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OnEnd {
    /// The queue.
    pub queue: QueueName,
    /// What is to be run.
    pub name: RouteName,
    /// What the task carries.
    pub body: Box<RawValue>,
}

impl OnEnd {
    /// As it stands in the run's row.
    pub fn written(&self) -> Result<Arc<str>, Error> {
        let text = serde_json::to_string(self).map_err(|source| {
            let message = "what a run's end enqueues cannot be written as JSON";
            Error::new(ErrorKind::Invalid, "INVALID_BODY", message).with_source(source)
        })?;
        Ok(text.into())
    }
}

/// What is needed of a run to enqueue what its end enqueues.
#[derive(Debug)]
pub(crate) struct Ending {
    run_key: RunKey,
    namespace: Namespace,
    trace: Option<Arc<str>>,
    on_end: Arc<str>,
}

impl Ending {
    pub(crate) fn of(run: &Run) -> Option<Box<Self>> {
        let on_end = run.on_end.clone()?;
        let (run_key, namespace, trace) = (run.run_key, run.namespace.clone(), run.trace.clone());
        Some(Box::new(Self { run_key, namespace, trace, on_end }))
    }

    /// The task, and the id of the event that tells of it.
    pub(crate) fn task(&self, stamp: Stamp) -> Result<(Task, EventId), Error> {
        let OnEnd { queue, name, body } = serde_json::from_str(&self.on_end).map_err(|source| {
            Error::corrupt("what a run's end enqueues does not read").with_source(source)
        })?;
        let route = Route { queue, name };
        let task_id = end_task_id(self.run_key);
        let task = Task {
            run_key: Some(self.run_key),
            trace: self.trace.clone(),
            body: Some(Body::json(body.get().to_owned())),
            ..Task::new(task_id, self.namespace.clone(), EFFECT, route, stamp.at)
        };
        // The event is the commit's own, so its id follows from the id of the end's event.
        Ok((task, EventId(derived(stamp.event_id.0, "hook.enqueued"))))
    }
}

/// The id of the task that a run's end enqueues. It follows from the run's key: whoever ends the run
/// makes the same one, and receivers can tell a second delivery by it.
pub fn end_task_id(run_key: RunKey) -> TaskId {
    TaskId(derived(run_key.0, "end"))
}

/// A key that follows from another one and a word, and sorts beside it.
pub fn derived(key: uuid::Uuid, word: &str) -> uuid::Uuid {
    let digest = Sha256Digest::of(&[key.as_bytes(), word.as_bytes()].concat());
    let mut random = [0_u8; 10];
    random.copy_from_slice(&digest.as_bytes()[..10]);
    let millis = (key.as_u128() >> 80) as u64;
    uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_key_is_stable_and_sorts_by_the_same_millisecond() {
        let key = uuid::Uuid::from_u128(0x0190_1234_5678_7000_8000_0000_0000_0001);
        let other = uuid::Uuid::from_u128(0x0190_1234_5678_7000_8000_0000_0000_0002);
        assert_eq!(derived(key, "end"), derived(key, "end"));
        assert_ne!(derived(key, "end"), derived(key, "step"));
        assert_ne!(derived(key, "end"), derived(other, "end"));
        assert_eq!(derived(key, "end").as_u128() >> 80, key.as_u128() >> 80);
        assert_eq!(derived(key, "end").get_version_num(), 7);
    }
}
