//! One static HTML page of the ledgers of a tree. It has no scripts, and every value in it is escaped.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;
use windlass::kernel::{EventType, Limits};

use super::shape;
use crate::commands::transcript::item_lines;
use crate::output::cell;

const STYLE: &str = "body{font:14px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}\
h1{font-size:1.3rem}h2{font-size:1.05rem;margin-top:2rem}ol{list-style:none;padding:0}\
li{border-left:3px solid #8886;margin:.3rem 0;padding:.1rem .7rem}li:target{border-color:#d60}\
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#8881;padding:.4rem;margin:.2rem 0}\
small{opacity:.7}.failed{border-color:#c22}";

/// A run of the tree.
pub(super) struct PageRun {
    pub(super) row: Value,
    pub(super) conversations: Vec<Value>,
}

pub(super) struct Page<'a> {
    pub(super) title: String,
    pub(super) runs: &'a [PageRun],
    pub(super) events: &'a [Value],
    pub(super) break_glass: bool,
}

impl Page<'_> {
    pub(super) fn to_html(&self) -> String {
        let title = escape(&self.title);
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
             <meta name=\"viewport\" content=\"width=device-width\"><title>Ledger of {title}</title>\
             <style>{STYLE}</style></head><body><h1>Ledger of {title}</h1>\n"
        );
        let what = match self.break_glass {
            true => "This page contains conversations and the payloads of custom events.",
            false => "Payloads of custom events are shown as shapes and sizes.",
        };
        let _ =
            writeln!(page, "<p>{} runs, {} events. {what}</p>", self.runs.len(), self.events.len());
        let mut by_run: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
        for event in self.events {
            by_run.entry(cell(event, "runKey")).or_default().push(event);
        }
        for run in self.runs {
            let events = by_run.remove(&cell(&run.row, "runKey")).unwrap_or_default();
            self.run(&mut page, run, events);
        }
        page.push_str("</body></html>\n");
        page
    }

    fn run(&self, page: &mut String, run: &PageRun, mut events: Vec<&Value>) {
        let row = &run.row;
        let part = |name: &str| escape(&cell(row, name));
        let fork = row["fork"].as_str().map(|fork| format!(", branch {}", escape(fork)));
        let _ = writeln!(
            page,
            "<h2>{}/{}</h2><small>{} run {}, {}{}, key {}</small><ol>",
            part("workflowName"),
            part("id"),
            part("model"),
            part("runNumber"),
            part("status"),
            fork.unwrap_or_default(),
            part("runKey"),
        );
        events.sort_by_key(|event| event["ordinal"].as_u64());
        for event in events {
            self.event(page, event);
        }
        page.push_str("</ol>\n");
        for conversation in &run.conversations {
            let _ = writeln!(page, "<h3>Conversation {}</h3>", escape(&cell(conversation, "name")));
            for item in conversation["items"].as_array().into_iter().flatten() {
                let (who, lines) = item_lines(item);
                let text = escape(&lines.join("\n"));
                let _ = writeln!(page, "<p><b>{}</b></p><pre>{text}</pre>", escape(&who));
            }
        }
    }

    fn event(&self, page: &mut String, event: &Value) {
        let (kind, id) = (cell(event, "type"), escape(&cell(event, "eventId")));
        let class = if kind.ends_with(".failed") { " class=\"failed\"" } else { "" };
        let cause = match event["cause"]["event_id"].as_str() {
            Some(cause) => format!("<a href=\"#e-{0}\">its cause</a>", escape(cause)),
            None => format!("run {}", escape(&cell(&event["cause"], "run_id"))),
        };
        let summary = match self.break_glass || is_first_party(&kind) {
            true => event["summary"].clone(),
            false => shape(&event["summary"]),
        };
        let text = serde_json::to_string_pretty(&summary).unwrap_or_default();
        let _ = writeln!(
            page,
            "<li id=\"e-{id}\"{class}><b>{}</b> <small>#{} {} after {cause}</small><details><summary>payload</summary>\
             <pre>{}</pre></details></li>",
            escape(&kind),
            escape(&cell(event, "ordinal")),
            escape(&cell(event, "at")),
            escape(&text),
        );
    }
}

// The engine's own events contain no bodies; a program decides itself what its events contain.
fn is_first_party(kind: &str) -> bool {
    EventType::custom(kind, &Limits::DEFAULT).is_err()
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // A browser must not see what is not visible, such as characters that reverse the text.
            c if c.is_control() && c != '\n' => escaped.push('\u{fffd}'),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn page(break_glass: bool) -> String {
        let evil = "<script>alert('x')</script>\u{202e}\"&";
        let events = [
            json!({
                "ordinal": 0, "eventId": evil, "runKey": "k", "type": "workflow.enqueued", "at": evil,
                "cause": { "type": "run_id", "run_id": evil }, "summary": { "name": evil },
            }),
            json!({
                "ordinal": 1, "eventId": "b", "runKey": "k", "type": "mine.done", "at": "",
                "cause": { "type": "event_id", "event_id": evil }, "summary": { "note": "s3cr3t", "n": [1] },
            }),
        ];
        let row =
            json!({ "runKey": "k", "id": evil, "workflowName": evil, "fork": evil, "model": evil });
        let item = json!({ "role": evil, "content": [{ "type": "text", "text": evil }] });
        let conversations = match break_glass {
            true => vec![json!({ "name": evil, "items": [item] })],
            false => Vec::new(),
        };
        let runs = [PageRun { row, conversations }];
        Page { title: evil.into(), runs: &runs, events: &events, break_glass }.to_html()
    }

    #[test]
    fn every_value_is_escaped() {
        for break_glass in [false, true] {
            let page = page(break_glass);
            assert!(!page.contains("<script") && !page.contains("alert('x')"), "{page}");
            assert!(!page.contains('\u{202e}'), "{page}");
            assert!(page.contains("&lt;script&gt;"));
        }
    }

    #[test]
    fn payloads_of_custom_events_need_the_option() {
        let shown = page(false);
        assert!(!shown.contains("s3cr3t"), "{shown}");
        assert!(shown.contains("text of 6 bytes") && shown.contains("array of 1"), "{shown}");
        assert!(page(true).contains("s3cr3t"));
    }
}
