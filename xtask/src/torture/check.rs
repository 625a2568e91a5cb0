//! The checker: compares the log with the runs that the store holds after healing. It is a pure
//! function, so that tests can give it doctored logs.
//!
//! - **lost**: an acknowledged create, event or restart is not there, or its run ended otherwise than
//!   a run without faults ends.
//! - **doubled**: the work of a step began again after its result was recorded. A result is recorded
//!   for sure once a later step of the same generation began, or once a client saw the end of the
//!   generation. Two different results of one step are a double too. Work that repeats before that
//!   is not a double: an attempt that was cut off is executed again (at least once). Neither is a
//!   request that a process sent before it was killed or frozen and that arrived afterwards.
//! - **stuck**: a run has not ended after healing and does not wait for an event that nobody sent.
//! - **untrue**: the answer said that nothing was written, yet the action was done.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value;

use super::log::{Action, Effect, Entry, Line, Outcome};

/// The state of a run after healing, as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FinalRun {
    pub(crate) status: String,
    /// The number of restarts.
    pub(crate) generation: u64,
    pub(crate) output: Value,
    /// The error or the reason of a block.
    pub(crate) problem: String,
}

impl FinalRun {
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.status.as_str(), "complete" | "errored" | "terminated")
    }
}

/// The findings, each a sentence that names the run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    pub(crate) lost: Vec<String>,
    pub(crate) doubled: Vec<String>,
    pub(crate) stuck: Vec<String>,
    pub(crate) untrue: Vec<String>,
    /// Attempts that repeated cut-off work; allowed.
    pub(crate) repeated: usize,
    /// Requests of killed or frozen processes that arrived late; allowed.
    pub(crate) late: usize,
}

impl Findings {
    pub(crate) fn is_clean(&self) -> bool {
        [&self.lost, &self.doubled, &self.stuck, &self.untrue].iter().all(|list| list.is_empty())
    }
}

/// The answers to the requests about one run.
#[derive(Default)]
struct Answers {
    created: Option<Outcome>,
    events: Vec<Outcome>,
    restarts: [u64; 3],
}

/// Checks a log. `runs` are the runs that exist; the key is `workflow/id`.
pub(crate) fn check(lines: &[Line], runs: &BTreeMap<String, FinalRun>) -> Findings {
    let mut findings = Findings::default();
    for (name, answers) in answers(lines) {
        check_run(&name, &answers, runs.get(&name), &mut findings);
    }
    check_effects(lines, runs, &mut findings);
    findings
}

fn answers(lines: &[Line]) -> BTreeMap<String, Answers> {
    let mut all: BTreeMap<String, Answers> = BTreeMap::new();
    for line in lines {
        let Entry::Call { action, run, outcome, .. } = &line.entry else { continue };
        let answers = all.entry(run.clone()).or_default();
        match action {
            Action::Create => answers.created = Some(*outcome),
            Action::Event => answers.events.push(*outcome),
            Action::Restart => answers.restarts[*outcome as usize] += 1,
        }
    }
    all
}

fn check_run(name: &str, answers: &Answers, run: Option<&FinalRun>, findings: &mut Findings) {
    let Some(run) = run else {
        if answers.created == Some(Outcome::Ok) {
            findings.lost.push(format!("{name}: the create was acknowledged, the run is absent"));
        }
        return;
    };
    if answers.created == Some(Outcome::Refused) {
        findings.untrue.push(format!("{name}: the create was refused, the run exists"));
    }
    let [ok, refused, unknown] = answers.restarts;
    if run.generation < ok {
        let there = run.generation;
        findings.lost.push(format!("{name}: {ok} restarts were acknowledged, {there} are there"));
    }
    if run.generation > ok + unknown {
        findings.untrue.push(format!(
            "{name}: {} generations follow {ok} acknowledged, {unknown} unknown and {refused} \
             refused restarts",
            run.generation
        ));
    }
    if !run.has_ended() {
        if !waits_for_event(name, &run.status, &answers.events) {
            let (status, problem) = (&run.status, &run.problem);
            findings.stuck.push(format!("{name}: still {status} after healing {problem}"));
        }
        return;
    }
    let is_approved = answers.events.iter().any(|answer| *answer != Outcome::Refused);
    if name.starts_with("order/") && !is_approved {
        findings.untrue.push(format!("{name}: ended, though every event was refused"));
        return;
    }
    let wrong = match (run.status.as_str(), expected_output(name)) {
        ("complete", Some(expected)) => run.output != expected,
        ("complete", None) => false,
        _ => true,
    };
    if wrong {
        findings
            .lost
            .push(format!("{name}: ended as {} with {} {}", run.status, run.output, run.problem));
    }
}

