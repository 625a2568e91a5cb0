//! One type for every problem that the crate reports: a stable code, a message, a place, an advice.

use std::{error, fmt, ops::Range};

use miette::{LabeledSpan, NamedSource, SourceCode};
use serde::Serialize;

use crate::source;

/// A stable name of a problem, for programs to branch on.
///
/// Each module lists its codes in a constant `CODES`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Code(&'static str);

impl Code {
    /// Names a code. Codes are written like `EXPRESSION_TOO_LONG`.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// The name.
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// A range of bytes in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Span {
    /// The first byte.
    pub start: usize,
    /// The byte after the last one.
    pub end: usize,
}

impl From<Range<usize>> for Span {
    fn from(range: Range<usize>) -> Self {
        Self { start: range.start, end: range.end }
    }
}

impl From<Span> for Range<usize> {
    fn from(span: Span) -> Self {
        span.start..span.end
    }
}

/// The place of a problem. Every member can be absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Place {
    /// The place in the JSON input (RFC 6901).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// The expression or template that is wrong. The span is then a place in this text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expression: Option<String>,
    /// The place in the expression or, without one, in the source text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub span: Option<Span>,
}

/// One problem: its code, what is wrong, where, and what to do.
///
/// ```
/// use windlass_contracts::diagnostic::{Code, Diagnostic};
///
/// let text = r#"{"nodes": [{"id": "sys:start"}]}"#;
/// // `new` gives a problem without an advice, and `help` makes it a `Diagnostic`.
/// let found = Diagnostic::new(Code::new("NODE_RESERVED"), "the id \"sys:start\" is reserved")
///     .at("/nodes/0/id")
///     .help("begin the id with usr:");
/// assert!(found.render(Some(("patch.json", text))).contains("sys:start"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Diagnostic {
    /// The stable code.
    pub code: Code,
    /// The problem in one sentence that names the value.
    pub message: String,
    /// The advice.
    pub help: String,
    /// Where it is.
    #[serde(flatten)]
    pub place: Box<Place>,
    /// The nodes of the path that shows the problem, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<String>,
}

/// A problem that has no advice yet: [`help`](Self::help) makes it a [`Diagnostic`]. No problem can be
/// reported without an advice.
#[derive(Debug, Clone)]
#[must_use = "add the advice with `help`"]
pub struct WithoutHelp(Diagnostic);

impl WithoutHelp {
    /// Adds the advice.
    pub fn help(self, help: impl Into<String>) -> Diagnostic {
        let help = help.into();
        debug_assert!(!help.is_empty(), "the advice of {} is empty", self.0.code);
        Diagnostic { help, ..self.0 }
    }

    /// As [`Diagnostic::at`].
    pub fn at(self, pointer: impl Into<String>) -> Self {
        Self(self.0.at(pointer))
    }

    /// As [`Diagnostic::span`].
    pub fn span(self, span: impl Into<Span>) -> Self {
        Self(self.0.span(span))
    }

    /// As [`Diagnostic::expression`].
    pub fn expression(self, text: impl Into<String>, span: impl Into<Span>) -> Self {
        Self(self.0.expression(text, span))
    }

    /// As [`Diagnostic::path`].
    pub fn path(self, nodes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self(self.0.path(nodes))
    }
}

impl Diagnostic {
    /// Begins a problem. It is complete with its advice.
    #[expect(clippy::new_ret_no_self, reason = "a problem is complete with its advice")]
    pub fn new(code: Code, message: impl Into<String>) -> WithoutHelp {
        WithoutHelp(Self {
            code,
            message: message.into(),
            help: String::new(),
            place: Box::default(),
            path: Vec::new(),
        })
    }

    /// Sets the place in the JSON input.
    #[must_use]
    pub fn at(mut self, pointer: impl Into<String>) -> Self {
        self.place.pointer = Some(pointer.into());
        self
    }

    /// Puts the place below another place: the value was checked as a part of a larger one.
    #[must_use]
    pub fn under(mut self, prefix: &str) -> Self {
        self.place.pointer = Some(format!("{prefix}{}", self.place.pointer.unwrap_or_default()));
        self
    }

