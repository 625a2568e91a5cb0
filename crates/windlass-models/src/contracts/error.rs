//! Errors of contracts.

use windlass_contracts::compile;
use windlass_contracts::diagnostic::Diagnostic;
use windlass_kernel::{Error, ErrorCode, ErrorKind};

pub(crate) fn invalid(code: ErrorCode, message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, code, message)
}

pub(crate) fn refused(code: ErrorCode, message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Refused, code, message)
}

pub(crate) fn not_found(code: ErrorCode, message: impl Into<String>) -> Error {
    Error::new(ErrorKind::NotFound, code, message)
}

pub(crate) fn conflict(code: ErrorCode, message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Conflict, code, message)
}

/// Problems of a contract or a definition. The source of the error has all of them.
pub(crate) fn not_compiled(error: compile::Error) -> Error {
    let first = error.problems.first().map(|problem| problem.to_string()).unwrap_or_default();
    let count = error.problems.len();
    let more = if count > 1 { format!(" (and {} more)", count - 1) } else { String::new() };
    invalid(ErrorCode::ContractInvalid, format!("{first}{more}")).with_source(error)
}

/// Problems of a document.
pub(crate) fn bad_document(problems: &[Diagnostic]) -> Error {
    let texts: Vec<String> = problems
        .iter()
        .map(|problem| match problem.place.pointer.as_deref() {
            None | Some("") => problem.message.clone(),
            Some(at) => format!("{at}: {}", problem.message),
        })
        .collect();
    invalid(ErrorCode::DocumentInvalid, format!("the document is not valid: {}", texts.join("; ")))
}

pub(crate) fn no_document(entity_type: &str, id: &str) -> Error {
    let message = format!("there is no document {id:?} of type {entity_type:?}");
    not_found(ErrorCode::DocumentNotFound, message)
}

pub(crate) fn no_type(entity_type: &str) -> Error {
    let message =
        format!("there is no document type {entity_type:?}; publish its lifecycle contract first");
    not_found(ErrorCode::ContractTypeNotFound, message)
}
