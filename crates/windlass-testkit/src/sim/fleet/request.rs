//! Runs that ask people about a record, while people decide, somebody edits the record, and the request is due.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_engine::{Engine, InboxOrder, InboxQuery, Requests};
use windlass_kernel::request::{
    Decider, DueAction, NewDecision, RecordRef, Request, RequestState, RequestStatus,
};
use windlass_kernel::{ErrorCode, Sha256Digest, Subject};
use windlass_models::steps::{self, Ctx};
use windlass_models::{AnyError, WorkflowRef};

use super::super::executor::{Handle, NodeId, locked};
use super::super::rng::Rng;
use super::client::{ClientView, pause_and_resume, until_answered};

/// The workflow that asks.
pub(crate) const ASK: &str = "ask";
/// The collection of the records that requests are about.
const PAPERS: &str = "papers";
/// How many approvals a request needs, and how many people are asked.
pub(crate) const QUORUM: u32 = 2;
const PEOPLE: u64 = 3;
/// How many times a person looks for the request before they give up.
const LOOKS_MAX: u32 = 4_000;

/// The decisions that people were told are written: request and person.
pub(crate) type Accepted = Arc<Mutex<Vec<(String, String)>>>;

/// The input of a run that asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ask {
    paper: RecordRef,
    due_ms: u64,
}

/// The result of a run whose request has ended so.
pub(crate) fn value_of(status: RequestStatus, decisions: usize) -> u64 {
    let place = RequestStatus::ALL.iter().position(|known| *known == status);
    place.unwrap_or_default() as u64 * 100 + decisions as u64
}

/// Asks, and ends with what has come of it.
pub(crate) async fn run(ctx: Ctx, ask: Ask) -> Result<u64, AnyError> {
    let request = Request::to("role:board")
        .about(&ask.paper)
        .quorum(QUORUM)
        .due(Duration::from_millis(ask.due_ms))
        .on_due(DueAction::Expire);
    let outcome = ctx.request("ask", request).await?;
    Ok(value_of(outcome.status, outcome.decisions.len()))
}

/// Writes a record, starts a run that asks about it, and lets people, an editor and the due time race.
pub(crate) async fn run_to_end(
    sim: Handle,
    node: NodeId,
    engine: Engine,
    (view, accepted): (Arc<Mutex<ClientView>>, Accepted),
    mut rng: Rng,
) {
    let id = locked(&view).id.clone();
    sim.sleep_us(rng.range(1, 1_000_000)).await;
    let papers = engine.records::<u64>(PAPERS);
    let put = until_answered(&sim, || papers.put(&id, &0).keep().send()).await;
    put.expect("a record can be written");
    let paper = until_answered(&sim, || papers.get(&id)).await.expect("the record is read");
    let paper = paper.expect("the record exists").reference();
    let (due_ms, digest) = (rng.range(50, 1_500), paper.digest);
    let workflow: WorkflowRef<Ask, u64> = steps::remote(&engine, ASK).expect("a valid name");
    let ask = Ask { paper, due_ms };
    let run = until_answered(&sim, || workflow.start(ask.clone()).id(id.clone())).await;
    let run = run.expect("a run of a new name can be started");
    // All of them act around the same moment, so that each order occurs.
    let moment_us = rng.range(0, due_ms) * 1_000;
    for person in 0..PEOPLE {
        let (requests, accepted) = (engine.requests(), accepted.clone());
        let person = Person { run_id: id.clone(), name: format!("p{person}"), digest };
        let (sim_of, mut rng) = (sim.clone(), rng.fork());
        let at_us = if rng.chance(700) { moment_us } else { due_ms * 1_000 };
        sim.spawn(node, async move {
            person.decide(sim_of, requests, accepted, at_us + rng.below(4_000)).await;
        });
    }
    if rng.chance(600) {
        let (requests, engine, id) = (engine.requests(), engine.clone(), id.clone());
        let (sim_of, at_us) = (sim.clone(), moment_us + rng.below(4_000));
        sim.spawn(node, async move {
            if find(&sim_of, &requests, &id).await.is_some() {
                sim_of.sleep_us(at_us).await;
                let papers = engine.records::<u64>(PAPERS);
                let _ = until_answered(&sim_of, || papers.put(&id, &1).keep().send()).await;
            }
        });
    }
    if rng.chance(200) {
        sim.spawn(node, pause_and_resume(sim.clone(), run.clone(), rng.fork()));
    }
    let ended = until_answered(&sim, || run.result()).await;
    locked(&view).ended = Some(ended.map_err(|error| error.code().as_str().to_owned()));
}

struct Person {
    run_id: String,
    name: String,
    digest: Sha256Digest,
}

impl Person {
    async fn decide(self, sim: Handle, requests: Requests, accepted: Accepted, wait_us: u64) {
        let Some(request) = find(&sim, &requests, &self.run_id).await else { return };
        sim.sleep_us(wait_us).await;
        let who = Subject::new(&self.name, ["board"]).expect("a valid name");
        let who = Decider::new(who);
        let yes = NewDecision::approve().about(self.digest);
        match until_answered(&sim, || requests.decide(&request.id, &who, &yes)).await {
            Ok(_) => locked(&accepted).push((request.id, self.name)),
            Err(error) if error.code() == ErrorCode::RequestStale => {
                sim.sometimes("decision about a changed record was refused");
            }
            Err(error) if error.code() == ErrorCode::RequestClosed => {
                sim.sometimes("decision came after the end of its request");
            }
            Err(error) => sim.trace(format_args!("decide: {}", error.code())),
        }
    }
}

// The open request of a run, once there is one.
async fn find(sim: &Handle, requests: &Requests, run_id: &str) -> Option<RequestState> {
    let open = InboxQuery::Status(RequestStatus::Open);
    for _ in 0..LOOKS_MAX {
        let page = requests.inbox(&open, InboxOrder::Opened, None, 50);
        if let Ok(page) = page.await
            && let Some(found) = page.requests.into_iter().find(|state| state.run.id == run_id)
        {
            return Some(found);
        }
        sim.sleep_us(10_000).await;
    }
    None
}
