//! The error of expressions and templates.

use std::fmt;

use crate::diagnostic::{Code, Diagnostic, Span};

/// The text does not follow the grammar.
pub const EXPRESSION_SYNTAX: Code = Code::new("EXPRESSION_SYNTAX");
/// The text has too many characters.
pub const EXPRESSION_TOO_LONG: Code = Code::new("EXPRESSION_TOO_LONG");
/// Operators or parentheses nest too deep.
pub const EXPRESSION_TOO_DEEP: Code = Code::new("EXPRESSION_TOO_DEEP");
/// The paths have too many steps.
pub const EXPRESSION_TOO_MANY_DEREFERENCES: Code = Code::new("EXPRESSION_TOO_MANY_DEREFERENCES");
/// A comparison is an operand of a comparison, as in `a < b < c`.
pub const EXPRESSION_CHAINED_COMPARISON: Code = Code::new("EXPRESSION_CHAINED_COMPARISON");
/// A number has more digits than a number may have.
pub const EXPRESSION_NUMBER: Code = Code::new("EXPRESSION_NUMBER");
/// A namespace or a field does not exist.
pub const EXPRESSION_UNKNOWN_NAME: Code = Code::new("EXPRESSION_UNKNOWN_NAME");
/// The types of the operands do not fit the operator.
pub const EXPRESSION_TYPE: Code = Code::new("EXPRESSION_TYPE");
/// A value at evaluation does not have the type that the operator needs.
pub const EXPRESSION_VALUE: Code = Code::new("EXPRESSION_VALUE");
/// A schema refers to another document.
pub const SCHEMA_REMOTE_REF: Code = Code::new("SCHEMA_REMOTE_REF");
/// A schema does not say one type for a field, or its references do not end.
pub const SCHEMA_UNSUPPORTED: Code = Code::new("SCHEMA_UNSUPPORTED");
/// The template does not follow the grammar.
pub const TEMPLATE_SYNTAX: Code = Code::new("TEMPLATE_SYNTAX");
/// The template has too many characters.
pub const TEMPLATE_TOO_LONG: Code = Code::new("TEMPLATE_TOO_LONG");
/// A path of the template has no value, or an empty one in a key.
pub const TEMPLATE_EMPTY_VALUE: Code = Code::new("TEMPLATE_EMPTY_VALUE");
/// The rendered text is too long.
pub const TEMPLATE_RESULT_TOO_LONG: Code = Code::new("TEMPLATE_RESULT_TOO_LONG");

/// The codes of this module.
pub const CODES: &[Code] = &[
    EXPRESSION_SYNTAX,
    EXPRESSION_TOO_LONG,
    EXPRESSION_TOO_DEEP,
    EXPRESSION_TOO_MANY_DEREFERENCES,
    EXPRESSION_CHAINED_COMPARISON,
    EXPRESSION_NUMBER,
    EXPRESSION_UNKNOWN_NAME,
    EXPRESSION_TYPE,
    EXPRESSION_VALUE,
    SCHEMA_REMOTE_REF,
    SCHEMA_UNSUPPORTED,
    TEMPLATE_SYNTAX,
    TEMPLATE_TOO_LONG,
    TEMPLATE_EMPTY_VALUE,
    TEMPLATE_RESULT_TOO_LONG,
];

/// The most characters of a text that an error repeats.
const SHOWN_MAX: usize = super::CHARACTERS_MAX;

/// A problem in an expression or a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Inner {
    code: Code,
    message: String,
    help: String,
    text: String,
    span: Span,
}

/// A problem that has no advice yet, as [`WithoutHelp`](crate::diagnostic::WithoutHelp).
#[must_use = "add the advice with `help`"]
pub(crate) struct WithoutHelp(Error);

impl WithoutHelp {
    pub(crate) fn help(self, help: impl Into<String>) -> Error {
        let Self(mut error) = self;
        error.0.help = help.into();
        debug_assert!(!error.0.help.is_empty(), "the advice of {} is empty", error.0.code);
        error
    }
}

impl Error {
    #[expect(clippy::new_ret_no_self, reason = "a problem is complete with its advice")]
    pub(crate) fn new(code: Code, span: Span, message: impl Into<String>) -> WithoutHelp {
        let (message, help, text) = (message.into(), String::new(), String::new());
        WithoutHelp(Self(Box::new(Inner { code, message, help, text, span })))
    }

    /// Sets the text that the span is about. A text beyond every limit is cut.
    #[must_use]
    pub(crate) fn of(mut self, text: &str) -> Self {
        let end = text.char_indices().nth(SHOWN_MAX).map_or(text.len(), |(at, _)| at);
        text[..end].clone_into(&mut self.0.text);
        self.0.span.end = self.0.span.end.min(end);
        self.0.span.start = self.0.span.start.min(self.0.span.end);
        self
    }

    /// Moves the span: the text was a part of a larger one.
    #[must_use]
    pub(crate) fn shift(mut self, by: usize) -> Self {
        self.0.span.start += by;
        self.0.span.end += by;
        self
    }

    /// The stable code.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// The place in the text, in bytes.
    pub fn span(&self) -> Span {
        self.0.span
    }

    /// The problem.
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { code, message, span, .. } = &*self.0;
        write!(f, "{message}, at byte {} [{code}]", span.start)
    }
}

impl std::error::Error for Error {}

impl From<Error> for Diagnostic {
    fn from(error: Error) -> Self {
        let Inner { code, message, help, text, span } = *error.0;
        Self::new(code, message).expression(text, span).help(help)
    }
}
