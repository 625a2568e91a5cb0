//! A step as its runner sees it.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use futures::task::AtomicWaker;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use windlass_kernel::request::RequestOutcome;
use windlass_kernel::{Body, Limits, RunKey};

use super::effects::Effects;
use super::outcome::RelayError;

/// How many memos one step may have: all of them are read with the run.
const MEMOS_MAX: usize = 1_024;

/// One step of a run, for one attempt.
#[derive(Debug)]
#[non_exhaustive]
pub struct RelayStep {
    /// The tenant that the run belongs to; empty for a detached step.
    pub namespace: String,
    /// The run. Other tenants may have one of the same name.
    pub run_id: String,
    /// The key of the run's generation, which no other run of any tenant shares; none for a detached
    /// step. With the step's number it is the same for every attempt of a step, and for no other step.
    pub run_key: Option<RunKey>,
    /// Which generation of the run that is, from 0: a retried run has a later one.
    pub generation: u32,
    /// The relay that the run is of.
    pub workflow: String,
    /// The step's number, from 0.
    pub step_number: u32,
    /// The payload from the previous step; the run's input for the first step.
    pub payload: Bytes,
    /// The submitter's headers, and `workflow.run_id` and `workflow.step`.
    pub headers: BTreeMap<String, String>,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// The result of the wait, if the previous step returned
    /// [`ContinueOnSignal`](super::StepOutcome::ContinueOnSignal).
    pub signal: Option<Signal>,
    /// The outcome of the request, if the previous step returned
    /// [`ContinueOnRequest`](super::StepOutcome::ContinueOnRequest).
    pub request: Option<RequestOutcome>,
    /// Fires when somebody cancels the run, or the step is given up because the engine stops or has lost
    /// the run. Whether the runner watches it or not, its outcome is
    /// discarded and the run ends as cancelled; watching it only makes that sooner.
    pub cancel_token: CancellationToken,
    /// The most that it may hand on, or end the run with, in bytes.
    pub answer_bytes_max: usize,
    /// Data that is stored beside the outcome.
    pub effects: Effects,
    pub(crate) memos: Arc<Memos>,
}

/// The result of a wait for a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signal {
    /// It came, with what it carries.
    Received(Bytes),
    /// It did not come in time.
    TimedOut,
}

impl RelayStep {
    /// A step of no run, for tests of runners: memos are kept in memory, effects are dropped.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use windlass::relays::RelayStep;
    ///
    /// let step = RelayStep::detached("report-1", 0, "figures");
    /// assert_eq!(step.memo("answer", async || Ok(42)).await?, 42);
    /// # Ok::<(), windlass::relays::RelayError>(()) }).unwrap();
    /// ```
    pub fn detached(
        run_id: impl Into<String>,
        step_number: u32,
        payload: impl Into<Bytes>,
    ) -> Self {
        let memos = Arc::new(Memos::detached());
        Self::new(run_id.into(), String::new(), step_number, payload.into(), memos)
    }

    pub(crate) fn new(
        run_id: String,
        workflow: String,
        step_number: u32,
        payload: Bytes,
        memos: Arc<Memos>,
    ) -> Self {
        Self {
            namespace: String::new(),
            run_id,
            run_key: None,
            generation: 0,
            workflow,
            step_number,
            payload,
            headers: BTreeMap::new(),
            attempt: 1,
            signal: None,
            request: None,
            cancel_token: CancellationToken::new(),
            answer_bytes_max: Limits::DEFAULT.step_bytes_max,
            effects: Effects::new(&Limits::DEFAULT),
            memos,
        }
    }

    /// Does something at most once over all attempts of this step, as far as its answer is known:
    /// the answer is durable when this returns, and a later attempt gets it without asking again. An
    /// error is not kept. Of two calls at once with one name the second waits for the first, so a memo
    /// must not ask for itself.
    ///
    /// ```
    /// # use windlass::relays::{RelayError, RelayStep, StepOutcome};
    /// # async fn example(step: &RelayStep) -> Result<StepOutcome, RelayError> {
    /// let answer: u32 = step.memo("answer", async || Ok(42)).await?;
    /// Ok(StepOutcome::done(answer.to_string()))
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of `work`, or the memo cannot be stored or read.
    pub async fn memo<T, F, Fut>(&self, name: &str, work: F) -> Result<T, RelayError>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, RelayError>>,
    {
        let mut asked = match self.memos.ask(name).await? {
            Asked::Known(known) => return read(name, &known),
            Asked::First(asked) => asked,
        };
        let body = Body::of(&work().await?).map_err(RelayError::permanent)?;
        read(name, &asked.record(body).await?)
    }

    /// As [`RelayStep::memo`], for bytes.
    ///
    /// ```
    /// # use windlass::relays::{RelayError, RelayStep, StepOutcome};
    /// # async fn example(step: &RelayStep) -> Result<StepOutcome, RelayError> {
    /// let answer = step.memo_bytes("answer", async || Ok("42".into())).await?;
    /// Ok(StepOutcome::done(answer))
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`RelayStep::memo`].
    pub async fn memo_bytes<F, Fut>(&self, name: &str, work: F) -> Result<Bytes, RelayError>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<Bytes, RelayError>>,
    {
        let mut asked = match self.memos.ask(name).await? {
            Asked::Known(known) => return Ok(known.bytes),
            Asked::First(asked) => asked,
        };
        let body = Body::bytes(work().await?);
        Ok(asked.record(body).await?.bytes)
    }
}

fn read<T: DeserializeOwned>(name: &str, body: &Body) -> Result<T, RelayError> {
    body.read().map_err(|error| {
        RelayError::permanent(format!("memo {name:?} does not read as what is asked for: {error}"))
    })
}

