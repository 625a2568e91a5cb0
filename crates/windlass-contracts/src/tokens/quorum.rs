//! Counts the decisions on a request for approval.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::Verdict;
use crate::types::{ApprovalConfig, Quorum, RejectionRule};

/// The result of a count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// The decision; nothing while more decisions are needed.
    pub verdict: Option<Verdict>,
    /// The people whose approval counts.
    pub by: Vec<String>,
    /// The approvals, or their weight.
    pub granted: u64,
    /// The approvals, or the weight, that the quorum needs.
    pub needed: u64,
}

impl Count {
    /// The evidence of the step row.
    pub(crate) fn evidence(&self, decisions: &BTreeMap<String, Verdict>) -> Value {
        json!({
            "by": self.by,
            "decisions": decisions,
            "granted": self.granted,
            "needed": self.needed,
        })
    }
}

/// Counts decisions. Decisions of people who are not asked do not count.
///
/// `givers` names the person whom a delegate represents. The weight of a decision is that of this person.
///
/// A quorum that can no longer be reached is a rejection under both rejection rules: otherwise the
/// step would wait for ever after everybody has decided.
pub fn count(
    config: &ApprovalConfig,
    asked: &BTreeSet<String>,
    decisions: &BTreeMap<String, Verdict>,
    givers: &BTreeMap<String, String>,
) -> Count {
    let weight = |person: &String| match &config.quorum {
        Quorum::Weighted { weights, .. } => {
            let person = givers.get(person).unwrap_or(person);
            weights.get(person).copied().map_or(0, u64::from)
        }
        _ => 1,
    };
    let with = |verdict: Verdict| {
        asked.iter().filter(move |person| decisions.get(*person) == Some(&verdict))
    };
    let total: u64 = asked.iter().map(weight).sum();
    let granted: u64 = with(Verdict::Approved).map(weight).sum();
    let abstained: u64 = with(Verdict::Abstained).map(weight).sum();
    let open: u64 = asked.iter().filter(|one| !decisions.contains_key(*one)).map(weight).sum();
    let needed = match &config.quorum {
        Quorum::Any {} => 1,
        Quorum::All {} => (total - abstained).max(1),
        Quorum::Count { count } => u64::from(*count).max(1),
        Quorum::Percent { percent } => (total * u64::from(*percent)).div_ceil(100).max(1),
        Quorum::Weighted { needed, .. } => u64::from(*needed).max(1),
    };
    let first_rejects =
        config.rejection == RejectionRule::First && with(Verdict::Rejected).next().is_some();
    let verdict = if first_rejects || granted + open < needed {
        Some(Verdict::Rejected)
    } else {
        (granted >= needed).then_some(Verdict::Approved)
    };
    let by = with(Verdict::Approved).filter(|person| weight(person) > 0).cloned().collect();
    Count { verdict, by, granted, needed }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `votes` has one letter for each person: `+` approved, `-` rejected, `0` abstained, `.` open.
    fn check(quorum: Value, rejection: RejectionRule, votes: &str, expect: Option<Verdict>) {
        let config = ApprovalConfig {
            approvers: None,
            chain: Some("c".to_owned()),
            quorum: serde_json::from_value(quorum.clone()).unwrap(),
            rejection,
            due: None,
        };
        let name = |index: usize| format!("p{index}");
        let asked = (0..votes.len()).map(name).collect();
        let mut decisions: BTreeMap<String, Verdict> =
            BTreeMap::from([("stranger".to_owned(), Verdict::Approved)]);
        for (index, vote) in votes.chars().enumerate() {
            let verdict = match vote {
                '+' => Verdict::Approved,
                '-' => Verdict::Rejected,
                '0' => Verdict::Abstained,
                _ => continue,
            };
            decisions.insert(name(index), verdict);
        }
        let found = count(&config, &asked, &decisions, &BTreeMap::new());
        assert_eq!(found.verdict, expect, "{quorum} {votes}: {found:?}");
        assert!(!found.by.contains(&"stranger".to_owned()));
    }

    #[test]
    fn every_quorum_is_counted() {
        use RejectionRule::{First, WhenImpossible};
        const YES: Option<Verdict> = Some(Verdict::Approved);
        const NO: Option<Verdict> = Some(Verdict::Rejected);
        let any = || json!({"kind": "any"});
        check(any(), First, "...", None);
        check(any(), First, "+..", YES);
        check(any(), First, "-..", NO);
        check(any(), WhenImpossible, "-..", None);
        check(any(), WhenImpossible, "-+.", YES);
        check(any(), WhenImpossible, "---", NO);
        check(any(), First, "000", NO);
        check(any(), First, "", NO);
        let all = || json!({"kind": "all"});
        check(all(), First, "++.", None);
        check(all(), First, "+++", YES);
        check(all(), First, "++0", YES);
        check(all(), WhenImpossible, "++-", NO);
        check(all(), First, "000", NO);
        let two = || json!({"kind": "count", "count": 2});
        check(two(), First, "+..", None);
        check(two(), First, "++.", YES);
        check(two(), WhenImpossible, "-+.", None);
        check(two(), WhenImpossible, "-0.", NO);
        check(two(), First, "+", NO);
        let most = || json!({"kind": "percent", "percent": 51});
        check(most(), First, "++..", None);
        check(most(), First, "+++.", YES);
        check(most(), WhenImpossible, "--..", NO);
        check(json!({"kind": "percent", "percent": 1}), First, "+..", YES);
        let weights = json!({"p0": 3, "p1": 1, "p2": 1});
        let heavy = || json!({"kind": "weighted", "weights": weights, "needed": 3});
        check(heavy(), First, ".++", None);
        check(heavy(), First, "+..", YES);
        check(heavy(), WhenImpossible, "-++", NO);
        // A person without a weight has none.
        check(heavy(), First, "...+", None);
        let most = json!({"kind": "weighted", "weights": {"p0": u32::MAX, "p1": u32::MAX},
                          "needed": u32::MAX});
        check(most, First, "++", YES);
    }

    #[test]
    fn a_delegate_has_the_weight_of_the_giver() {
        let config: ApprovalConfig = serde_json::from_value(json!({
            "approvers": {"strategy": "direct", "users": ["p", "q"]},
            "quorum": {"kind": "weighted", "weights": {"p": 3, "q": 1, "d": 9}, "needed": 3},
        }))
        .unwrap();
        let asked = ["d".to_owned(), "q".to_owned()].into();
        let decisions = [("d".to_owned(), Verdict::Approved)].into();
        let givers = [("d".to_owned(), "p".to_owned())].into();
        let found = count(&config, &asked, &decisions, &givers);
        assert_eq!((found.verdict, found.granted), (Some(Verdict::Approved), 3));
        assert_eq!(found.by, ["d"]);
    }
}
