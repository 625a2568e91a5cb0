//! Message Batches of Anthropic.

use std::collections::BTreeMap;

use bytes::{BufMut as _, Bytes, BytesMut};
use jiff::Timestamp;
use reqwest::Method;
use serde::Deserialize;
use windlass_models::agents::ProviderError;

use super::super::AnthropicClient;
use super::super::failure::unreadable;
use super::{
    Batch, BatchCounts, BatchPage, BatchRequest, BatchState, Results, check, check_id, check_size,
};

const PATH: &str = "/v1/messages/batches";
/// How many requests a batch may have.
const COUNT_MAX: usize = 100_000;
/// How many bytes.
const BYTES_MAX: usize = 256_000_000;

impl AnthropicClient {
    /// Creates a batch. At most 100,000 requests and 256 MB.
    ///
    /// # Errors
    ///
    /// As [`Provider::call`](windlass_models::agents::Provider::call). After an unknown outcome there may be
    /// a batch: list the batches and look for it.
    pub async fn create_batch(&self, requests: &[BatchRequest]) -> Result<Batch, ProviderError> {
        check(requests, COUNT_MAX)?;
        let size: usize = requests.iter().map(|request| request.body.len() + 100).sum();
        check_size(size, BYTES_MAX)?;
        let mut body = BytesMut::with_capacity(size);
        body.put_slice(b"{\"requests\":[");
        for (index, request) in requests.iter().enumerate() {
            if index > 0 {
                body.put_u8(b',');
            }
            // The id needs no escapes: its letters were checked.
            body.put_slice(
                format!("{{\"custom_id\":\"{}\",\"params\":", request.custom_id).as_bytes(),
            );
            body.put_slice(&request.body);
            body.put_u8(b'}');
        }
        body.put_slice(b"]}");
        self.batch_call(Method::POST, PATH.to_owned(), Some(body.freeze())).await
    }

    /// Reads a batch.
    ///
    /// # Errors
    ///
    /// As [`Provider::call`](windlass_models::agents::Provider::call); status 404 if there is no such batch.
    pub async fn batch(&self, id: &str) -> Result<Batch, ProviderError> {
        check_id(id)?;
        self.batch_call(Method::GET, format!("{PATH}/{id}"), None).await
    }

    /// Lists batches, the newest first: up to 1,000, after the one that the last page ended with.
    ///
    /// # Errors
    ///
    /// As [`Provider::call`](windlass_models::agents::Provider::call).
    pub async fn batches(
        &self,
        limit: u16,
        after: Option<&str>,
    ) -> Result<BatchPage, ProviderError> {
        #[derive(Deserialize)]
        struct Page {
            data: Vec<WireBatch>,
            has_more: bool,
            last_id: Option<String>,
        }
        let mut path = format!("{PATH}?limit={}", limit.clamp(1, 1_000));
        if let Some(after) = after {
            check_id(after)?;
            path.push_str(&format!("&after_id={after}"));
        }
        let (body, _) = self.http.json(Method::GET, &path, None).await?;
        let page: Page =
            serde_json::from_slice(&body).map_err(|error| unreadable(&self.http, error))?;
        Ok(BatchPage {
            batches: page.data.into_iter().map(Batch::from).collect(),
            after: page.last_id.filter(|_| page.has_more),
        })
    }

    /// Cancels a batch. Requests that are under way may still finish, and then they are charged.
    ///
    /// # Errors
    ///
    /// As [`Provider::call`](windlass_models::agents::Provider::call).
    pub async fn cancel_batch(&self, id: &str) -> Result<Batch, ProviderError> {
        check_id(id)?;
        self.batch_call(Method::POST, format!("{PATH}/{id}/cancel"), None).await
    }

    /// Deletes a batch that has ended, with its results.
    ///
    /// # Errors
    ///
    /// As [`Provider::call`](windlass_models::agents::Provider::call).
    pub async fn delete_batch(&self, id: &str) -> Result<(), ProviderError> {
        check_id(id)?;
        self.http.json(Method::DELETE, &format!("{PATH}/{id}"), None).await.map(drop)
    }

    /// The results of a batch that has ended.
    pub fn batch_results(&self, batch: &Batch) -> Results<'_> {
        Results::anthropic(&self.http, batch.results.first().cloned())
    }

    async fn batch_call(
        &self,
        method: Method,
        path: String,
        body: Option<Bytes>,
    ) -> Result<Batch, ProviderError> {
        let (body, _) = self.http.json(method, &path, body).await?;
        let batch: WireBatch =
            serde_json::from_slice(&body).map_err(|error| unreadable(&self.http, error))?;
        Ok(batch.into())
    }
}

#[derive(Deserialize)]
struct WireBatch {
    id: String,
    processing_status: String,
    request_counts: WireCounts,
    created_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
    results_url: Option<String>,
}

#[derive(Deserialize)]
struct WireCounts {
    processing: u64,
    succeeded: u64,
    errored: u64,
    canceled: u64,
    expired: u64,
}

impl From<WireBatch> for Batch {
    fn from(batch: WireBatch) -> Self {
        let counts = batch.request_counts;
        Self {
            id: batch.id,
            state: match batch.processing_status.as_str() {
                "in_progress" => BatchState::InProgress,
                "canceling" => BatchState::Cancelling,
                "ended" => BatchState::Ended,
                _ => BatchState::Other(batch.processing_status),
            },
            counts: BatchCounts {
                processing: counts.processing,
                succeeded: counts.succeeded,
                errored: counts.errored,
                cancelled: counts.canceled,
                expired: counts.expired,
            },
            created_at: batch.created_at,
            expires_at: batch.expires_at,
            metadata: BTreeMap::new(),
            input_file: None,
            results: batch.results_url.into_iter().collect(),
            errors: Vec::new(),
        }
    }
}
