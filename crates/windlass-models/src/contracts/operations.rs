//! Operation of documents: where a run stands, and whether its state can be rebuilt from its steps.

use std::sync::Arc;

use serde::Serialize;
use windlass_contracts::tokens::{Status, StepRow};
use windlass_contracts::types::{CompiledWorkflow, Token};
use windlass_kernel::{Error, ErrorCode, Run, RunId, RunKey, Step};

use super::error::not_found;
use super::handle::Contracts;
use super::names::workflow_of;
use super::rows::{Snapshot, rebuild};

/// The position of a document's run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Position {
    /// The run.
    pub run: RunKey,
    /// The generation.
    pub generation: u32,
    /// The status of the run.
    pub run_status: String,
    /// The status of the token engine.
    pub status: Status,
    /// The lifecycle state.
    pub state: String,
    /// How often the run has gone back.
    pub cycle: u32,
    /// The live tokens.
    pub tokens: Vec<Token>,
    /// The rows that a later turn can still change.
    pub open: Vec<StepRow>,
}

/// The comparison of a run's state with the state that its steps give.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rebuilt {
    /// Whether both are the same.
    pub same: bool,
    /// The number of steps that were read.
    pub steps: usize,
}

impl Contracts {
    /// Where the run of a document stands.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// println!("{}", serde_json::to_string(&contracts.position("invoice", "i-1").await?)?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::RunNotFound`] if the document has no run.
    pub async fn position(&self, entity_type: &str, id: &str) -> Result<Position, Error> {
        let (run, snapshot) = self.run_of(entity_type, id).await?;
        let state = snapshot.state;
        Ok(Position {
            run: run.run_key,
            generation: run.generation,
            run_status: run.status.to_string(),
            status: state.status,
            state: state.lifecycle.clone(),
            cycle: state.cycle,
            tokens: state.tokens(),
            open: state.open.into_values().collect(),
        })
    }

    /// The newest generation of a document's run.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// println!("{:?}", contracts.run("invoice", "i-1").await?.status);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::RunNotFound`] if the document has no run.
    pub async fn run(&self, entity_type: &str, id: &str) -> Result<Run, Error> {
        Ok(self.run_of(entity_type, id).await?.0)
    }

    /// Rebuilds the state of a run from its artefact and its steps, and compares both.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// let rebuilt = contracts.rebuild("invoice", "i-1").await?;
    /// # drop(rebuilt);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::RunNotFound`] if the document has no run.
    pub async fn rebuild(&self, entity_type: &str, id: &str) -> Result<Rebuilt, Error> {
        let (run, snapshot) = self.run_of(entity_type, id).await?;
        let document = self.document(entity_type, id).await?;
        let artefact = self.shared.artefact(self.engine.namespace(), document.row.artefact).await?;
        let steps = self.steps_of(&run).await?;
        let rebuilt = rebuild(&artefact, &steps)?;
        let bytes = |state| serde_json::to_vec(state).unwrap_or_default();
        Ok(Rebuilt { same: bytes(&rebuilt) == bytes(&snapshot.state), steps: steps.len() })
    }

    /// The compiled workflow that a document is pinned to. A later publication does not change it.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts) -> windlass::Result<()> {
    /// println!("{} nodes", contracts.document_workflow("invoice", "i-1").await?.nodes.len());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::DocumentNotFound`] if there is no such document.
    pub async fn document_workflow(
        &self,
        entity_type: &str,
        id: &str,
    ) -> Result<Arc<CompiledWorkflow>, Error> {
        let document = self.document(entity_type, id).await?;
        self.shared.artefact(self.engine.namespace(), document.row.artefact).await
    }

    async fn steps_of(&self, run: &Run) -> Result<Vec<Step>, Error> {
        let loaded = self.engine.store().load(vec![run.run_key]).await?;
        Ok(loaded.into_iter().next().map(|loaded| loaded.steps).unwrap_or_default())
    }

    async fn run_of(&self, entity_type: &str, id: &str) -> Result<(Run, Snapshot), Error> {
        let workflow = workflow_of(entity_type)?;
        let namespace = self.engine.namespace().clone();
        let run = self.engine.store().find(namespace, workflow, RunId::new(id)?).await?;
        let run = run.ok_or_else(|| {
            let message = format!("document {id:?} of type {entity_type:?} has no run");
            not_found(ErrorCode::RunNotFound, message)
        })?;
        let snapshot = run.state.as_ref().map(windlass_kernel::Body::read).transpose()?;
        Ok((run, snapshot.unwrap_or_default()))
    }
}
