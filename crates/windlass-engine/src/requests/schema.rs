//! JSON schemas of answers. Only a build with the feature `schemas` can check them.

use windlass_kernel::request::{Decision, Request, RequestState, Verdict};
use windlass_kernel::{Error, ErrorCode, ErrorKind};

/// Refuses a schema that is not one.
pub(super) fn check_schema(request: &Request) -> Result<(), Error> {
    let Some(schema) = request.answer_schema() else { return Ok(()) };
    let refused = |why: String| {
        let message = format!("the request is not valid: {why}");
        Error::new(ErrorKind::Invalid, ErrorCode::InvalidRequest, message)
    };
    match Schema::new(schema) {
        Ok(_) => Ok(()),
        Err(Unusable::NoSchema(why)) => {
            Err(refused(format!("its schema is not a JSON schema: {why}")))
        }
        Err(Unusable::Disabled) => Err(refused(format!("it has a JSON schema, and {DISABLED}"))),
    }
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
    match Schema::new(schema) {
        Ok(schema) => schema.check(answer).or_else(refused),
        Err(Unusable::NoSchema(why)) => Err(Error::corrupt(format!("request {}: {why}", state.id))),
        Err(Unusable::Disabled) => refused(DISABLED.to_owned()),
    }
}

const DISABLED: &str =
    "this program cannot check it; build it with the feature `schemas` of windlass";

/// Why a schema cannot be used.
#[expect(dead_code, reason = "a build makes only one of them")]
enum Unusable {
    NoSchema(String),
    Disabled,
}

#[cfg(feature = "schemas")]
struct Schema(jsonschema::Validator);

#[cfg(feature = "schemas")]
impl Schema {
    fn new(schema: &serde_json::Value) -> Result<Self, Unusable> {
        let validator = jsonschema::validator_for(schema);
        validator.map(Self).map_err(|error| Unusable::NoSchema(error.to_string()))
    }

    fn check(&self, answer: &serde_json::Value) -> Result<(), String> {
        self.0
            .validate(answer)
            .map_err(|error| format!("{error} at {:?}", error.instance_path().to_string()))
    }
}

#[cfg(not(feature = "schemas"))]
enum Schema {}

#[cfg(not(feature = "schemas"))]
impl Schema {
    fn new(_: &serde_json::Value) -> Result<Self, Unusable> {
        Err(Unusable::Disabled)
    }

    fn check(&self, _: &serde_json::Value) -> Result<(), String> {
        match *self {}
    }
}
