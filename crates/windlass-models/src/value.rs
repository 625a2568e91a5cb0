//! Inputs and outputs of workflows and results of steps: owned types, with a compiler error that can be read for borrowed ones.

use serde::de::DeserializeOwned;
use windlass_kernel::{Body, Error, ErrorCode};

use crate::run::invalid;

/// A type that an input, an output or the result of a step can have: every owned type that serde can read.
///
/// A borrowed type such as `&str` cannot be read back from the store: use `String`. With a borrowed type the
/// compiler reports that it cannot infer `Ownership`, because both implementations match.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be stored: it is no input, output or step result",
    label = "serde cannot read this type from the store",
    note = "derive `serde::Serialize` and `serde::Deserialize`, and use owned types: `String`, not `&str`"
)]
pub trait Value<Ownership>: Sized + 'static {
    #[doc(hidden)]
    fn from_body(body: &Body) -> Result<Self, Error>;
}

/// The type owns its data.
pub enum Owned {}

/// The type borrows its data, so no run can use it: use an owned type, such as `String` for `&str`.
pub enum BorrowedTypesAreNotAllowedUseAnOwnedType {}

impl<T: DeserializeOwned + 'static> Value<Owned> for T {
    fn from_body(body: &Body) -> Result<Self, Error> {
        body.read()
    }
}

impl<T: ?Sized> Value<BorrowedTypesAreNotAllowedUseAnOwnedType> for &'static T {
    fn from_body(_: &Body) -> Result<Self, Error> {
        Err(invalid(ErrorCode::InvalidBody, "a borrowed value cannot be read; use an owned type"))
    }
}