    /// Sets the range of bytes in the source text.
    #[must_use]
    pub fn span(mut self, span: impl Into<Span>) -> Self {
        self.place.span = Some(span.into());
        self
    }

    /// Sets the expression and the range of bytes in it.
    #[must_use]
    pub fn expression(mut self, text: impl Into<String>, span: impl Into<Span>) -> Self {
        self.place.expression = Some(text.into());
        self.place.span = Some(span.into());
        self
    }

    /// Sets the nodes of the path that shows the problem.
    #[must_use]
    pub fn path(mut self, nodes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.path = nodes.into_iter().map(Into::into).collect();
        self
    }

    /// Joins the problem with the text that it is about, for the report handlers of `miette`.
    ///
    /// `source` is the name and the text of the JSON input. A problem in an expression shows the
    /// expression instead.
    pub fn report(&self, source: Option<(&str, &str)>) -> Report {
        let (shown, span) = match (&self.place.expression, source) {
            (Some(text), _) => {
                let name = self.place.pointer.clone().unwrap_or_else(|| "expression".to_owned());
                (Some(NamedSource::new(name, text.clone())), self.place.span.map(Range::from))
            }
            (None, Some((name, text))) => {
                let span = self.place.span.map(Range::from).or_else(|| {
                    self.place.pointer.as_deref().and_then(|pointer| source::locate(text, pointer))
                });
                (span.is_some().then(|| NamedSource::new(name, text.to_owned())), span)
            }
            (None, None) => (None, None),
        };
        Report { diagnostic: self.clone(), source: shown, span }
    }

    /// Writes the problem for people, without colours: the code, the line with the place
    /// underlined, the path, the advice.
    pub fn render(&self, source: Option<(&str, &str)>) -> String {
        let report = self.report(source);
        let mut out = format!("error[{}]: {}\n", self.code, self.message);
        match report.snippet() {
            Some(snippet) => out.push_str(&snippet),
            None => {
                if let Some(pointer) = &self.place.pointer {
                    out.push_str(&format!("  --> {pointer:?}\n"));
                }
            }
        }
        if !self.path.is_empty() {
            out.push_str(&format!("  = path: {}\n", self.path.join(" → ")));
        }
        out.push_str(&format!("  = help: {}\n", self.help));
        out
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(pointer) = self.place.pointer.as_deref().filter(|pointer| !pointer.is_empty()) {
            write!(f, "{pointer}: ")?;
        }
        write!(f, "{} [{}]", self.message, self.code)
    }
}

impl error::Error for Diagnostic {}

/// A [`Diagnostic`] together with the text that it is about.
#[derive(Debug)]
pub struct Report {
    diagnostic: Diagnostic,
    source: Option<NamedSource<String>>,
    span: Option<Range<usize>>,
}

impl Report {
    /// The first line of the place, underlined. A long line is cut around the place.
    fn snippet(&self) -> Option<String> {
        const BEFORE_MAX: usize = 60;
        const SHOWN_MAX: usize = 120;
        let (source, span) = (self.source.as_ref()?, self.span.clone()?);
        let contents = source.read_span(&span.clone().into(), 0, 0).ok()?;
        let text = source.inner();
        let start = text[..span.start].rfind('\n').map_or(0, |at| at + 1);
        let end = text[span.start..].find('\n').map_or(text.len(), |at| span.start + at);
        let before: Vec<char> = text[start..span.start].chars().collect();
        let marked = text[span.start..end.min(span.end)].chars().count().clamp(1, SHOWN_MAX);
        let cut = before.len().saturating_sub(BEFORE_MAX);
        let shown: String = text[start..end]
            .chars()
            .skip(cut)
            .take(SHOWN_MAX)
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let line = contents.line() + 1;
        let margin = " ".repeat(line.to_string().len());
        let indent = " ".repeat(before.len() - cut);
        let column = before.len() + 1;
        Some(format!(
            "{margin}--> {name}:{line}:{column}\n{margin} |\n{line} | {shown}\n{margin} | {indent}{marks}\n",
            name = source.name(),
            marks = "^".repeat(marked.min(SHOWN_MAX - indent.len())),
        ))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.diagnostic.fmt(f)
    }
}

