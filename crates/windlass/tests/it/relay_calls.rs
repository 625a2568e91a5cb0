//! Calls about a relay's runs by their ids, as a process makes them that did not start the run.

use bytes::Bytes;
use windlass::relays::{Finished, RelayStatus, RunSpec};
use windlass::{Error, ErrorCode, RunHandle, RunKey, WorkflowRef};

pub(crate) type Relay = WorkflowRef<Bytes, Bytes>;

/// A run that was started or found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Submitted {
    pub(crate) run_id: String,
    pub(crate) run_key: RunKey,
    pub(crate) existed: bool,
}

impl From<RunHandle<Bytes>> for Submitted {
    fn from(run: RunHandle<Bytes>) -> Self {
        Self { run_id: run.id().to_owned(), run_key: run.run_key(), existed: run.existed() }
    }
}

pub(crate) trait RelayCalls {
    async fn submit(&self, spec: RunSpec) -> Result<Submitted, Error>;
    async fn status(&self, id: &str) -> Result<Option<RelayStatus>, Error>;
    async fn wait(&self, id: &str) -> Result<Finished, Error>;
    async fn cancel(&self, id: &str) -> Result<bool, Error>;
    async fn signal(&self, id: &str, name: &str, payload: impl Into<Bytes>) -> Result<(), Error>;
    async fn retry(&self, id: &str) -> Result<RunKey, Error>;
}

impl RelayCalls for Relay {
    async fn submit(&self, spec: RunSpec) -> Result<Submitted, Error> {
        self.start_from(spec).await.map(Into::into)
    }

    async fn status(&self, id: &str) -> Result<Option<RelayStatus>, Error> {
        match self.get(id).await {
            Ok(run) => run.relay_status().await.map(Some),
            Err(error) if error.code() == ErrorCode::RunNotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn wait(&self, id: &str) -> Result<Finished, Error> {
        self.get(id).await?.finished().await
    }

    async fn cancel(&self, id: &str) -> Result<bool, Error> {
        match self.get(id).await {
            Ok(run) => run.cancel("cancelled").await,
            Err(error) if error.code() == ErrorCode::RunNotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn signal(&self, id: &str, name: &str, payload: impl Into<Bytes>) -> Result<(), Error> {
        self.get(id).await?.signal_bytes(name, payload).await
    }

    async fn retry(&self, id: &str) -> Result<RunKey, Error> {
        Ok(self.get(id).await?.retry().await?.run_key())
    }
}
