//! JSON schemas of answers.

use windlass_kernel::request::{Decision, Request, RequestState, Verdict};
use windlass_kernel::{Error, ErrorCode, ErrorKind};

/// Refuses a schema that is not one.
pub(super) fn check_schema(request: &Request) -> Result<(), Error> {
    let Some(schema) = request.answer_schema() else { return Ok(()) };
    jsonschema::validator_for(schema).map(|_| ()).map_err(|error| {
        let message = format!("the request is not valid: its schema is not a JSON schema: {error}");
        Error::new(ErrorKind::Invalid, ErrorCode::InvalidRequest, message)
    })
}

/// Refuses an answer that does not fit the schema of its request.
pub(super) fn check_answer(state: &RequestState, decision: &Decision) -> Result<(), Error> {
    let Some(schema) = &state.schema else { return Ok(()) };
    let refused = |why: String| {
        let message = format!("the answer does not fit the schema of request {}: {why}", state.id);
        Err(Error::new(ErrorKind::Invalid, ErrorCode::AnswerInvalid, message))
    };
    let Some(answer) = &decision.answer else {
        return match decision.verdict {
            Verdict::Approve => refused("it is missing".into()),
            Verdict::Reject => Ok(()),
        };
    };
    let validator = jsonschema::validator_for(schema)
        .map_err(|error| Error::corrupt(format!("request {}: {error}", state.id)))?;
    match validator.validate(answer) {
        Ok(()) => Ok(()),
        Err(error) => refused(format!("{error} at {:?}", error.instance_path().to_string())),
    }
}