impl error::Error for Report {}

impl miette::Diagnostic for Report {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(self.diagnostic.code))
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(&self.diagnostic.help))
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.source.as_ref().map(|source| source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = self.span.clone()?;
        Some(Box::new(std::iter::once(LabeledSpan::underline(span))))
    }
}

/// Appends one step to a JSON pointer and escapes it.
pub fn pointer_join(pointer: &str, step: impl fmt::Display) -> String {
    let step = step.to_string().replace('~', "~0").replace('/', "~1");
    format!("{pointer}/{step}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: Code = Code::new("A_CODE");

    #[test]
    fn a_report_underlines_the_place_in_the_json() {
        let text = "{\n  \"nodes\": [\n    {\"id\": \"usr:x\"}\n  ]\n}";
        let found = Diagnostic::new(CODE, "the id is wrong").at("/nodes/0/id").help("change it");
        assert_eq!(
            found.render(Some(("patch.json", text))),
            "error[A_CODE]: the id is wrong\n --> patch.json:3:12\n  |\n3 |     {\"id\": \"usr:x\"}\n  \
             |            ^^^^^^^\n  = help: change it\n"
        );
    }

    #[test]
    fn a_report_shows_the_expression_instead_of_the_json() {
        let found = Diagnostic::new(CODE, "unknown field")
            .at("/edges/0/condition")
            .expression("entity.x", 7..8)
            .help("use total");
        assert_eq!(
            found.render(Some(("patch.json", "{}"))),
            "error[A_CODE]: unknown field\n --> /edges/0/condition:1:8\n  |\n1 | entity.x\n  \
             |        ^\n  = help: use total\n"
        );
    }

    #[test]
    fn a_report_without_a_source_names_the_pointer_and_the_path() {
        let found =
            Diagnostic::new(CODE, "a cycle").path(["a", "b", "a"]).help("cut it").at("/edges");
        assert_eq!(
            found.render(None),
            "error[A_CODE]: a cycle\n  --> \"/edges\"\n  = path: a → b → a\n  = help: cut it\n"
        );
    }

    #[test]
    fn a_report_cuts_long_lines_and_works_at_the_end_of_the_text() {
        let text = format!("[{}1]", "1,".repeat(1_000));
        let shown = Diagnostic::new(CODE, "m").help("h").at("/1000").render(Some(("f", &text)));
        assert!(shown.contains("f:1:2002") && shown.len() < 300, "{shown}");
        for text in ["", "ab", "ab\n"] {
            let found = Diagnostic::new(CODE, "m").span(text.len()..text.len()).help("h");
            let shown = found.render(Some(("f", text)));
            assert!(shown.starts_with("error[A_CODE]: m\n"), "{shown}");
        }
    }

    #[test]
    fn the_handlers_of_miette_show_the_report() {
        let mut shown = String::new();
        miette::NarratableReportHandler::new()
            .render_report(
                &mut shown,
                &Diagnostic::new(CODE, "unknown")
                    .help("advice")
                    .expression("entity.x", 7..8)
                    .report(None),
            )
            .unwrap();
        for part in ["unknown", "advice", "A_CODE", "entity.x"] {
            assert!(shown.contains(part), "{part:?} is not in {shown}");
        }
    }

    #[test]
    fn a_diagnostic_serialises_without_empty_members() {
        let found = Diagnostic::new(CODE, "m").at("/b").span(1..2).help("h").under("/a");
        assert_eq!(
            serde_json::to_value(&found).unwrap(),
            serde_json::json!({
                "code": "A_CODE", "message": "m", "help": "h", "pointer": "/a/b",
                "span": {"start": 1, "end": 2},
            })
        );
        assert_eq!(found.to_string(), "/a/b: m [A_CODE]");
    }

    #[test]
    fn pointers_are_escaped() {
        assert_eq!(pointer_join("/a", "b/c~d"), "/a/b~1c~0d");
        assert_eq!(pointer_join("", 3), "/3");
    }
}
