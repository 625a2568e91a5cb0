//! Conversations: append-only items in the provider's own JSON, stored once.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use windlass_kernel::{Error, ErrorCode, RunKey};

use super::env::invalid;
use super::provider::WireFormat;
use super::request::ToolResult;
use super::wire::{Item, user_text};

/// How many items one transcript has at most between two compactions.
pub const TRANSCRIPT_ITEMS_MAX: usize = 100_000;

/// A conversation with a model.
///
/// Items are never changed. A compaction leaves earlier items in the store and takes them out of the
/// requests that follow.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Transcript {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    format: Option<WireFormat>,
    pieces: Vec<Piece>,
    // How many items compactions took out that no commit has recorded yet.
    #[serde(skip)]
    dropped: Option<usize>,
    // The items that compactions took out before they were in the store.
    #[serde(skip)]
    unstored: Vec<Arc<RawValue>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Piece {
    /// Items in rows of a run, by number.
    #[serde(rename = "stored")]
    Stored(Stored),
    /// Items that are not in the store yet, or never will be.
    #[serde(rename = "inline")]
    Inline(Vec<Arc<RawValue>>),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Stored {
    pub(crate) run: RunKey,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// The items themselves; empty until they are loaded.
    #[serde(skip)]
    pub(crate) items: Vec<Arc<RawValue>>,
}

impl PartialEq for Piece {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Stored(a), Self::Stored(b)) => (a.run, a.from, a.to) == (b.run, b.from, b.to),
            (Self::Inline(a), Self::Inline(b)) => {
                a.iter().map(|item| item.get()).eq(b.iter().map(|item| item.get()))
            }
            _ => false,
        }
    }
}

impl PartialEq for Transcript {
    fn eq(&self, other: &Self) -> bool {
        self.format == other.format && self.pieces == other.pieces
    }
}

