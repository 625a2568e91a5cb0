//! The differential test: the same random calls on several stores must give the same answers and
//! leave the same rows.
//!
//! Clocks of all subjects must stand still until they are moved, and start at the same time.

mod calls;
mod commits;
mod dump;
mod records;

use windlass_kernel::{Commit, CommitError, Committed, Store};

use crate::sim::rng::Rng;
use crate::world::{Subject, World};

use calls::Call;
use commits::Author;
use dump::Dump;

/// Plays `calls` random calls from `seed` on all subjects; the first is the reference.
///
/// Panics with the seed, the call and the first difference.
pub async fn differential(subjects: Vec<Box<dyn Subject>>, seed: u64, calls: usize) {
    let mut subjects = subjects.into_iter();
    let reference = World::new(subjects.next().expect("a reference store")).await;
    let others: Vec<Box<dyn Subject>> = subjects.collect();
    assert!(!others.is_empty(), "there is nothing to compare the reference with");
    for other in &others {
        let now = other.store().now().await.expect("the store tells the time");
        assert_eq!(now, reference.now().await, "clocks must start at the same time");
    }
    let mut author = Author::new(Rng::new(seed));
    for n in 0..calls {
        let call = Call::next(&mut author, &reference).await;
        let place = format!("seed {seed}, call {n}, {call:?}");
        let expect = call.play(&reference.store, &*reference.subject).await;
        author.learn(&call, &expect);
        for (m, other) in others.iter().enumerate() {
            let found = call.play(&other.store(), &**other).await;
            assert_eq!(found, expect, "store {} answers otherwise: {place}", m + 1);
        }
        if n % 20 == 19 || n + 1 == calls {
            let expect = Dump::of(&*reference.store).await;
            for (m, other) in others.iter().enumerate() {
                let found = Dump::of(&*other.store()).await;
                expect.assert_same(&found, &format!("store {} after {place}", m + 1));
            }
        }
    }
    author.assert_covered();
}

// An answer as all stores give it: texts of errors may differ, codes and guards may not.
fn display_answer(answer: &Result<Committed, CommitError>, moved_on: bool) -> String {
    match answer {
        // A commit that was written before is looked up after the rest of its batch, or beside it: messages
        // of the same call may be counted by then, and a later commit of the same run may have given
        // the turn back.
        Ok(committed) if committed.repeated => {
            let hold = committed.hold.filter(|_| !moved_on);
            format!("{:?}", Committed { accepted: 0, hold, ..committed.clone() })
        }
        Ok(committed) => format!("{committed:?}"),
        Err(CommitError::Conflict(conflict)) => format!("{conflict:?}"),
        Err(CommitError::Refused(refusal)) => format!("{refusal:?}"),
        Err(error) => error.code().as_str().to_owned(),
    }
}

async fn commit(store: &dyn Store, commits: &[Commit]) -> Vec<String> {
    let answers = store.commit(commits.to_vec()).await;
    let moved_on = |n: usize| {
        let run_key = commits[n].run_key();
        run_key.is_some() && commits[n + 1..].iter().any(|later| later.run_key() == run_key)
    };
    answers.iter().enumerate().map(|(n, answer)| display_answer(answer, moved_on(n))).collect()
}
