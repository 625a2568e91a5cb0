//! Reads the results of a batch line by line, without holding the whole of them.

use std::collections::VecDeque;

use reqwest::Response;
use serde::Deserialize;
use serde_json::value::RawValue;
use windlass_models::agents::{ProviderError, ProviderErrorKind};

use super::super::anthropic::Message;
use super::super::client::Http;
use super::super::failure::{self, Wrong};
use super::super::openai::WireResponse;
use super::{MemberEnd, MemberResult};

/// A line of results.
#[derive(Debug)]
pub enum ResultLine {
    /// A result.
    Member(MemberResult),
    /// A line that cannot be read. The request that it was for looks as if it had no result.
    Bad {
        /// The number of the line in its file, from 1.
        line: u64,
        /// Why it cannot be read.
        why: String,
    },
}

/// Where results come from.
pub(super) enum Source {
    Url(String),
    File(String),
}

/// The results of a batch, one line after the other.
///
/// An error of [`Results::next`] ends the reading: read again from the start, and skip the results that
/// you have. Results can come in any order and more than once.
pub struct Results<'a> {
    http: &'a Http,
    sources: VecDeque<Source>,
    open: Option<Response>,
    buffer: Vec<u8>,
    // Where the search for the end of the line goes on.
    searched: usize,
    line: u64,
    // The line that is read now is longer than the limit.
    skipping: bool,
    parse: fn(&Http, &[u8]) -> Result<MemberResult, String>,
}

impl<'a> Results<'a> {
    pub(super) fn anthropic(http: &'a Http, url: Option<String>) -> Self {
        Self::new(http, url.map(Source::Url).into_iter().collect(), parse_anthropic)
    }

    pub(super) fn openai(http: &'a Http, files: &[String]) -> Self {
        let sources = files.iter().cloned().map(Source::File).collect();
        Self::new(http, sources, parse_openai)
    }

    fn new(
        http: &'a Http,
        sources: VecDeque<Source>,
        parse: fn(&Http, &[u8]) -> Result<MemberResult, String>,
    ) -> Self {
        let buffer = Vec::new();
        Self { http, sources, open: None, buffer, searched: 0, line: 0, skipping: false, parse }
    }

    /// The next line, or none at the end of all results. A line that cannot be read is no error.
    ///
    /// # Errors
    ///
    /// The results cannot be fetched, or the connection was cut in the middle of them.
    pub async fn next(&mut self) -> Result<Option<ResultLine>, ProviderError> {
        loop {
            let rest = &self.buffer[self.searched..];
            if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let end = self.searched + end;
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                self.searched = 0;
                if let Some(found) = self.take(&line[..end]) {
                    return Ok(Some(found));
                }
                continue;
            }
            if self.buffer.len() > self.http.bytes_max {
                self.buffer.clear();
                self.skipping = true;
            }
            self.searched = self.buffer.len();
            let Some(open) = &mut self.open else {
                match self.sources.pop_front() {
                    None => return Ok(None),
                    Some(source) => self.open = Some(open_source(self.http, source).await?),
                }
                self.line = 0;
                continue;
            };
            let http = self.http;
            let chunk =
                http.in_time(async { open.chunk().await.map_err(|error| http.failed(error)) });
            match chunk.await? {
                Some(chunk) => self.buffer.extend_from_slice(&chunk),
                None => {
                    self.open = None;
                    let last = std::mem::take(&mut self.buffer);
                    self.searched = 0;
                    if let Some(found) = self.take(&last) {
                        return Ok(Some(found));
                    }
                }
            }
        }
    }

    // Reads one line; none if it is empty.
    fn take(&mut self, line: &[u8]) -> Option<ResultLine> {
        self.line += 1;
        let bad = |why: String| Some(ResultLine::Bad { line: self.line, why });
        if std::mem::take(&mut self.skipping) {
            return bad(format!("it has more than {} bytes", self.http.bytes_max));
        }
        if line.trim_ascii().is_empty() {
            self.line -= u64::from(line.is_empty());
            return None;
        }
        match (self.parse)(self.http, line) {
            Ok(member) => Some(ResultLine::Member(member)),
            Err(why) => bad(why),
        }
    }
}

