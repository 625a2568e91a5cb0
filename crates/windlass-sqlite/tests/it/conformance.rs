//! The suite that every store passes.

pub(crate) use crate::subject::open;

windlass_testkit::conformance!(crate::conformance::open);
windlass_testkit::conformance_sql!(crate::conformance::open);
