//! Files and batches of OpenAI.

use std::collections::BTreeMap;

use bytes::{BufMut as _, Bytes, BytesMut};
use jiff::Timestamp;
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;
use windlass_kernel::Sha256Digest;
use windlass_models::agents::ProviderError;

use super::super::OpenaiClient;
use super::super::failure::unreadable;
use super::{
    Batch, BatchCounts, BatchError, BatchPage, BatchRequest, BatchState, Results, check, check_id,
    check_size, invalid,
};

/// How many requests a batch may have.
const COUNT_MAX: usize = 50_000;
/// How many bytes its file.
const BYTES_MAX: usize = 200_000_000;
const ENDPOINT: &str = "/v1/responses";

/// A file of the provider.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ProviderFile {
    /// The provider's id.
    pub id: String,
    /// The name that it was uploaded under.
    pub filename: String,
    /// Its size.
    pub bytes: u64,
}

impl OpenaiClient {
    /// Uploads the requests of a batch under a name. At most 50,000 requests and 200 MB.
    ///
    /// # Errors
    ///
    /// As [`Provider::call`](windlass_models::agents::Provider::call). After an unknown outcome there may be
    /// a file: [`OpenaiClient::batch_files`] finds it by its name.
    pub async fn upload_batch(
        &self,
        name: &str,
        requests: &[BatchRequest],
    ) -> Result<ProviderFile, ProviderError> {
        check(requests, COUNT_MAX)?;
        check_id(name)?;
        let size: usize = requests.iter().map(|request| request.body.len() + 160).sum();
        check_size(size, BYTES_MAX)?;
        let mut lines = BytesMut::with_capacity(size);
        for request in requests {
            let head = format!(
                "{{\"custom_id\":\"{}\",\"method\":\"POST\",\"url\":\"{ENDPOINT}\",\"body\":",
                request.custom_id
            );
            lines.put_slice(head.as_bytes());
            // A line break in JSON is only space between its parts.
            let space = |byte: &u8| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte };
            lines.extend(request.body.iter().map(space));
            lines.put_slice(b"}\n");
        }
        let (content_type, form) = form(name, &lines);
        let http = &self.http;
        let (body, _) = http
            .in_time(async {
                let response = http.send(Method::POST, "/v1/files", Some((&content_type, form)));
                http.success(response.await?).await
            })
            .await?;
        serde_json::from_slice(&body).map_err(|error| unreadable(http, error))
    }

    /// Lists the uploaded files of batches, the newest first.
    ///
    /// # Errors
    ///
    /// As [`Provider::call`](windlass_models::agents::Provider::call).
    pub async fn batch_files(&self) -> Result<Vec<ProviderFile>, ProviderError> {
        #[derive(Deserialize)]
        struct Page {
            data: Vec<ProviderFile>,
        }
        let path = "/v1/files?purpose=batch&limit=10000&order=desc";
        let (body, _) = self.http.json(Method::GET, path, None).await?;
        let page: Page =
            serde_json::from_slice(&body).map_err(|error| unreadable(&self.http, error))?;
        Ok(page.data)
    }

    /// Deletes a file.
    ///
    /// # Errors
    ///
    /// As [`Provider::call`](windlass_models::agents::Provider::call).
    pub async fn delete_file(&self, id: &str) -> Result<(), ProviderError> {
        check_id(id)?;
        self.http.json(Method::DELETE, &format!("/v1/files/{id}"), None).await.map(drop)
    }

    /// Creates a batch of an uploaded file. The notes come back when the batch is read or listed, so that it
    /// can be found again: at most 16, with names of at most 64 and values of at most 512 characters.
    ///
    /// # Errors
    ///
    /// As [`Provider::call`](windlass_models::agents::Provider::call). After an unknown outcome there may be
    /// a batch: list the batches and look for its notes.
    pub async fn create_batch(
        &self,
        file: &str,
        metadata: &BTreeMap<String, String>,
    ) -> Result<Batch, ProviderError> {
        let fits = |(name, value): (&String, &String)| name.len() <= 64 && value.len() <= 512;
        if metadata.len() > 16 || !metadata.iter().all(fits) {
            let limits = "at most 16, with names of 64 and values of 512 characters";
            return Err(invalid(format!(
                "the notes of a batch are too many or too long: {limits}"
            )));
        }
        let body = json!({
            "input_file_id": file, "endpoint": ENDPOINT, "completion_window": "24h",
            "metadata": metadata,
        });
        let body = Some(Bytes::from(body.to_string()));
        self.batch_call(Method::POST, "/v1/batches".to_owned(), body).await
    }

    /// Reads a batch.
    ///
    /// # Errors
    ///
    /// As [`Provider::call`](windlass_models::agents::Provider::call); status 404 if there is no such batch.
    pub async fn batch(&self, id: &str) -> Result<Batch, ProviderError> {
        check_id(id)?;
        self.batch_call(Method::GET, format!("/v1/batches/{id}"), None).await
    }

    /// Lists batches, the newest first: up to 100, after the one that the last page ended with.
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
        }
        let mut path = format!("/v1/batches?limit={}", limit.clamp(1, 100));
        if let Some(after) = after {
            check_id(after)?;
            path.push_str(&format!("&after={after}"));
        }
        let (body, _) = self.http.json(Method::GET, &path, None).await?;
        let page: Page =
            serde_json::from_slice(&body).map_err(|error| unreadable(&self.http, error))?;
        let batches: Vec<Batch> = page.data.into_iter().map(Batch::from).collect();
        let after = batches.last().map(|batch| batch.id.clone()).filter(|_| page.has_more);
        Ok(BatchPage { batches, after })
    }

    /// Cancels a batch. Requests that are under way may still finish, and then they are charged.
    ///
    /// # Errors
    ///
    /// As [`Provider::call`](windlass_models::agents::Provider::call).
    pub async fn cancel_batch(&self, id: &str) -> Result<Batch, ProviderError> {
        check_id(id)?;
        self.batch_call(Method::POST, format!("/v1/batches/{id}/cancel"), None).await
    }

    /// The results of a batch that has ended, also one that expired or was cancelled: both of its files.
    pub fn batch_results(&self, batch: &Batch) -> Results<'_> {
        Results::openai(&self.http, &batch.results)
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

