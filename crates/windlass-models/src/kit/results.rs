//! Results of activities and children in the mailbox of a run: each message is decoded when it arrives,
//! not for every step that waits.

use std::collections::{BTreeMap, VecDeque};

use windlass_engine::{ActivityResult, ChildResult, EventAddress, Turn, TurnError};
use windlass_kernel::{Body, Message, MessageKind};

/// The unread results of a run, by what waits for them.
#[derive(Debug, Default)]
pub struct ResultIndex {
    read_to: u64,
    // Sequence numbers, oldest first: a step's second result stays behind its first.
    activities: BTreeMap<Box<str>, VecDeque<u64>>,
    children: BTreeMap<Box<str>, VecDeque<u64>>,
    events: BTreeMap<Box<str>, VecDeque<u64>>,
    // By the digest of type and key.
    keyed: BTreeMap<Box<str>, VecDeque<u64>>,
}

impl ResultIndex {
    /// Takes in messages that came since the last time. A message that does not read is left alone.
    pub fn update(&mut self, mailbox: &BTreeMap<u64, Message>) {
        for (seq, message) in mailbox.range(self.read_to + 1..) {
            self.read_to = *seq;
            let (index, key) = match message.kind {
                MessageKind::ActivityResult => {
                    let result = ActivityResult::from_message(message).ok();
                    (&mut self.activities, result.and_then(|result| result.step_key))
                }
                MessageKind::ChildResult => {
                    let result = ChildResult::from_message(message).ok();
                    (&mut self.children, result.map(|result| result.id))
                }
                MessageKind::Event => (&mut self.events, Some(message.name.as_str().to_owned())),
                MessageKind::KeyedEvent => {
                    (&mut self.keyed, EventAddress::digest_of(message).map(str::to_owned))
                }
                _ => continue,
            };
            if let Some(key) = key {
                index.entry(key.into()).or_default().push_back(*seq);
            }
        }
    }

    /// Takes the oldest result of a step's activity: its sequence number.
    pub fn take_activity(&mut self, step_key: &str) -> Option<u64> {
        take_oldest(&mut self.activities, step_key)
    }

    /// Takes the oldest result of a child, whichever generation of it has ended.
    pub fn take_child(&mut self, id: &str) -> Option<u64> {
        take_oldest(&mut self.children, id)
    }
}

impl ResultIndex {
    /// The oldest unread event of a type.
    pub fn event<'m>(
        &mut self,
        name: &str,
        mailbox: &'m BTreeMap<u64, Message>,
    ) -> Option<&'m Message> {
        oldest_unread(&mut self.events, name, mailbox)
    }

    /// The oldest unread event by key.
    pub fn keyed_event<'m>(
        &mut self,
        address: &EventAddress,
        mailbox: &'m BTreeMap<u64, Message>,
    ) -> Option<&'m Message> {
        if self.keyed.is_empty() {
            return None;
        }
        oldest_unread(&mut self.keyed, &address.digest(), mailbox)
    }
}

fn oldest_unread<'m>(
    index: &mut BTreeMap<Box<str>, VecDeque<u64>>,
    key: &str,
    mailbox: &'m BTreeMap<u64, Message>,
) -> Option<&'m Message> {
    let found = index.get_mut(key)?;
    while let Some(seq) = found.front() {
        if let Some(message) = mailbox.get(seq) {
            return Some(message);
        }
        // It was consumed.
        found.pop_front();
    }
    index.remove(key);
    None
}

fn take_oldest(index: &mut BTreeMap<Box<str>, VecDeque<u64>>, key: &str) -> Option<u64> {
    let found = index.get_mut(key)?;
    let seq = found.pop_front();
    if found.is_empty() {
        index.remove(key);
    }
    seq
}

/// Results of children that are too large for their messages, by the number of the message.
#[derive(Debug, Default)]
pub struct LargeResults {
    read_to: u64,
    bodies: BTreeMap<u64, Body>,
}

impl LargeResults {
    /// Reads the large results behind messages that came since the last time.
    ///
    /// # Errors
    ///
    /// If the store does not answer; the next call goes on where this one stopped.
    pub async fn fetch(&mut self, turn: &Turn) -> Result<(), TurnError> {
        let child_result = |message: &Message| match message.kind {
            MessageKind::ChildResult => ChildResult::from_message(message).ok(),
            _ => None,
        };
        for (seq, message) in turn.mailbox.range(self.read_to + 1..) {
            let large = child_result(message).filter(ChildResult::is_large);
            if let Some(child) = large
                && let Some(body) = turn.result_of(child.run_key).await?
            {
                self.bodies.insert(*seq, body);
            }
            self.read_to = *seq;
        }
        Ok(())
    }

    /// The result of a child, from its message or from what was fetched.
    pub fn take(&mut self, message: &Message, result: &ChildResult) -> Option<Body> {
        self.bodies.remove(&message.seq).or_else(|| result.result())
    }
}
