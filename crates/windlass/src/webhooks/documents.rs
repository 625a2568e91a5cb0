//! Webhooks that nodes of documents send.

use windlass_engine::{TaskContext, TaskHandler, TaskResult};
use windlass_kernel::{Body, BoxFuture, Error};
use windlass_models::contracts::{WEBHOOK_EFFECT, WebhookInput};

use super::{Webhook, Webhooks, failure, made_at};

/// The header that identifies the step which sends the webhook.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

impl Webhooks {
    /// Delivers the webhooks of documents, signed with the default secrets. The program says so with
    /// [`windlass_models::contracts::ContractsBuilder::webhooks`].
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine, webhooks: windlass::webhooks::Webhooks) -> windlass::Result<()> {
    /// webhooks.serve_contracts(&engine)?;
    /// let contracts = windlass::contracts::Contracts::builder().webhooks().open(&engine).await?;
    /// # drop(contracts);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`windlass_kernel::ErrorCode::ActivityExists`] if this process delivers them already.
    pub fn serve_contracts(&self, engine: &crate::Engine) -> Result<(), Error> {
        engine.serve_effects(WEBHOOK_EFFECT, std::sync::Arc::new(Documents(self.clone())))
    }
}

struct Documents(Webhooks);

impl TaskHandler for Documents {
    fn run(&self, context: TaskContext, input: Body) -> BoxFuture<'static, TaskResult> {
        let webhooks = self.0.clone();
        Box::pin(async move {
            let input: WebhookInput = input.read().map_err(failure)?;
            let event_type = format!("{}.webhook", input.entity_type);
            let mut webhook = Webhook::new(input.url, event_type, &input.body).map_err(failure)?;
            webhook.headers.insert(IDEMPOTENCY_KEY.to_owned(), input.idempotency_key);
            let (id, at) = (context.idempotency_key(), made_at(&context));
            webhooks.deliver(&context.namespace, &id, at, &webhook).await?;
            Ok(Body::json("null"))
        })
    }
}
