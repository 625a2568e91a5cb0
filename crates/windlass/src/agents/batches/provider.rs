//! The batches of both clients as lanes use them.

use std::collections::BTreeMap;

use windlass_kernel::{BoxFuture, Timestamp};
use windlass_models::agents::{
    BatchEnd, BatchLimits, BatchLine, BatchMember, BatchProvider, BatchRefused, BatchResults,
    BatchView, ProviderError, ProviderErrorKind as Kind,
};

use super::super::{AnthropicClient, OpenaiClient};
use super::{Batch, BatchError, BatchRequest, BatchState, MemberEnd, ResultLine, Results};

/// The note at OpenAI that names the intent of a batch.
const INTENT: &str = "windlass_intent";
/// How many pages of batches are read to find one.
const PAGES_MAX: usize = 50;

fn requests(members: Vec<BatchMember>) -> Vec<BatchRequest> {
    let request = |BatchMember { custom_id, body }| BatchRequest { custom_id, body };
    members.into_iter().map(request).collect()
}

fn view(batch: Batch) -> BatchView {
    let state = match &batch.state {
        BatchState::Other(state) => state.chars().take(100).collect(),
        state => format!("{state:?}").to_lowercase(),
    };
    let refused = (batch.state == BatchState::Failed).then(|| refused(&batch.errors));
    BatchView {
        state,
        ended: batch.state.is_final(),
        refused,
        total: batch.counts.total(),
        processing: batch.counts.processing,
        intent: batch.metadata.get(INTENT).cloned(),
        expires_at: batch.expires_at.map(|at| Timestamp::from_micros(at.as_microsecond())),
        results: batch.results,
        id: batch.id,
    }
}

fn refused(errors: &[BatchError]) -> BatchRefused {
    let kind = |error: &BatchError| match error.code.as_str() {
        // Other batches of the account have to end first.
        "token_limit_exceeded" | "rate_limit_exceeded" => Kind::TokenRateLimited,
        "billing_hard_limit_reached" | "insufficient_quota" => Kind::SpendLimitReached,
        "server_error" => Kind::Retryable,
        _ => Kind::Invalid,
    };
    let kinds: Vec<Kind> = errors.iter().map(kind).collect();
    // A request that is wrong stays wrong, however long the lane waits.
    let kind = match kinds.contains(&Kind::Invalid) {
        true => Kind::Invalid,
        false => kinds.first().copied().unwrap_or(Kind::Invalid),
    };
    let texts = errors.iter().take(5).map(|error| format!("{}: {}", error.code, error.message));
    let texts: Vec<String> = texts.collect();
    let lines = errors.iter().filter_map(|error| error.line?.checked_sub(1)?.try_into().ok());
    BatchRefused {
        kind,
        message: format!("the provider refused the batch: {}", texts.join("; ")),
        members: lines.collect(),
        retry_after: None,
    }
}

// A view has what reading the results needs.
fn batch_of(view: &BatchView) -> Batch {
    Batch {
        id: view.id.clone(),
        state: BatchState::Ended,
        counts: Default::default(),
        created_at: None,
        expires_at: None,
        metadata: BTreeMap::new(),
        input_file: None,
        results: view.results.clone(),
        errors: Vec::new(),
    }
}

fn is_since(batch: &Batch, since: Timestamp) -> bool {
    let created = batch.created_at.map(|at| at.as_microsecond());
    created.is_none_or(|at| at >= since.as_micros())
}

struct Lines<'a>(Results<'a>);

impl BatchResults for Lines<'_> {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<BatchLine>, ProviderError>> {
        Box::pin(async move {
            let line = self.0.next().await?;
            Ok(line.map(|line| match line {
                ResultLine::Bad { .. } => BatchLine::Bad,
                ResultLine::Member(member) => {
                    let end = match member.end {
                        MemberEnd::Succeeded(response) => BatchEnd::Succeeded(response),
                        MemberEnd::Errored(error) => BatchEnd::Errored(error),
                        MemberEnd::Cancelled => BatchEnd::Cancelled,
                        MemberEnd::Expired => BatchEnd::Expired,
                    };
                    BatchLine::Member { custom_id: member.custom_id, end }
                }
            }))
        })
    }
}

