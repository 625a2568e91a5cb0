//! Commits in a known order, and what is left of them after the log that held them was damaged.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use windlass::admin::{Anchor, verify_store};
use windlass_kernel::{Commit, Error, Head, Hold, OnExisting, Run, RunKey, Store, Turn};

use super::sample::world;
use super::{Open, Outcome, every_run, noticed};
use crate::sim::rng::Rng;
use crate::world::World;

/// The order in which commits were acknowledged.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    /// For each run, the number of commits up to and with the one that led to a head, in order.
    heads: BTreeMap<RunKey, Vec<(usize, Head)>>,
    /// How many commits there were after each transaction.
    transactions: BTreeSet<usize>,
}

/// The part of a damaged log that can still be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remains {
    /// The store does not open.
    Refused(String),
    /// The store's check or the ledger found it, without help.
    Noticed(String),
    /// The first commits, so many of them, and the anchors name every run that lost some.
    Prefix(usize),
    /// Something else.
    Missed(String),
}

impl Journal {
    /// How many commits there were.
    pub fn commits(&self) -> usize {
        self.transactions.last().copied().unwrap_or(0)
    }

    /// The heads at the end, as somebody would keep them elsewhere.
    pub fn anchors(&self) -> Vec<Anchor> {
        let last = |(run_key, heads): (&RunKey, &Vec<(usize, Head)>)| {
            let (_, Head { next_ordinal, hash }) = *heads.last()?;
            Some(Anchor { run_key: *run_key, next_ordinal, hash })
        };
        self.heads.iter().filter_map(last).collect()
    }

    /// After how many commits, at the end of a transaction, all runs had just these heads.
    fn prefix(&self, found: &BTreeMap<RunKey, Head>) -> Result<usize, String> {
        if let Some(unknown) = found.keys().find(|key| !self.heads.contains_key(key)) {
            return Err(format!("run {unknown} was never committed"));
        }
        let (mut from, mut to) = (0, usize::MAX);
        for (key, heads) in &self.heads {
            let at = match found.get(key) {
                None => None,
                Some(head) => Some(
                    heads
                        .iter()
                        .position(|(_, known)| known == head)
                        .ok_or_else(|| format!("run {key} has a head that it never had"))?,
                ),
            };
            let next = heads.get(at.map_or(0, |at| at + 1));
            from = from.max(at.map_or(0, |at| heads[at].0));
            to = to.min(next.map_or(usize::MAX, |(count, _)| count - 1));
        }
        let ends = |count: &&usize| (from..=to).contains(*count);
        match self.transactions.iter().find(ends) {
            Some(count) => Ok(*count),
            None => Err(format!("no transaction ended with commits {from} to {to}")),
        }
    }

    /// The runs whose last commits are not among the first so many.
    fn losers(&self, commits: usize) -> BTreeSet<RunKey> {
        let lost = |heads: &Vec<(usize, Head)>| heads.last().is_some_and(|(at, _)| *at > commits);
        self.heads.iter().filter(|(_, heads)| lost(heads)).map(|(key, _)| *key).collect()
    }
}

/// Writes at least so many commits, a few in a transaction, and notes their order. The store is
/// left open and at rest, so that its files can be copied as a crash would leave them.
pub async fn write_log(store: Arc<dyn Store>, commits: usize, seed: u64) -> Journal {
    let world = world(store).await;
    let mut rng = Rng::new(seed);
    let mut journal = Journal { transactions: [0].into(), ..Journal::default() };
    let mut open: Vec<(RunKey, Hold)> = Vec::new();
    let mut created = 0;
    while journal.commits() < commits {
        let mut batch: Vec<Commit> = Vec::new();
        let mut busy: BTreeSet<RunKey> = BTreeSet::new();
        for _ in 0..rng.range(1, 4) {
            let fresh = open.len() < 4 || rng.chance(300);
            let commit = if fresh {
                created += 1;
                let (commit, hold) = create(&world, created);
                open.extend(commit.run_key().map(|key| (key, hold)));
                commit
            } else {
                let at = rng.below(open.len() as u64) as usize;
                let (key, hold) = open[at];
                // Runs of this batch cannot be loaded yet.
                if busy.contains(&key) || !journal.heads.contains_key(&key) {
                    continue;
                }
                let run = world.run(key).await;
                if rng.chance(200) {
                    open.swap_remove(at);
                    world.complete_commit(&run, hold)
                } else {
                    let step = format!("step-{}", run.head.next_ordinal);
                    world.step_commit(&run, hold, &step, "\"done\"")
                }
            };
            busy.extend(commit.run_key());
            batch.push(commit);
        }
        journal.write(&world, batch).await;
    }
    journal
}

