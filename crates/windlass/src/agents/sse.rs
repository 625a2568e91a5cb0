//! Splits a stream of server-sent events into the data of its events.

use bytes::Bytes;
use reqwest::Response;
use windlass_models::agents::ProviderError;

use super::client::Http;

/// The events of an answer. The whole stream counts against the limit on answers.
pub(super) struct Events<'a> {
    http: &'a Http,
    response: Response,
    splitter: Splitter,
    read: usize,
}

impl<'a> Events<'a> {
    pub(super) fn new(http: &'a Http, response: Response) -> Self {
        Self { http, response, splitter: Splitter::default(), read: 0 }
    }

    /// The data of the next event, or none at the end of the stream.
    pub(super) async fn next(&mut self) -> Result<Option<String>, ProviderError> {
        loop {
            if let Some(data) = self.splitter.next() {
                return Ok(Some(data));
            }
            let chunk = self.response.chunk().await.map_err(|error| self.http.failed(error))?;
            let Some(chunk) = chunk else { return Ok(None) };
            self.read += chunk.len();
            if self.read > self.http.bytes_max {
                return Err(self.http.too_large());
            }
            self.splitter.push(&chunk);
        }
    }
}

/// Finds the ends of events in the bytes of a stream.
#[derive(Default)]
pub(super) struct Splitter {
    buffer: Vec<u8>,
    // Where the search for the end of the line goes on.
    searched: usize,
    data: String,
    has_data: bool,
}

impl Splitter {
    pub(super) fn push(&mut self, chunk: &Bytes) {
        self.buffer.extend_from_slice(chunk);
    }

    pub(super) fn next(&mut self) -> Option<String> {
        let mut from = 0;
        let mut found = None;
        while let Some(end) = self.buffer[self.searched..].iter().position(|b| *b == b'\n') {
            let end = self.searched + end;
            let line = String::from_utf8_lossy(&self.buffer[from..end]).into_owned();
            (from, self.searched) = (end + 1, end + 1);
            let line = line.strip_suffix('\r').unwrap_or(&line);
            if line.is_empty() {
                if std::mem::take(&mut self.has_data) {
                    found = Some(std::mem::take(&mut self.data));
                    break;
                }
            } else if let Some(data) = line.strip_prefix("data:") {
                if self.has_data {
                    self.data.push('\n');
                }
                self.data.push_str(data.strip_prefix(' ').unwrap_or(data));
                self.has_data = true;
            }
        }
        self.buffer.drain(..from);
        self.searched = match found {
            Some(_) => 0,
            None => self.buffer.len(),
        };
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_however_the_bytes_arrive() {
        let text = "event: a\ndata: {\"x\":\"é\"}\n\n: comment\n\ndata: one\r\ndata:two\r\n\r\nid: 7\n\ndata: open";
        for size in 1..text.len() {
            let mut splitter = Splitter::default();
            let mut found = Vec::new();
            for chunk in text.as_bytes().chunks(size) {
                splitter.push(&Bytes::copy_from_slice(chunk));
                while let Some(data) = splitter.next() {
                    found.push(data);
                }
            }
            assert_eq!(found, ["{\"x\":\"é\"}", "one\ntwo"], "{size}");
        }
    }
}
