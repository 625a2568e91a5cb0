//! The task that the end of a run enqueues. It is stored with the run, so every process that ends
//! the run enqueues it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::body::Body;
use crate::digest::Sha256Digest;
use crate::error::{Error, ErrorCode, ErrorKind};
use crate::ids::{EventId, Namespace, QueueName, RouteName, RunKey, TaskId};
use crate::ledger::Stamp;
use crate::rows::{Route, Run, Task};

/// The kind of a task whose result nobody waits for: an effect.
pub const EFFECT: &str = "effect";

/// A task that the commit which ends a run enqueues, whichever process sends that commit and for
/// whatever reason. The task has the key of the run and reads the run's outcome from the run's row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OnEnd {
    /// The queue.
    pub queue: QueueName,
    /// The effect type.
    pub name: RouteName,
    /// The body of the task.
    pub body: Box<RawValue>,
}

impl OnEnd {
    /// The JSON that is stored in the run's row.
    pub fn to_json(&self) -> Result<Arc<str>, Error> {
        let text = serde_json::to_string(self).map_err(|source| {
            let message = "cannot serialize the task that the run's end enqueues as JSON";
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidBody, message).with_source(source)
        })?;
        Ok(text.into())
    }
}

/// The fields of a run that are needed to enqueue its end task.
#[derive(Debug)]
pub(crate) struct EndTask {
    run_key: RunKey,
    namespace: Namespace,
    trace: Option<Arc<str>>,
    on_end: Arc<str>,
}

impl EndTask {
    pub(crate) fn of(run: &Run) -> Option<Box<Self>> {
        let on_end = run.on_end.clone()?;
        let (run_key, namespace, trace) = (run.run_key, run.namespace.clone(), run.trace.clone());
        Some(Box::new(Self { run_key, namespace, trace, on_end }))
    }

    /// Builds the task and the id of the event that records it.
    pub(crate) fn task(&self, stamp: Stamp) -> Result<(Task, EventId), Error> {
        let OnEnd { queue, name, body } = serde_json::from_str(&self.on_end).map_err(|source| {
            Error::corrupt("cannot parse the task that the run's end enqueues").with_source(source)
        })?;
        let route = Route { queue, name };
        let task_id = end_task_id(self.run_key);
        let task = Task {
            run_key: Some(self.run_key),
            trace: self.trace.clone(),
            body: Some(Body::json(body.get().to_owned())),
            ..Task::new(task_id, self.namespace.clone(), EFFECT, route, stamp.at)
        };
        // The id is derived from the id of the end event, so that the same commit always has the
        // same ids.
        Ok((task, EventId(derive_key(stamp.event_id.0, "hook.enqueued"))))
    }
}

/// The id of the task that a run's end enqueues. It is derived from the run's key: every process
/// that ends the run computes the same id, and receivers use it to detect a second delivery.
pub fn end_task_id(run_key: RunKey) -> TaskId {
    TaskId(derive_key(run_key.0, "end"))
}

/// Derives a UUIDv7 from a key and a word, with the key's timestamp.
pub fn derive_key(key: uuid::Uuid, word: &str) -> uuid::Uuid {
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
        assert_eq!(derive_key(key, "end"), derive_key(key, "end"));
        assert_ne!(derive_key(key, "end"), derive_key(key, "step"));
        assert_ne!(derive_key(key, "end"), derive_key(other, "end"));
        assert_eq!(derive_key(key, "end").as_u128() >> 80, key.as_u128() >> 80);
        assert_eq!(derive_key(key, "end").get_version_num(), 7);
    }

    fn ending(on_end: &str) -> EndTask {
        let run_key = RunKey(uuid::Uuid::from_u128(0x0190_1234_5678_7000_8000_0000_0000_0001));
        let (namespace, trace) = (Namespace::default_namespace(), Some(Arc::from("trace")));
        EndTask { run_key, namespace, trace, on_end: on_end.into() }
    }

    #[test]
    fn every_process_makes_the_same_end_task() {
        let on_end = OnEnd {
            queue: QueueName::from_stored("hooks"),
            name: RouteName::from_stored("notify"),
            body: RawValue::from_string("{\"a\":  1}".to_owned()).unwrap(),
        };
        let ending = ending(&on_end.to_json().unwrap());
        let at = crate::time::Timestamp::from_millis(5);
        let stamp = |n| Stamp { event_id: EventId(uuid::Uuid::from_u128(n)), at };
        let (task, event_id) = ending.task(stamp(1)).unwrap();
        assert_eq!(task.task_id, end_task_id(ending.run_key));
        assert_eq!((task.queue.as_str(), task.name.as_str()), ("hooks", "notify"));
        assert_eq!((&*task.kind, task.run_key), (EFFECT, Some(ending.run_key)));
        assert_eq!(task.trace.as_deref(), Some("trace"));
        let body = task.body.clone().unwrap();
        assert_eq!(&*body.bytes, b"{\"a\":  1}", "the body keeps its bytes");
        let (again, other_event) = ending.task(stamp(2)).unwrap();
        assert_eq!((&again, again.body.as_ref()), (&task, Some(&body)));
        assert_ne!(event_id, other_event, "the id of the event follows from the end's event");
    }

    #[test]
    fn an_end_task_that_does_not_read_is_corrupt() {
        for text in ["", "{}", "[]", "{\"queue\":\"q\"}"] {
            let at = crate::time::Timestamp::ZERO;
            let stamp = Stamp { event_id: EventId(uuid::Uuid::nil()), at };
            let error = ending(text).task(stamp).unwrap_err();
            assert_eq!(error.kind(), crate::error::ErrorKind::Corrupt, "{text:?}");
        }
    }
}