fn create(world: &World, n: usize) -> (Commit, Hold) {
    let worker = world.worker();
    let new = world.new_run(&format!("logged-{n}"), Turn::held_by(worker));
    let hold = Hold { worker, claim_no: new.turn.claim_no };
    (world.create_commit(new, OnExisting::Refuse), hold)
}

impl Journal {
    async fn write(&mut self, world: &World, batch: Vec<Commit>) {
        let mut count = self.commits();
        for commit in &batch {
            count += 1;
            let head = commit.run_change().map(|change| change.head).or_else(|| first_head(commit));
            if let (Some(key), Some(head)) = (commit.run_key(), head) {
                self.heads.entry(key).or_default().push((count, head));
            }
        }
        for result in world.store.commit(batch).await {
            result.expect("a commit of the journal holds");
        }
        self.transactions.insert(count);
    }
}

fn first_head(commit: &Commit) -> Option<Head> {
    commit.ops.iter().find_map(|op| match op {
        windlass_kernel::Op::CreateRun(run) => Some(run.head),
        _ => None,
    })
}

/// Opens a store whose log was damaged, and says what is left.
pub async fn examine_log(open: &Open, path: PathBuf, journal: &Journal) -> Remains {
    let store = match open(path).await {
        Ok(store) => store,
        Err(error) => return Remains::Refused(error.to_string()),
    };
    let remains = match noticed(&*store).await {
        Some(Outcome::Check(what) | Outcome::Verify(what)) => Remains::Noticed(what),
        _ => compare(&*store, journal)
            .await
            .unwrap_or_else(|error| Remains::Noticed(error.to_string())),
    };
    let _ = store.close().await;
    remains
}

async fn compare(store: &dyn Store, journal: &Journal) -> Result<Remains, Error> {
    let runs: Vec<Run> = every_run(store).await?;
    let found = runs.iter().map(|run| (run.run_key, run.head)).collect();
    let commits = match journal.prefix(&found) {
        Ok(commits) => commits,
        Err(what) => return Ok(Remains::Missed(what)),
    };
    let report = verify_store(store, &journal.anchors()).await?;
    let named: BTreeSet<RunKey> = report.flaws.iter().map(|flaw| flaw.run_key).collect();
    let lost = journal.losers(commits);
    if named != lost {
        let what = format!("{} runs lost commits and the anchors name {}", lost.len(), named.len());
        return Ok(Remains::Missed(what));
    }
    Ok(Remains::Prefix(commits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;
    use windlass_kernel::Sha256Digest;

    fn head(n: u64) -> Head {
        Head { next_ordinal: n, hash: Sha256Digest::of(&n.to_be_bytes()) }
    }

    // Two runs: a, b | a | b, in three transactions.
    fn journal() -> Journal {
        let (a, b) = (RunKey(Uuid::from_u128(1)), RunKey(Uuid::from_u128(2)));
        let heads = [(a, vec![(1, head(1)), (3, head(3))]), (b, vec![(2, head(2)), (4, head(4))])];
        Journal { heads: heads.into(), transactions: [0, 2, 3, 4].into() }
    }

    #[track_caller]
    fn check(found: &[(u128, u64)], expect: Result<usize, &str>) {
        let found =
            found.iter().map(|(key, n)| (RunKey(Uuid::from_u128(*key)), head(*n))).collect();
        let prefix = journal().prefix(&found);
        match expect {
            Ok(count) => assert_eq!(prefix, Ok(count)),
            Err(text) => assert!(prefix.as_ref().is_err_and(|e| e.contains(text)), "{prefix:?}"),
        }
    }

    #[test]
    fn only_what_was_there_at_the_end_of_a_transaction_is_a_prefix() {
        check(&[], Ok(0));
        check(&[(1, 1), (2, 2)], Ok(2));
        check(&[(1, 3), (2, 2)], Ok(3));
        check(&[(1, 3), (2, 4)], Ok(4));
        check(&[(1, 1)], Err("no transaction ended"));
        check(&[(1, 1), (2, 4)], Err("no transaction ended"));
        check(&[(1, 9), (2, 2)], Err("never had"));
        check(&[(3, 1)], Err("never committed"));
    }

    #[test]
    fn runs_that_lost_their_last_commits_are_reported() {
        let lost = |n| journal().losers(n).len();
        assert_eq!([lost(0), lost(2), lost(3), lost(4)], [2, 2, 1, 0]);
        assert_eq!(journal().anchors().len(), 2);
        assert_eq!(journal().commits(), 4);
    }
}