impl BatchProvider for AnthropicClient {
    fn limits(&self) -> BatchLimits {
        BatchLimits {
            members_max: 100_000,
            bytes_max: 256_000_000,
            one_model: false,
            marks: false,
            create_time_max: self.http.timeout,
        }
    }

    fn create<'a>(
        &'a self,
        _: &'a str,
        members: Vec<BatchMember>,
    ) -> BoxFuture<'a, Result<BatchView, ProviderError>> {
        Box::pin(async move { self.create_batch(&requests(members)).await.map(view) })
    }

    fn read<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<BatchView, ProviderError>> {
        Box::pin(async move { self.batch(id).await.map(view) })
    }

    fn since(&self, since: Timestamp) -> BoxFuture<'_, Result<Vec<BatchView>, ProviderError>> {
        Box::pin(async move {
            let (mut found, mut after) = (Vec::new(), None);
            for _ in 0..PAGES_MAX {
                let page = self.batches(1_000, after.as_deref()).await?;
                // The newest come first.
                let older = page.batches.iter().any(|batch| !is_since(batch, since));
                found.extend(page.batches.into_iter().filter(|batch| is_since(batch, since)));
                after = page.after;
                if after.is_none() || older {
                    break;
                }
            }
            Ok(found.into_iter().map(view).collect())
        })
    }

    fn cancel<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<BatchView, ProviderError>> {
        Box::pin(async move { self.cancel_batch(id).await.map(view) })
    }

    fn results<'a>(&'a self, batch: &'a BatchView) -> Box<dyn BatchResults + 'a> {
        Box::new(Lines(self.batch_results(&batch_of(batch))))
    }
}

impl BatchProvider for OpenaiClient {
    fn limits(&self) -> BatchLimits {
        BatchLimits {
            members_max: 50_000,
            bytes_max: 200_000_000,
            one_model: true,
            marks: true,
            // The upload and the creation.
            create_time_max: self.http.timeout * 2,
        }
    }

    fn create<'a>(
        &'a self,
        intent: &'a str,
        members: Vec<BatchMember>,
    ) -> BoxFuture<'a, Result<BatchView, ProviderError>> {
        Box::pin(async move {
            // An upload is not charged, so one without an answer is only tried again.
            let name = format!("windlass-{intent}.jsonl");
            let file = self.upload_batch(&name, &requests(members)).await.map_err(not_charged)?;
            let notes = BTreeMap::from([(INTENT.to_owned(), intent.to_owned())]);
            self.create_batch(&file.id, &notes).await.map(view)
        })
    }

    fn read<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<BatchView, ProviderError>> {
        Box::pin(async move { self.batch(id).await.map(view) })
    }

    fn since(&self, since: Timestamp) -> BoxFuture<'_, Result<Vec<BatchView>, ProviderError>> {
        Box::pin(async move {
            let (mut found, mut after) = (Vec::new(), None);
            for _ in 0..PAGES_MAX {
                let page = self.batches(100, after.as_deref()).await?;
                let older = page.batches.iter().any(|batch| !is_since(batch, since));
                found.extend(page.batches.into_iter().filter(|batch| is_since(batch, since)));
                after = page.after;
                if after.is_none() || older {
                    break;
                }
            }
            Ok(found.into_iter().map(view).collect())
        })
    }

    fn cancel<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<BatchView, ProviderError>> {
        Box::pin(async move { self.cancel_batch(id).await.map(view) })
    }

    fn results<'a>(&'a self, batch: &'a BatchView) -> Box<dyn BatchResults + 'a> {
        Box::new(Lines(self.batch_results(&batch_of(batch))))
    }
}

// The kind of an upload that failed: there can be no batch, so it is tried again.
fn not_charged(error: ProviderError) -> ProviderError {
    match error.kind().may_be_paid() {
        false => error,
        true => {
            let message = format!("the file of a batch was not uploaded: {}", error.message());
            ProviderError::new(Kind::Retryable, message).with_source(error)
        }
    }
}
