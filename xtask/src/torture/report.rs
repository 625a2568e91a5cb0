//! The report of a phase and the table at the end.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;

use super::phase::{Outcomes, Unavailable};

/// Findings of one kind to print; the log has the rest.
const PRINTED_MAX: usize = 10;

/// The report of one phase.
pub(crate) struct Report {
    name: String,
    took: Duration,
    outcomes: Option<Outcomes>,
    /// Problems that are no findings of the checker: an error, too few operations, a flaw.
    problems: Vec<String>,
    /// Why this machine cannot run the phase.
    skipped: Option<String>,
}

/// The least that a phase must do.
#[derive(Clone, Copy)]
pub(crate) struct Floor {
    pub(crate) operations: usize,
    pub(crate) faults: usize,
}

impl Report {
    /// A phase that this machine cannot run fails only if the user named it.
    pub(crate) fn new(
        name: String,
        outcomes: Result<Outcomes>,
        took: Duration,
        floor: Floor,
        is_named: bool,
    ) -> Self {
        let mut problems = Vec::new();
        let mut skipped = None;
        match &outcomes {
            Err(error) if error.is::<Unavailable>() && !is_named => {
                skipped = Some(format!("{error:#}"));
            }
            Err(error) => problems.push(format!("the phase failed: {error:#}")),
            Ok(outcomes) => {
                let (done, faults) = (outcomes.acknowledged, outcomes.faults);
                if done < floor.operations {
                    problems.push(format!(
                        "only {done} operations were acknowledged, at least {} are needed",
                        floor.operations
                    ));
                }
                if faults < floor.faults {
                    problems.push(format!(
                        "only {faults} faults were injected, at least {} are needed",
                        floor.faults
                    ));
                }
                problems.extend(outcomes.problems.iter().cloned());
                if let Some(flaw) = &outcomes.flaw {
                    problems.push(format!("the store is flawed: {flaw}"));
                }
            }
        }
        Self { name, took, outcomes: outcomes.ok(), problems, skipped }
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.skipped.is_some()
            || self.problems.is_empty()
                && self.outcomes.as_ref().is_some_and(|outcomes| outcomes.findings.is_clean())
    }

    /// The problems and the findings, a line each.
    pub(crate) fn details(&self) -> String {
        let mut text = String::new();
        if let Some(why) = &self.skipped {
            let _ = writeln!(text, "SKIPPED {why}");
        }
        for problem in &self.problems {
            let _ = writeln!(text, "FAILED  {problem}");
        }
        let Some(outcomes) = &self.outcomes else { return text };
        for note in &outcomes.notes {
            let _ = writeln!(text, "        {note}");
        }
        let found = &outcomes.findings;
        for (kind, list) in [
            ("LOST", &found.lost),
            ("DOUBLED", &found.doubled),
            ("STUCK", &found.stuck),
            ("UNTRUE", &found.untrue),
        ] {
            for finding in list.iter().take(PRINTED_MAX) {
                let _ = writeln!(text, "{kind:7} {finding}");
            }
            if list.len() > PRINTED_MAX {
                let _ = writeln!(text, "{kind:7} and {} more", list.len() - PRINTED_MAX);
            }
        }
        text
    }
}

/// The table of all phases.
pub(crate) fn table(reports: &[Report]) -> String {
    let mut text = String::from(
        "\nphase            secs  acked refused unknown  steps repeated late faults  lost doubled \
         stuck untrue\n",
    );
    for report in reports {
        let word = match report.is_clean() {
            true if report.skipped.is_some() => "skipped",
            true => "ok",
            false => "FAILED",
        };
        let _ = write!(text, "{:16} {:4}", report.name, report.took.as_secs());
        if let Some(outcomes) = &report.outcomes {
            let found = &outcomes.findings;
            let _ = write!(
                text,
                " {:6} {:7} {:7} {:6} {:8} {:4} {:6} {:5} {:7} {:5} {:6}",
                outcomes.acknowledged,
                outcomes.refused,
                outcomes.unknown,
                outcomes.effects,
                found.repeated,
                found.late,
                outcomes.faults,
                found.lost.len(),
                found.doubled.len(),
                found.stuck.len(),
                found.untrue.len()
            );
        }
        let _ = writeln!(text, "  {word}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::check::Findings;
    use super::*;

    fn outcomes() -> Outcomes {
        Outcomes { acknowledged: 10, effects: 10, faults: 3, ..Outcomes::default() }
    }

    fn report(outcomes: Result<Outcomes>) -> Report {
        let floor = Floor { operations: 10, faults: 3 };
        Report::new("a phase".into(), outcomes, Duration::ZERO, floor, false)
    }

    #[test]
    fn a_phase_that_cannot_run_fails_if_it_is_named() {
        let floor = Floor { operations: 10, faults: 3 };
        for is_named in [false, true] {
            let outcomes = Err(Unavailable("no root".into()).into());
            let report = Report::new("a".into(), outcomes, Duration::ZERO, floor, is_named);
            assert_eq!(report.is_clean(), !is_named);
            assert!(report.details().contains("no root"));
            let word = if is_named { "FAILED\n" } else { "skipped\n" };
            assert!(table(&[report]).ends_with(word));
        }
    }

    #[test]
    fn a_phase_that_did_too_little_or_found_something_fails() {
        let found = |findings| Outcomes { findings, ..outcomes() };
        let one = || vec!["order/o: a finding".to_owned()];
        for (given, expect) in [
            (Ok(outcomes()), ""),
            (Err(anyhow::anyhow!("no server")), "no server"),
            (Ok(Outcomes { acknowledged: 9, ..outcomes() }), "only 9 operations"),
            (Ok(Outcomes { faults: 2, ..outcomes() }), "only 2 faults"),
            (Ok(Outcomes { problems: vec!["a.1 ended".into()], ..outcomes() }), "a.1 ended"),
            (Ok(Outcomes { flaw: Some("a hash".into()), ..outcomes() }), "a hash"),
            (Ok(found(Findings { lost: one(), ..Findings::default() })), "LOST"),
            (Ok(found(Findings { doubled: one(), ..Findings::default() })), "DOUBLED"),
            (Ok(found(Findings { stuck: one(), ..Findings::default() })), "STUCK"),
            (Ok(found(Findings { untrue: one(), ..Findings::default() })), "UNTRUE"),
        ] {
            let report = report(given);
            assert_eq!(report.is_clean(), expect.is_empty(), "{expect}");
            assert!(report.details().contains(expect), "{}", report.details());
            let word = if expect.is_empty() { "  ok\n" } else { "  FAILED\n" };
            assert!(table(&[report]).ends_with(word));
        }
    }
}
