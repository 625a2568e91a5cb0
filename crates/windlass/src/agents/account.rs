//! The run that asks a person about an account whose spend limit is reached: one for each account.

use serde_json::{Value, json};
use windlass_engine::{Engine, WeakEngine};
use windlass_kernel::request::RequestStatus;
use windlass_kernel::{Error, ErrorCode, LimitKey};
use windlass_models::WorkflowRef;
use windlass_models::agents::{
    Agent, CallResult, Continuation, HumanRequest, RequestOutcome, Workflow, register, remote,
};

/// The workflow of these runs. Their id is the id of the account's key.
pub(crate) const WORKFLOW: &str = "llm-account";
/// The role that is asked by default.
pub(crate) const ASSIGNEE: &str = "role:operator";

/// The key of the limit that a spend limit closes.
pub(crate) fn spend_key(account: &str) -> LimitKey {
    LimitKey::from_stored(format!("llm:{account}:spend"))
}

/// Serves the runs in this process. One process may have several providers, so a second call does nothing.
pub(crate) fn serve(engine: &Engine) -> Result<(), Error> {
    let callees = engine.callees();
    let agent = Agent::new(WORKFLOW, "ask").function("ask", ask).functions(|functions| {
        functions.register_boxed("decided", 1, move |workflow, next| {
            let callees = callees.clone();
            Box::pin(async move {
                let (account, is_approved) = decision(workflow)?;
                if is_approved {
                    callees.open(&spend_key(&account)).await?;
                }
                Ok(next.halt())
            })
        });
    });
    match register(engine, agent) {
        Err(error) if error.code() == ErrorCode::WorkflowExists => Ok(()),
        registered => registered.map(drop),
    }
}

async fn ask(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let (provider, account): (String, String) =
        (workflow.get("provider")?, workflow.get("account")?);
    let assignee: String = workflow.get("assignee")?;
    let text = format!(
        "The provider {provider} refuses calls of the account {account}, because its spend limit is reached. \
         All workers wait. Raise the limit at the provider, then choose \"approve\". With \"reject\", one call \
         tries again in an hour at the earliest."
    );
    let request = HumanRequest::to(assignee.as_str())
        .title(format!("Raise the spend limit of {provider}"))
        .text(text)
        .label("provider", provider);
    Ok(next.human(request, "outcome", "decided"))
}

fn decision(workflow: &Workflow) -> Result<(String, bool), Error> {
    let outcome: RequestOutcome = workflow.get("outcome")?;
    Ok((workflow.get("account")?, outcome.status == RequestStatus::Approved))
}

/// One account.
#[derive(Clone)]
pub(crate) struct Account {
    engine: WeakEngine,
    pub(crate) provider: String,
    pub(crate) id: String,
    pub(crate) assignee: String,
}

impl Account {
    pub(crate) fn new(engine: &Engine, provider: &str, id: String) -> Self {
        Self {
            engine: engine.downgrade(),
            provider: provider.to_owned(),
            id,
            assignee: ASSIGNEE.to_owned(),
        }
    }

    /// Opens a request to a person, unless one is open.
    pub(crate) async fn ask(&self) -> Result<(), Error> {
        let Some(runs) = self.runs()? else { return Ok(()) };
        let input = json!({
            "provider": self.provider, "account": self.id, "assignee": self.assignee,
        });
        match runs.get(&self.id).await {
            Ok(run) if run.run().await?.status.is_ended() => run.restart().await.map(drop),
            Ok(_) => Ok(()),
            Err(error) if error.code() == ErrorCode::RunNotFound => {
                match runs.start(input).id(&self.id).must_not_exist().await {
                    Err(error) if error.code() == ErrorCode::RunExists => Ok(()),
                    started => started.map(drop),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Withdraws the request: the account is open again.
    pub(crate) async fn withdraw(&self) -> Result<(), Error> {
        let Some(runs) = self.runs()? else { return Ok(()) };
        match runs.get(&self.id).await {
            Ok(run) if !run.run().await?.status.is_ended() => run.terminate().await,
            Ok(_) => Ok(()),
            Err(error) if error.code() == ErrorCode::RunNotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn runs(&self) -> Result<Option<WorkflowRef<Value, Value>>, Error> {
        let Some(engine) = self.engine.upgrade() else { return Ok(None) };
        remote(&engine, WORKFLOW).map(Some)
    }
}