// A form with a purpose and a file. The boundary is a digest of the file, so the file does not hold it.
fn form(name: &str, lines: &[u8]) -> (String, Bytes) {
    let digest = Sha256Digest::of(lines).to_string();
    let boundary = format!("windlass-{}", digest.trim_start_matches("sha256:"));
    let mut form = BytesMut::with_capacity(lines.len() + 512);
    let part = |form: &mut BytesMut, disposition: &str, content: &[u8]| {
        form.put_slice(format!("--{boundary}\r\n").as_bytes());
        let head = format!("content-disposition: form-data; {disposition}\r\n\r\n");
        form.put_slice(head.as_bytes());
        form.put_slice(content);
        form.put_slice(b"\r\n");
    };
    part(&mut form, "name=\"purpose\"", b"batch");
    part(&mut form, &format!("name=\"file\"; filename=\"{name}\""), lines);
    form.put_slice(format!("--{boundary}--\r\n").as_bytes());
    (format!("multipart/form-data; boundary={boundary}"), form.freeze())
}

#[derive(Deserialize)]
struct WireBatch {
    id: String,
    status: String,
    input_file_id: Option<String>,
    output_file_id: Option<String>,
    error_file_id: Option<String>,
    created_at: Option<i64>,
    expires_at: Option<i64>,
    request_counts: Option<WireCounts>,
    errors: Option<WireErrors>,
    metadata: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
struct WireCounts {
    total: u64,
    completed: u64,
    failed: u64,
}

#[derive(Deserialize)]
struct WireErrors {
    #[serde(default)]
    data: Vec<WireError>,
}

#[derive(Deserialize)]
struct WireError {
    code: Option<String>,
    message: Option<String>,
    line: Option<u64>,
}

impl From<WireBatch> for Batch {
    fn from(batch: WireBatch) -> Self {
        let counts = batch.request_counts.unwrap_or_default();
        let error = |error: WireError| BatchError {
            code: error.code.unwrap_or_default(),
            message: error.message.unwrap_or_default(),
            line: error.line,
        };
        let time = |seconds: Option<i64>| Timestamp::from_second(seconds?).ok();
        Self {
            id: batch.id,
            state: match batch.status.as_str() {
                "validating" => BatchState::Validating,
                "in_progress" => BatchState::InProgress,
                "finalizing" => BatchState::Finalizing,
                "cancelling" => BatchState::Cancelling,
                "completed" => BatchState::Ended,
                "failed" => BatchState::Failed,
                "expired" => BatchState::Expired,
                "cancelled" => BatchState::Cancelled,
                _ => BatchState::Other(batch.status),
            },
            counts: BatchCounts {
                processing: counts.total.saturating_sub(counts.completed + counts.failed),
                succeeded: counts.completed,
                errored: counts.failed,
                ..BatchCounts::default()
            },
            created_at: time(batch.created_at),
            expires_at: time(batch.expires_at),
            metadata: batch.metadata.unwrap_or_default(),
            input_file: batch.input_file_id,
            results: batch.output_file_id.into_iter().chain(batch.error_file_id).collect(),
            errors: batch
                .errors
                .map(|errors| errors.data)
                .unwrap_or_default()
                .into_iter()
                .map(error)
                .collect(),
        }
    }
}