async fn open_source(http: &Http, source: Source) -> Result<Response, ProviderError> {
    let sent = async {
        match source {
            Source::Url(url) => http.get_at(&url).await,
            Source::File(id) => {
                http.send(reqwest::Method::GET, &format!("/v1/files/{id}/content"), None).await
            }
        }
    };
    let response = http.in_time(sent).await?;
    match response.status().as_u16() {
        200 => Ok(response),
        _ => Err(failure::of_response(http, response).await),
    }
}

fn parse_anthropic(http: &Http, line: &[u8]) -> Result<MemberResult, String> {
    #[derive(Deserialize)]
    struct Line {
        custom_id: String,
        result: Outcome,
    }
    #[derive(Deserialize)]
    struct Outcome {
        #[serde(rename = "type")]
        kind: String,
        message: Option<Box<RawValue>>,
        error: Option<Box<RawValue>>,
    }
    let Line { custom_id, result } =
        serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let end = match result.kind.as_str() {
        "succeeded" => {
            let body = result.message.ok_or("a success without a message")?.get().to_owned();
            let message = Message::read(body.as_bytes())?;
            let response = message.response(body.into(), &Default::default());
            MemberEnd::Succeeded(Box::new(response))
        }
        "errored" => {
            let wrong = result.error.and_then(|error| {
                let nested = Wrong::of(error.get().as_bytes());
                nested.or_else(|| serde_json::from_str(error.get()).ok())
            });
            let wrong = wrong.unwrap_or_default();
            let status = wrong.status();
            MemberEnd::Errored(failure::of_body(http, status, &Default::default(), &wrong))
        }
        "canceled" => MemberEnd::Cancelled,
        "expired" => MemberEnd::Expired,
        other => return Err(format!("the result type {other:?} is unknown")),
    };
    Ok(MemberResult { custom_id, end })
}

fn parse_openai(http: &Http, line: &[u8]) -> Result<MemberResult, String> {
    #[derive(Deserialize)]
    struct Line {
        custom_id: String,
        response: Option<Inner>,
        error: Option<LineError>,
    }
    #[derive(Deserialize)]
    struct Inner {
        status_code: u16,
        body: Option<Box<RawValue>>,
    }
    #[derive(Deserialize)]
    struct LineError {
        code: Option<String>,
        message: Option<String>,
    }
    let Line { custom_id, response, error } =
        serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let end = match (response, error) {
        (Some(Inner { status_code: 200, body: Some(body) }), None) => {
            let body = body.get().to_owned();
            match Wrong::of(body.as_bytes()) {
                Some(wrong) => {
                    MemberEnd::Errored(failure::of_body(http, 200, &Default::default(), &wrong))
                }
                None => {
                    let read = WireResponse::read(body.as_bytes())?;
                    let response = read.response(body.into(), &Default::default());
                    MemberEnd::Succeeded(Box::new(response))
                }
            }
        }
        (Some(Inner { status_code, body }), None) => {
            let body = body.map(|body| body.get().to_owned()).unwrap_or_default();
            let wrong = Wrong::of(body.as_bytes()).unwrap_or_default();
            MemberEnd::Errored(failure::of_body(http, status_code, &Default::default(), &wrong))
        }
        (_, Some(error)) => match error.code.as_deref() {
            Some("batch_expired") => MemberEnd::Expired,
            Some("batch_cancelled") => MemberEnd::Cancelled,
            code => {
                let message = error.message.unwrap_or_else(|| "no reason is given".to_owned());
                let message = http.without_key(&format!("{} failed: {message}", http.name));
                let error = ProviderError::new(ProviderErrorKind::Retryable, message);
                MemberEnd::Errored(error.with_name(code.unwrap_or("unknown")))
            }
        },
        (None, None) => return Err("it has neither a response nor an error".to_owned()),
    };
    Ok(MemberResult { custom_id, end })
}