impl Transcript {
    /// How many items the next request sends.
    pub fn len(&self) -> usize {
        let count = |piece: &Piece| match piece {
            Piece::Stored(stored) => (stored.to - stored.from) as usize,
            Piece::Inline(items) => items.len(),
        };
        self.pieces.iter().map(count).sum()
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The items, oldest first.
    pub fn items(&self) -> impl Iterator<Item = &RawValue> {
        self.shared().map(|item| &**item)
    }

    fn shared(&self) -> impl Iterator<Item = &Arc<RawValue>> {
        self.pieces.iter().flat_map(|piece| match piece {
            Piece::Stored(stored) => stored.items.iter(),
            Piece::Inline(items) => items.iter(),
        })
    }

    /// The format of its items, once a response or tool results have fixed it.
    pub fn wire_format(&self) -> Option<WireFormat> {
        self.format
    }

    /// Appends an item in the provider's own JSON.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidSize`] if the transcript is full.
    pub fn push(&mut self, item: Item) -> Result<(), Error> {
        if self.len() >= TRANSCRIPT_ITEMS_MAX {
            let message = format!(
                "a transcript has {TRANSCRIPT_ITEMS_MAX} items; compact it before you add more"
            );
            return Err(invalid(ErrorCode::InvalidSize, message));
        }
        let item: Arc<RawValue> = item.into();
        match self.pieces.last_mut() {
            Some(Piece::Inline(items)) => items.push(item),
            _ => self.pieces.push(Piece::Inline(vec![item])),
        }
        Ok(())
    }

    /// Appends a message of a user.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidSize`] if the transcript is full.
    pub fn push_user(&mut self, text: &str) -> Result<(), Error> {
        self.push(user_text(text)?)
    }

    /// Appends the results of tool calls.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidSize`] if the transcript is full, [`ErrorCode::AgentSnapshotInvalid`] if no response
    /// has fixed the format: then no tool call can have been asked for.
    pub fn push_tool_results(&mut self, results: &[ToolResult]) -> Result<(), Error> {
        let format = self.format.ok_or_else(|| {
            let message = "the transcript has no response, so it cannot have results of tool calls";
            invalid(ErrorCode::AgentSnapshotInvalid, message)
        })?;
        for item in format.tool_result_items(results)? {
            self.push(item)?;
        }
        Ok(())
    }

    /// Replaces all items except the last `keep` by a summary. The items before stay in the store, and the
    /// commit of the function records a step with the summary and the range that was kept.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidSize`] if there are fewer than `keep` items.
    pub fn compact(&mut self, summary: Item, keep: usize) -> Result<(), Error> {
        let len = self.len();
        if keep > len {
            let message = format!("the transcript has {len} items and cannot keep {keep}");
            return Err(invalid(ErrorCode::InvalidSize, message));
        }
        let mut drop_left = len - keep;
        self.dropped = Some(self.dropped.unwrap_or(0) + drop_left);
        let mut kept = vec![Piece::Inline(vec![summary.into()])];
        for piece in std::mem::take(&mut self.pieces) {
            match piece {
                Piece::Stored(mut stored) => {
                    let count = (stored.to - stored.from) as usize;
                    let dropped = drop_left.min(count);
                    drop_left -= dropped;
                    if dropped < count {
                        stored.from += dropped as u64;
                        stored.items.drain(..dropped.min(stored.items.len()));
                        kept.push(Piece::Stored(stored));
                    }
                }
                Piece::Inline(mut items) => {
                    let dropped = drop_left.min(items.len());
                    drop_left -= dropped;
                    self.unstored.extend(items.drain(..dropped));
                    match (kept.last_mut(), items.is_empty()) {
                        (_, true) => {}
                        (Some(Piece::Inline(last)), false) => last.extend(items),
                        _ => kept.push(Piece::Inline(items)),
                    }
                }
            }
        }
        self.pieces = kept;
        Ok(())
    }

    /// Keeps only the first `len` items in the requests that follow.
    pub(crate) fn truncate(&mut self, len: usize) {
        let mut left = len;
        for piece in &mut self.pieces {
            match piece {
                Piece::Stored(stored) => {
                    let kept = left.min((stored.to - stored.from) as usize);
                    stored.to = stored.from + kept as u64;
                    stored.items.truncate(kept);
                    left -= kept;
                }
                Piece::Inline(items) => {
                    items.truncate(left);
                    left -= items.len();
                }
            }
        }
        self.pieces.retain(|piece| match piece {
            Piece::Stored(stored) => stored.to > stored.from,
            Piece::Inline(items) => !items.is_empty(),
        });
    }

    /// Fixes the format of the items, or refuses another one.
    pub(crate) fn set_format(&mut self, name: &str, format: WireFormat) -> Result<(), Error> {
        self.check_format(name, format)?;
        self.format = Some(format);
        Ok(())
    }

    pub(crate) fn check_format(&self, name: &str, format: WireFormat) -> Result<(), Error> {
        match self.format {
            Some(known) if known != format => {
                let message = format!(
                    "transcript {name:?} has items in the format {known:?}, and the provider reads \
                     {format:?}; begin another transcript for it"
                );
                Err(invalid(ErrorCode::AgentTranscriptFormat, message))
            }
            _ => Ok(()),
        }
    }

    /// How many items were taken out since the last call.
    pub(crate) fn take_dropped(&mut self) -> Option<usize> {
        self.dropped.take()
    }

    /// The items that compactions took out since the last call and that no row has.
    pub(crate) fn take_unstored(&mut self) -> Vec<Arc<RawValue>> {
        std::mem::take(&mut self.unstored)
    }

    pub(crate) fn pieces_mut(&mut self) -> &mut Vec<Piece> {
        &mut self.pieces
    }

    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Appends items that are in rows of a run.
    pub(crate) fn push_stored(&mut self, run: RunKey, from: u64, items: Vec<Arc<RawValue>>) {
        let to = from + items.len() as u64;
        match self.pieces.last_mut() {
            Some(Piece::Stored(last)) if last.run == run && last.to == from => {
                last.to = to;
                last.items.extend(items);
            }
            _ => self.pieces.push(Piece::Stored(Stored { run, from, to, items })),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::agents::wire::item;

    fn texts(transcript: &Transcript) -> Vec<String> {
        transcript.items().map(|item| item.get().to_owned()).collect()
    }

    fn stored(from: u64, count: u64) -> Transcript {
        let mut transcript = Transcript::default();
        let items = (from..from + count).map(|n| item(&json!(n)).unwrap().into()).collect();
        transcript.push_stored(RunKey(uuid::Uuid::from_u128(1)), from, items);
        transcript
    }

    #[test]
    fn neighbouring_ranges_are_joined() {
        let mut transcript = stored(0, 2);
        transcript.push_stored(
            RunKey(uuid::Uuid::from_u128(1)),
            2,
            vec![item(&json!(2)).unwrap().into()],
        );
        assert_eq!((transcript.pieces().len(), transcript.len()), (1, 3));
        transcript.push_stored(
            RunKey(uuid::Uuid::from_u128(1)),
            7,
            vec![item(&json!(7)).unwrap().into()],
        );
        assert_eq!((transcript.pieces().len(), transcript.len()), (2, 4));
    }

    #[test]
    fn a_compaction_keeps_the_last_items() {
        for (keep, expect) in [
            (0, vec!["\"sum\""]),
            (1, vec!["\"sum\"", "\"y\""]),
            (3, vec!["\"sum\"", "4", "\"x\"", "\"y\""]),
            (7, vec!["\"sum\"", "0", "1", "2", "3", "4", "\"x\"", "\"y\""]),
        ] {
            let mut transcript = stored(0, 5);
            transcript.push(item(&json!("x")).unwrap()).unwrap();
            transcript.push(item(&json!("y")).unwrap()).unwrap();
            transcript.compact(item(&json!("sum")).unwrap(), keep).unwrap();
            assert_eq!(texts(&transcript), expect, "keep {keep}");
            // Items without a row are still written to the store.
            let unstored: Vec<_> = transcript.take_unstored();
            let unstored: Vec<_> = unstored.iter().map(|item| item.get()).collect();
            assert_eq!(unstored, ["\"x\"", "\"y\""][..2_usize.saturating_sub(keep)]);
            assert_eq!(transcript.len(), expect.len());
        }
        let error = stored(0, 5).compact(item(&json!("sum")).unwrap(), 6).unwrap_err();
        assert_eq!(error.code(), "INVALID_SIZE");
    }

    #[test]
    fn another_format_is_refused() {
        let mut transcript = Transcript::default();
        transcript.set_format("chat", WireFormat::AnthropicMessages).unwrap();
        let error = transcript.set_format("chat", WireFormat::OpenaiResponses).unwrap_err();
        assert_eq!(error.code(), "AGENT_TRANSCRIPT_FORMAT");
    }

    #[test]
    fn a_snapshot_keeps_the_bytes_of_inline_items() {
        let mut transcript = stored(3, 2);
        transcript.push(RawValue::from_string("{\"b\": 1.50, \"a\":2}".into()).unwrap()).unwrap();
        let text = serde_json::to_string(&transcript).unwrap();
        let read: Transcript = serde_json::from_str(&text).unwrap();
        assert_eq!(read, transcript);
        assert_eq!(read.len(), 3);
    }
}