/// The memos of one step: those that are recorded, and those that wait to be.
pub(crate) struct Memos {
    state: Mutex<MemoState>,
    /// Wakes the run, which records memos.
    pub(crate) waker: AtomicWaker,
    recorded_here: bool,
    name_chars_max: usize,
    bytes_max: usize,
}

#[derive(Default)]
struct MemoState {
    known: BTreeMap<String, Body>,
    wanted: Vec<Wanted>,
    // Memos that are being computed, with the callers that wait for them.
    asked: BTreeMap<String, Vec<oneshot::Sender<()>>>,
}

// Whether a memo is known, or the caller must compute it.
enum Asked<'a> {
    Known(Body),
    First(Asking<'a>),
}

/// A memo that is being computed. When it is dropped, waiting callers check again.
struct Asking<'a> {
    memos: &'a Memos,
    name: String,
    // The answer is queued for the store; later calls get it once it is stored.
    queued: bool,
}

impl Asking<'_> {
    async fn record(&mut self, body: Body) -> Result<Body, RelayError> {
        let (memos, name) = (self.memos, &self.name);
        if body.len() > memos.bytes_max {
            let (bytes, max) = (body.len(), memos.bytes_max);
            return Err(RelayError::permanent(format!(
                "memo {name:?} has {bytes} bytes; at most {max} are allowed"
            )));
        }
        if memos.recorded_here {
            memos.state.lock().known.insert(name.clone(), body.clone());
            return Ok(body);
        }
        let (answer, answered) = oneshot::channel();
        memos.state.lock().wanted.push(Wanted { name: name.clone(), body, answer });
        self.queued = true;
        memos.waker.wake();
        // The whole step is dropped when the turn is lost, and this with it.
        answered.await.unwrap_or_else(|_| Err(RelayError::transient("the step is no longer run")))
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if self.queued {
            return;
        }
        let waiting = self.memos.state.lock().asked.remove(&self.name);
        for waits in waiting.into_iter().flatten() {
            let _ = waits.send(());
        }
    }
}

/// A memo that waits to be recorded.
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) body: Body,
    pub(crate) answer: oneshot::Sender<Result<Body, RelayError>>,
}

impl fmt::Debug for Memos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memos({} known)", self.state.lock().known.len())
    }
}

impl Memos {
    fn detached() -> Self {
        let mut memos = Self::new(BTreeMap::new(), usize::MAX, usize::MAX);
        memos.recorded_here = true;
        memos
    }

    pub(crate) fn new(
        known: BTreeMap<String, Body>,
        name_chars_max: usize,
        bytes_max: usize,
    ) -> Self {
        let state = Mutex::new(MemoState { known, ..MemoState::default() });
        let waker = AtomicWaker::new();
        Self { state, waker, recorded_here: false, name_chars_max, bytes_max }
    }

    async fn ask(&self, name: &str) -> Result<Asked<'_>, RelayError> {
        let chars = name.chars().count();
        if chars == 0 || chars > self.name_chars_max || name.chars().any(char::is_control) {
            let max = self.name_chars_max;
            return Err(RelayError::permanent(format!(
                "{name:?} is no name for a memo: use 1 to {max} characters, no control characters"
            )));
        }
        loop {
            let (waits, over) = oneshot::channel();
            {
                let mut state = self.state.lock();
                if let Some(known) = state.known.get(name) {
                    return Ok(Asked::Known(known.clone()));
                }
                if state.known.len() + state.asked.len() >= MEMOS_MAX
                    && !state.asked.contains_key(name)
                {
                    return Err(RelayError::permanent(format!(
                        "memo {name:?} would be one too many: a step may have {MEMOS_MAX}"
                    )));
                }
                match state.asked.get_mut(name) {
                    Some(waiting) => waiting.push(waits),
                    None => {
                        state.asked.insert(name.to_owned(), Vec::new());
                        let (name, queued) = (name.to_owned(), false);
                        return Ok(Asked::First(Asking { memos: self, name, queued }));
                    }
                }
            }
            // If it failed, or was dropped, the next one tries.
            let _ = over.await;
        }
    }

    /// Whether a memo waits to be recorded.
    pub(crate) fn has_wanted(&self) -> bool {
        !self.state.lock().wanted.is_empty()
    }

    /// The memos to record now. A call with a name that is known, or that is used twice, gets the first
    /// recorded answer.
    pub(crate) fn take_new(&self) -> Vec<Wanted> {
        let mut state = self.state.lock();
        let mut new: Vec<Wanted> = Vec::new();
        let mut later = Vec::new();
        for wanted in std::mem::take(&mut state.wanted) {
            match state.known.get(&wanted.name) {
                Some(known) => drop(wanted.answer.send(Ok(known.clone()))),
                None if new.iter().any(|other| other.name == wanted.name) => later.push(wanted),
                None => new.push(wanted),
            }
        }
        state.wanted = later;
        new
    }

    /// Takes in memos that are durable, and tells those who wait for them.
    pub(crate) fn recorded(&self, wanted: Vec<Wanted>) {
        let mut state = self.state.lock();
        for Wanted { name, body, answer } in wanted {
            let waiting = state.asked.remove(&name);
            state.known.insert(name, body.clone());
            let _ = answer.send(Ok(body));
            for waits in waiting.into_iter().flatten() {
                let _ = waits.send(());
            }
        }
    }

    /// How many bytes the known ones have.
    pub(crate) fn bytes(&self) -> usize {
        self.state.lock().known.iter().map(|(name, body)| name.len() + body.len() + 64).sum()
    }
}
