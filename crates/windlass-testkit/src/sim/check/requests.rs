//! Invariants of requests to people: one outcome, no decision lost or counted twice, and none about a
//! record that its person did not see.

use std::collections::BTreeSet;

use futures::FutureExt as _;
use windlass_kernel::request::{
    About, DECISIONS, Decision, REQUESTS, RequestState, RequestStatus, Verdict,
};
use windlass_kernel::{
    Collection, Commit, MemoryStore, Namespace, Op, Query, Record, RecordKey, RecordWrite, Run,
    RunStatus, Store as _,
};

use super::super::fleet::agent::AGENT;
use super::super::fleet::request::{QUORUM, value_of};
use super::Checker;

const ONE_OUTCOME: &str = "32 a request has one outcome";
const COUNTED: &str = "33 a decision is counted once and is not lost";
const SEEN: &str = "34 a decision is about what its person has seen";

fn record(store: &MemoryStore, key: RecordKey) -> Option<Record> {
    store.records(vec![key]).now_or_never()?.ok()?.pop().flatten()
}

fn request(store: &MemoryStore, namespace: &Namespace, id: &str) -> Option<RequestState> {
    record(store, RequestState::key_of(namespace, id))?.body?.read().ok()
}

impl Checker {
    /// A commit took effect: looks at the decisions and the ends of requests that it wrote.
    pub(super) fn check_requests(&self, store: &MemoryStore, sent: &Commit) {
        for op in sent.ops.iter() {
            let Op::Record(op) = op else { continue };
            let RecordWrite::Put(put) = &op.write else { continue };
            match op.key.collection.as_str() {
                DECISIONS => {
                    let Ok(decision) = put.body.read::<Decision>() else { continue };
                    self.check_decision(store, &op.key.namespace, &decision);
                }
                REQUESTS => {
                    let Ok(state) = put.body.read::<RequestState>() else { continue };
                    if state.status != RequestStatus::Open
                        && !self.state().closed_requests.insert(state.id.clone())
                    {
                        let detail =
                            format!("request {} ended again as {}", state.id, state.status);
                        self.fail(ONE_OUTCOME, detail);
                    }
                }
                _ => {}
            }
        }
    }

    fn check_decision(&self, store: &MemoryStore, namespace: &Namespace, decision: &Decision) {
        let Some(state) = request(store, namespace, &decision.request) else {
            return self.fail(COUNTED, format!("{decision:?} is about no request"));
        };
        if state.votes.iter().filter(|vote| vote.by == decision.by).count() != 1 {
            return self.fail(COUNTED, format!("{decision:?} is not counted once: {state:?}"));
        }
        let Some(About::Record(about)) = &state.about else { return };
        let (collection, id) = (about.collection.clone(), about.id.clone());
        let key = RecordKey { namespace: namespace.clone(), collection, id };
        let now = record(store, key).and_then(|record| Some(record.body?.digest()));
        if now.is_none() || now != decision.about {
            let detail = format!("{decision:?} was written when the record was {now:?}");
            self.fail(SEEN, detail);
        }
    }

    /// At the end: the outcome of each request follows from its decisions, and its run has seen it.
    pub(super) fn audit_requests(
        &self,
        store: &MemoryStore,
        runs: &[Run],
        accepted: &[(String, String)],
    ) {
        for namespace in &self.namespaces {
            let listed = |collection: &'static str| {
                let query = Query::Records {
                    namespace: namespace.clone(),
                    collection: Collection::from_stored(collection),
                    term: None,
                    after: None,
                    limit: 1_000,
                };
                let rows =
                    store.list(query).now_or_never().and_then(|rows| rows.ok()?.records().ok());
                rows.unwrap_or_default().into_iter().filter_map(|record| record.body)
            };
            let decisions: Vec<Decision> =
                listed(DECISIONS).filter_map(|body| body.read().ok()).collect();
            for state in listed(REQUESTS).filter_map(|body| body.read::<RequestState>().ok()) {
                self.audit_request(&state, &decisions, runs);
                let told = accepted.iter().filter(|(request, _)| *request == state.id);
                for (_, person) in told {
                    if !state.votes.iter().any(|vote| vote.by == *person) {
                        self.fail(COUNTED, format!("{person} was told of a decision: {state:?}"));
                    }
                }
            }
        }
    }

    fn audit_request(&self, state: &RequestState, decisions: &[Decision], runs: &[Run]) {
        let own = decisions.iter().filter(|decision| decision.request == state.id);
        let people: BTreeSet<&str> = own.map(|decision| &*decision.by).collect();
        let votes: BTreeSet<&str> = state.votes.iter().map(|vote| &*vote.by).collect();
        if people != votes || votes.len() != state.votes.len() {
            self.fail(COUNTED, format!("decisions of {people:?}: {state:?}"));
        }
        let run = runs.iter().find(|run| run.run_key == state.run.run_key);
        if run.is_some_and(|run| run.workflow.as_str() == AGENT) {
            // Its output is compared with its seed.
            if state.status == RequestStatus::Open {
                self.fail(ONE_OUTCOME, format!("it is open at rest: {state:?}"));
            }
            return;
        }
        let approvals = state.count(Verdict::Approve);
        let right = match state.status {
            RequestStatus::Open => false,
            RequestStatus::Approved => approvals == QUORUM,
            _ => approvals < QUORUM,
        };
        let seen = run.is_some_and(|run| match run.status {
            RunStatus::Complete => {
                let output = run.output.as_ref().and_then(|output| output.read::<u64>().ok());
                output == Some(value_of(state.status, state.votes.len()))
            }
            status => status.is_ended(),
        });
        if !right || !seen {
            let output = run.map(|run| (run.status, run.output.clone()));
            self.fail(ONE_OUTCOME, format!("the run came to {output:?}: {state:?}"));
        }
    }
}
