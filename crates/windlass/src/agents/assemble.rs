//! Puts the message of an Anthropic stream together, with the bytes of everything that came whole.

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::value::RawValue;
use windlass_models::agents::{StreamPart, TokenSink};

/// How many blocks a message may have.
const BLOCKS_MAX: usize = 10_000;

/// A JSON object whose members keep their order and their bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Members(Vec<(String, Box<RawValue>)>);

impl Members {
    pub(super) fn get(&self, name: &str) -> Option<&RawValue> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| &**value)
    }

    fn set(&mut self, name: &str, value: Box<RawValue>) {
        match self.0.iter_mut().find(|(key, _)| key == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    fn text(&self, name: &str) -> Option<String> {
        serde_json::from_str(self.get(name)?.get()).ok()
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

impl Serialize for Members {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

fn raw(value: &impl Serialize) -> Result<Box<RawValue>, String> {
    serde_json::value::to_raw_value(value).map_err(|error| error.to_string())
}

/// A message that arrives event by event.
#[derive(Default)]
pub(super) struct Assembly {
    message: Option<Members>,
    blocks: Vec<Block>,
}

struct Block {
    begin: Box<RawValue>,
    // The values of members that arrive in pieces.
    pieces: Vec<(&'static str, String)>,
    input: Option<String>,
    citations: Vec<Box<RawValue>>,
}

/// The meaning of an event for the call.
pub(super) enum Progress {
    More,
    Complete,
    /// The stream reports an error: the event as it came.
    Failed,
}

#[derive(serde::Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    message: Option<Members>,
    index: Option<usize>,
    content_block: Option<Box<RawValue>>,
    delta: Option<Members>,
    usage: Option<Members>,
}

impl Assembly {
    /// Takes the data of one event. The error says why the stream cannot be read.
    pub(super) fn take(&mut self, data: &str, sink: &dyn TokenSink) -> Result<Progress, String> {
        let event: Event = serde_json::from_str(data).map_err(|error| error.to_string())?;
        match event.kind.as_str() {
            "message_start" => self.message = event.message,
            "content_block_start" => {
                let begin = event.content_block.ok_or("a block without content")?;
                self.start_block(event.index, begin, sink)?;
            }
            "content_block_delta" => {
                let index = event.index.unwrap_or(usize::MAX);
                let block = self.blocks.get_mut(index).ok_or("a delta of no block")?;
                block.delta(&event.delta.ok_or("a delta without content")?, sink)?;
            }
            "message_delta" => {
                let message = self.message.as_mut().ok_or("a stream without its start")?;
                for (name, value) in event.delta.unwrap_or_default().0 {
                    message.set(&name, value);
                }
                let mut usage: Members = match message.get("usage") {
                    Some(usage) => serde_json::from_str(usage.get()).map_err(|e| e.to_string())?,
                    None => Members::default(),
                };
                for (name, value) in event.usage.unwrap_or_default().0 {
                    usage.set(&name, value);
                }
                message.set("usage", raw(&usage)?);
            }
            "message_stop" => return Ok(Progress::Complete),
            "error" => return Ok(Progress::Failed),
            // `ping`, `content_block_stop`, and events that this version does not know.
            _ => {}
        }
        Ok(Progress::More)
    }

    fn start_block(
        &mut self,
        index: Option<usize>,
        begin: Box<RawValue>,
        sink: &dyn TokenSink,
    ) -> Result<(), String> {
        if index != Some(self.blocks.len()) {
            return Err("the blocks of the stream are out of order".to_owned());
        }
        if self.blocks.len() >= BLOCKS_MAX {
            return Err(format!("it has more than {BLOCKS_MAX} blocks"));
        }
        if let Ok(members) = serde_json::from_str::<Members>(begin.get())
            && members.text("type").as_deref() == Some("tool_use")
        {
            let text = |name| members.text(name).unwrap_or_default();
            sink.part(StreamPart::ToolUse { id: &text("id"), name: &text("name") });
        }
        self.blocks.push(Block { begin, pieces: Vec::new(), input: None, citations: Vec::new() });
        Ok(())
    }

    /// The message body, after the last event.
    pub(super) fn finish(self) -> Result<Vec<u8>, String> {
        let mut message = self.message.ok_or("a stream without its start")?;
        let content: Vec<Box<RawValue>> =
            self.blocks.into_iter().map(Block::finish).collect::<Result<_, _>>()?;
        message.set("content", raw(&content)?);
        serde_json::to_vec(&message).map_err(|error| error.to_string())
    }
}

impl Block {
    fn delta(&mut self, delta: &Members, sink: &dyn TokenSink) -> Result<(), String> {
        let kind = delta.text("type").unwrap_or_default();
        let text = |name: &str| delta.text(name).ok_or_else(|| format!("a {kind} without {name}"));
        match kind.as_str() {
            "text_delta" => {
                let piece = text("text")?;
                sink.part(StreamPart::Text(&piece));
                self.append("text", &piece);
            }
            "thinking_delta" => {
                let piece = text("thinking")?;
                sink.part(StreamPart::Thinking(&piece));
                self.append("thinking", &piece);
            }
            "signature_delta" => self.append("signature", &text("signature")?),
            "input_json_delta" => {
                let piece = text("partial_json")?;
                sink.part(StreamPart::ToolInput(&piece));
                self.input.get_or_insert_default().push_str(&piece);
            }
            "citations_delta" => {
                let citation = delta.get("citation").ok_or("a citations_delta without citation")?;
                self.citations.push(citation.to_owned());
            }
            // To leave it out would change the block, and the provider checks blocks that come back.
            other => return Err(format!("the delta type {other:?} is unknown; do not stream")),
        }
        Ok(())
    }

    fn append(&mut self, member: &'static str, piece: &str) {
        match self.pieces.iter_mut().find(|(name, _)| *name == member) {
            Some((_, text)) => text.push_str(piece),
            None => self.pieces.push((member, piece.to_owned())),
        }
    }

    fn finish(self) -> Result<Box<RawValue>, String> {
        let Self { begin, pieces, input, citations } = self;
        let input = input.filter(|input| !input.is_empty());
        if pieces.is_empty() && input.is_none() && citations.is_empty() {
            return Ok(begin);
        }
        let mut members: Members =
            serde_json::from_str(begin.get()).map_err(|error| error.to_string())?;
        for (name, text) in pieces {
            let before = members.text(name).unwrap_or_default();
            members.set(name, raw(&(before + &text))?);
        }
        if let Some(input) = input {
            let valid: Result<IgnoredAny, _> = serde_json::from_str(&input);
            valid.map_err(|error| format!("the input of a tool call is no JSON: {error}"))?;
            members.set("input", RawValue::from_string(input).map_err(|error| error.to_string())?);
        }
        if !citations.is_empty() {
            members.set("citations", raw(&citations)?);
        }
        raw(&members)
    }
}
