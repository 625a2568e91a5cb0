//! The conformance suite of all stores.

pub(crate) use crate::subject::open;

windlass_testkit::conformance!(crate::conformance::open);
windlass_testkit::conformance_sql!(crate::conformance::open);
