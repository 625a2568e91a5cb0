//! The report of a phase and the table at the end.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;

use super::phase::Outcomes;

/// Findings of one kind to print; the log has the rest.
const PRINTED_MAX: usize = 10;

/// The report of one phase.
pub(crate) struct Report {
    name: String,
    took: Duration,
    outcomes: Option<Outcomes>,
    /// Problems that are no findings of the checker: an error, too few operations, a flaw.
    problems: Vec<String>,
}

impl Report {
    pub(crate) fn new(
        name: String,
        outcomes: Result<Outcomes>,
        took: Duration,
        operations_min: usize,
        faults_min: usize,
    ) -> Self {
        let mut problems = Vec::new();
        match &outcomes {
            Err(error) => problems.push(format!("the phase failed: {error:#}")),
            Ok(outcomes) => {
                let (done, faults) = (outcomes.acknowledged, outcomes.faults);
                if done < operations_min {
                    problems.push(format!(
                        "only {done} operations were acknowledged, at least {operations_min} are \
                         needed"
                    ));
                }
                if faults < faults_min {
                    problems.push(format!(
                        "only {faults} faults were injected, at least {faults_min} are needed"
                    ));
                }
                problems.extend(outcomes.exits.iter().cloned());
                if let Some(flaw) = &outcomes.flaw {
                    problems.push(format!("the store is flawed: {flaw}"));
                }
            }
        }
        Self { name, took, outcomes: outcomes.ok(), problems }
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.problems.is_empty()
            && self.outcomes.as_ref().is_some_and(|outcomes| outcomes.findings.is_clean())
    }

    /// The problems and the findings, a line each.
    pub(crate) fn details(&self) -> String {
        let mut text = String::new();
        for problem in &self.problems {
            let _ = writeln!(text, "FAILED  {problem}");
        }
        let Some(outcomes) = &self.outcomes else { return text };
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
        let word = if report.is_clean() { "ok" } else { "FAILED" };
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
        Outcomes {
            acknowledged: 10,
            refused: 0,
            unknown: 0,
            effects: 10,
            faults: 3,
            exits: Vec::new(),
            findings: Findings::default(),
            flaw: None,
        }
    }

    fn report(outcomes: Result<Outcomes>) -> Report {
        Report::new("a phase".into(), outcomes, Duration::ZERO, 10, 3)
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
            (Ok(Outcomes { exits: vec!["a.1 ended".into()], ..outcomes() }), "a.1 ended"),
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