/// Whether an order waits for its approval, of which no event was acknowledged.
fn waits_for_event(name: &str, status: &str, events: &[Outcome]) -> bool {
    name.starts_with("order/") && status == "waiting" && !events.contains(&Outcome::Ok)
}

/// The runs that were created or may have been, each with whether it may wait forever.
pub(crate) fn created(lines: &[Line]) -> Vec<(String, bool)> {
    let created = answers(lines).into_iter();
    created
        .map(|(name, has)| {
            let may_wait = waits_for_event(&name, "waiting", &has.events);
            (name, may_wait)
        })
        .collect()
}

/// The output that a run has without faults; none if it differs from run to run.
fn expected_output(name: &str) -> Option<Value> {
    match name.split_once('/')? {
        ("order", _) => Some("shipped 1 lamp".into()),
        ("fan-out", _) => Some(u64::from(super::load::FAN_OUT_SUM).into()),
        ("parcel", id) => {
            let greeting = format!("Hello, {id}!").to_uppercase();
            let grams = 100 + id.len();
            Some(serde_json::json!({ "grams": grams, "greeting": greeting }))
        }
        _ => None,
    }
}

/// The work of one generation that was seen so far.
#[derive(Default)]
struct Progress {
    step: Option<usize>,
    ended: bool,
    /// The results that the engine recorded, by step.
    recorded: BTreeMap<usize, String>,
    /// The tokens of all attempts.
    given: BTreeSet<String>,
}

fn check_effects(lines: &[Line], runs: &BTreeMap<String, FinalRun>, findings: &mut Findings) {
    let mut halted: HashMap<&str, u64> = HashMap::new();
    let mut work: BTreeMap<&str, Progress> = BTreeMap::new();
    let mut last_key: BTreeMap<&str, &str> = BTreeMap::new();
    for line in lines {
        match &line.entry {
            Entry::Halted { process } => {
                halted.insert(process, u64::MAX);
            }
            Entry::Continued { process, stale_ms } => {
                halted.insert(process, line.at_ms + stale_ms);
            }
            Entry::Ended { run_key } => work.entry(run_key).or_default().ended = true,
            Entry::Effect(effect) => {
                let is_late =
                    halted.get(effect.process.as_str()).is_some_and(|until| line.at_ms <= *until);
                let progress = work.entry(&effect.run_key).or_default();
                check_effect(effect, is_late, progress, findings);
                last_key.insert(&effect.run, &effect.run_key);
            }
            Entry::Call { .. } | Entry::Fault { .. } | Entry::Ready { .. } => {}
        }
    }
    for (name, key) in last_key {
        if let (Some(run), Some(progress)) = (runs.get(name), work.get(key)) {
            check_output(name, run, progress, findings);
        }
    }
}

fn check_effect(effect: &Effect, is_late: bool, progress: &mut Progress, findings: &mut Findings) {
    let Effect { run, step, process, .. } = effect;
    progress.given.insert(effect.token.clone());
    let is_over = progress.ended || progress.step.is_some_and(|last| last > *step);
    match (is_over, is_late) {
        (true, true) => findings.late += 1,
        (true, false) => findings
            .doubled
            .push(format!("{run}: {process} began step {step} after its result was recorded")),
        (false, _) if progress.step == Some(*step) => findings.repeated += 1,
        (false, _) => progress.step = Some(*step),
    }
    for (earlier, token) in effect.earlier.iter().enumerate() {
        let recorded = progress.recorded.entry(earlier).or_insert_with(|| token.clone());
        if recorded != token {
            findings
                .doubled
                .push(format!("{run}: step {earlier} has two results, {recorded} and {token}"));
        }
        if !progress.given.contains(token) {
            findings.doubled.push(format!(
                "{run}: step {earlier} has the result {token}, which no attempt gave"
            ));
        }
    }
}

