//! Deciding: a pure function from what a run is to what it does next.

use std::collections::BTreeMap;
use std::time::Duration;

use windlass_kernel::{
    Commit, Loaded, Message, MessageKind, Op, Run, Step, StepKey, Timestamp, Wake,
};

use super::super::program::{Input, Program, Stage};

/// A run as its holder sees it.
pub(super) struct View {
    pub(super) run: Run,
    pub(super) steps: BTreeMap<StepKey, Step>,
    pub(super) messages: Vec<Message>,
    pub(super) input: Input,
    pub(super) program: Program,
    /// The `accepted` counter that was read in one snapshot with the messages.
    pub(super) read: u64,
}

impl View {
    pub(super) fn new(loaded: Loaded) -> Option<Self> {
        let Loaded { run, steps, messages } = loaded;
        let input: Input = run.input.read().ok()?;
        let program = Program::of(input.seed, input.depth);
        let read = run.accepted;
        let steps = steps.into_iter().map(|step| (step.step_key.clone(), step)).collect();
        Some(Self { run, steps, messages, input, program, read })
    }

    /// Whether somebody asked something of the run itself.
    pub(super) fn has_control(&self) -> bool {
        self.messages.iter().any(|message| message.kind == MessageKind::Control)
    }

    /// The view after its own commit held.
    pub(super) fn apply(&mut self, commit: &Commit) {
        for op in commit.ops.iter() {
            match op {
                Op::SetRun(change) => change.apply_to(&mut self.run),
                Op::PutStep(step) => {
                    self.steps.insert(step.step_key.clone(), (**step).clone());
                }
                Op::ConsumeMessage { seq, .. } => {
                    self.messages.retain(|message| message.seq != *seq);
                }
                _ => {}
            }
        }
    }

    fn message(&self, name: &str, newest: bool) -> Option<&Message> {
        let mut named = self.messages.iter().filter(|message| message.name.as_str() == name);
        if newest { named.next_back() } else { named.next() }
    }
}

/// What a run does next.
pub(super) enum Action {
    Cancel(Vec<Message>),
    Execute { stage: usize },
    StartSleep { stage: usize, ms: u64 },
    FinishSleep { stage: usize },
    StartWait { stage: usize },
    FinishWait { stage: usize, message: Option<Message> },
    StartActivities { stage: usize },
    FinishActivities(Vec<(StepKey, Message)>),
    StartChild { stage: usize, seed: u32 },
    FinishChild { stage: usize, message: Message },
    Park(Wake),
    Complete,
}

/// The key of a stage's step, or of one of its parts.
pub(super) fn step_key(stage: usize, part: Option<usize>) -> StepKey {
    let text = match part {
        Some(part) => format!("s{stage:02}.{part}"),
        None => format!("s{stage:02}"),
    };
    StepKey::new(text).expect("a valid key")
}

pub(super) fn decide(view: &View, now: Timestamp, newest_first: bool) -> Action {
    let control = view.messages.iter().filter(|message| message.kind == MessageKind::Control);
    let control: Vec<Message> = control.cloned().collect();
    if !control.is_empty() {
        return Action::Cancel(control);
    }
    for (stage, what) in view.program.0.iter().enumerate() {
        let step = view.steps.get(&step_key(stage, None));
        if step.is_some_and(|step| step.status.is_settled()) {
            continue;
        }
        let due = step.and_then(|step| step.due_at);
        match what {
            Stage::Do { .. } => match due.filter(|due| *due > now) {
                Some(due) => return Action::Park(Wake::At(due)),
                None => return Action::Execute { stage },
            },
            Stage::Sleep { ms } => match due {
                None => return Action::StartSleep { stage, ms: *ms },
                Some(due) if due > now => return Action::Park(Wake::At(due)),
                Some(_) => return Action::FinishSleep { stage },
            },
            Stage::Wait { name, .. } => {
                let message = view.message(name, newest_first).cloned();
                if message.is_some() || due.is_some_and(|due| due <= now) {
                    return Action::FinishWait { stage, message };
                }
                return match step {
                    None => Action::StartWait { stage },
                    Some(_) => Action::Park(due.map_or(Wake::OnMessage, Wake::At)),
                };
            }
            Stage::Activities(parts) => match activities(view, stage, parts.len()) {
                Some(action) => return action,
                None => continue,
            },
            Stage::Child { seed } => {
                let name = format!("child.{}", step_key(stage, None));
                return match (step, view.message(&name, false)) {
                    (None, _) => Action::StartChild { stage, seed: *seed },
                    (Some(_), Some(message)) => {
                        Action::FinishChild { stage, message: message.clone() }
                    }
                    (Some(_), None) => Action::Park(Wake::OnMessage),
                };
            }
        }
    }
    Action::Complete
}

fn activities(view: &View, stage: usize, parts: usize) -> Option<Action> {
    let keys: Vec<StepKey> = (0..parts).map(|part| step_key(stage, Some(part))).collect();
    if keys.iter().any(|key| !view.steps.contains_key(key)) {
        return Some(Action::StartActivities { stage });
    }
    let open = |key: &&StepKey| !view.steps[*key].status.is_settled();
    let mut done = Vec::new();
    for key in keys.iter().filter(open) {
        if let Some(message) = view.message(&format!("act.{key}"), false) {
            done.push((key.clone(), message.clone()));
        }
    }
    if !done.is_empty() {
        return Some(Action::FinishActivities(done));
    }
    keys.iter().any(|key| open(&key)).then_some(Action::Park(Wake::OnMessage))
}

/// When a wait gives up.
pub(super) fn timeout(stage: &Stage, now: Timestamp) -> Option<Timestamp> {
    match stage {
        Stage::Wait { timeout_ms: Some(ms), .. } => Some(now.plus(Duration::from_millis(*ms))),
        _ => None,
    }
}