/// The output of a chain is the list of the recorded tokens: the work of each step, once.
fn check_output(name: &str, run: &FinalRun, progress: &Progress, findings: &mut Findings) {
    if run.status != "complete" {
        return;
    }
    let tokens: Vec<&str> =
        run.output.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let steps = progress.step.map_or(0, |last| last + 1);
    let is_known = tokens.iter().enumerate().all(|(step, token)| {
        progress.given.contains(*token)
            && progress.recorded.get(&step).is_none_or(|recorded| recorded == token)
    });
    if tokens.len() != steps || !is_known {
        findings.lost.push(format!(
            "{name}: the output {} does not hold the work of {steps} steps",
            run.output
        ));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(action: Action, run: &str, outcome: Outcome) -> Entry {
        Entry::Call { action, run: run.into(), outcome, detail: String::new() }
    }

    /// The step of the generation `key` by a process; its token is `key-step-attempt`.
    fn effect(process: &str, step: usize, attempt: u64, earlier: &[&str]) -> Entry {
        Entry::Effect(Effect {
            process: process.into(),
            run_key: "k".into(),
            run: "chain/c".into(),
            step,
            attempt,
            token: format!("k-{step}-{attempt}"),
            earlier: earlier.iter().map(|&token| token.to_owned()).collect(),
        })
    }

    fn halted(process: &str) -> Entry {
        Entry::Halted { process: process.into() }
    }

    fn run(status: &str, output: Value) -> FinalRun {
        FinalRun { status: status.into(), generation: 0, output, problem: String::new() }
    }

    fn found(entries: Vec<Entry>, runs: &[(&str, FinalRun)]) -> Findings {
        let lines: Vec<Line> =
            (0..).zip(entries).map(|(at_ms, entry)| Line { at_ms, entry }).collect();
        let runs = runs.iter().map(|(name, run)| ((*name).to_owned(), run.clone())).collect();
        check(&lines, &runs)
    }

    /// The number of lost, doubled, stuck and untrue findings.
    fn counts(findings: &Findings) -> [usize; 4] {
        [&findings.lost, &findings.doubled, &findings.stuck, &findings.untrue].map(Vec::len)
    }

    fn shipped() -> FinalRun {
        run("complete", json!("shipped 1 lamp"))
    }

    #[test]
    fn answers_are_compared_with_the_runs() {
        use Outcome::{Ok, Refused, Unknown};
        let create = |outcome| call(Action::Create, "order/o", outcome);
        let event = |outcome| call(Action::Event, "order/o", outcome);
        let restart = |outcome| call(Action::Restart, "order/o", outcome);
        let restarted = |times| FinalRun { generation: times, ..shipped() };
        for (entries, run, expect) in [
            (vec![create(Ok), event(Ok)], Some(shipped()), [0, 0, 0, 0]),
            (vec![create(Ok)], None, [1, 0, 0, 0]),
            (vec![create(Unknown)], None, [0, 0, 0, 0]),
            (vec![create(Unknown), event(Unknown)], Some(shipped()), [0, 0, 0, 0]),
            (vec![create(Ok), event(Refused)], Some(shipped()), [0, 0, 0, 1]),
            (vec![create(Refused)], None, [0, 0, 0, 0]),
            (vec![create(Refused), event(Ok)], Some(shipped()), [0, 0, 0, 1]),
            (vec![create(Ok), event(Ok)], Some(run("errored", Value::Null)), [1, 0, 0, 0]),
            (vec![create(Ok), event(Ok)], Some(run("complete", json!("2"))), [1, 0, 0, 0]),
            (vec![create(Ok)], Some(run("active", Value::Null)), [0, 0, 1, 0]),
            (vec![create(Ok)], Some(run("waiting", Value::Null)), [0, 0, 0, 0]),
            (vec![create(Ok), event(Unknown)], Some(run("waiting", Value::Null)), [0, 0, 0, 0]),
            (vec![create(Ok), event(Ok)], Some(run("waiting", Value::Null)), [0, 0, 1, 0]),
            (vec![create(Ok), event(Ok), restart(Ok)], Some(restarted(1)), [0, 0, 0, 0]),
            (vec![create(Ok), event(Ok), restart(Ok)], Some(shipped()), [1, 0, 0, 0]),
            (vec![create(Ok), event(Ok), restart(Unknown)], Some(restarted(1)), [0, 0, 0, 0]),
            (vec![create(Ok), event(Ok), restart(Refused)], Some(restarted(1)), [0, 0, 0, 1]),
            (vec![create(Ok), event(Ok), restart(Ok)], Some(restarted(2)), [0, 0, 0, 1]),
        ] {
            let shown = format!("{entries:?} {run:?}");
            let runs: Vec<(&str, FinalRun)> = run.into_iter().map(|run| ("order/o", run)).collect();
            assert_eq!(counts(&found(entries, &runs)), expect, "{shown}");
        }
    }

    #[test]
    fn a_waiting_run_that_needs_no_event_is_stuck() {
        let entries = vec![call(Action::Create, "parcel/p", Outcome::Ok)];
        let findings = found(entries, &[("parcel/p", run("waiting", Value::Null))]);
        assert_eq!(counts(&findings), [0, 0, 1, 0]);
    }

    #[test]
    fn work_that_repeats_after_its_record_is_doubled() {
        let both = &["k-0-1"][..];
        let ended = || Entry::Ended { run_key: "k".into() };
        let thawed = |stale_ms| Entry::Continued { process: "a.1".into(), stale_ms };
        // The entries, then the numbers of doubled, repeated and late attempts.
        for (entries, expect) in [
            (vec![effect("a.1", 0, 1, &[]), effect("a.1", 1, 1, both)], [0, 0, 0]),
            (vec![effect("a.1", 0, 1, &[]), effect("a.2", 0, 2, &[])], [0, 1, 0]),
            (
                vec![effect("a.1", 0, 1, &[]), effect("a.1", 1, 1, both), effect("a.1", 0, 2, &[])],
                [1, 0, 0],
            ),
            (vec![effect("a.1", 0, 1, &[]), ended(), effect("a.1", 0, 2, &[])], [1, 0, 0]),
            (
                vec![
                    effect("a.1", 0, 1, &[]),
                    halted("a.1"),
                    effect("b.1", 1, 1, both),
                    effect("a.1", 0, 2, &[]),
                ],
                [0, 0, 1],
            ),
            (
                vec![
                    effect("a.1", 0, 1, &[]),
                    halted("a.1"),
                    effect("b.1", 1, 1, both),
                    thawed(0),
                    effect("a.1", 0, 2, &[]),
                ],
                [1, 0, 0],
            ),
            // Two results of one step.
            (
                vec![
                    effect("a.1", 0, 1, &[]),
                    effect("b.1", 0, 2, &[]),
                    effect("a.1", 1, 1, both),
                    effect("b.1", 1, 2, &["k-0-2"]),
                ],
                [1, 2, 0],
            ),
            // A result that no attempt gave.
            (vec![effect("a.1", 0, 1, &[]), effect("a.1", 1, 1, &["k-0-9"])], [1, 0, 0]),
        ] {
            let shown = format!("{entries:?}");
            let findings = found(entries, &[]);
            let counts = [findings.doubled.len(), findings.repeated, findings.late];
            assert_eq!(counts, expect, "{shown}");
        }
    }

    #[test]
    fn the_output_of_a_chain_is_the_work_of_its_steps() {
        for (output, lost) in [
            (json!(["k-0-1", "k-1-1"]), 0),
            (json!(["k-0-1"]), 1),
            (json!(["k-0-1", "k-1-7"]), 1),
            (json!(["k-0-2", "k-1-1"]), 1),
            (json!(null), 1),
        ] {
            let entries = vec![
                call(Action::Create, "chain/c", Outcome::Ok),
                effect("a.1", 0, 1, &[]),
                effect("a.1", 1, 1, &["k-0-1"]),
            ];
            let findings = found(entries, &[("chain/c", run("complete", output.clone()))]);
            assert_eq!(counts(&findings), [lost, 0, 0, 0], "{output}");
            assert_eq!(findings.is_clean(), lost == 0);
        }
    }
}
