//! The conformance suite of all stores.

windlass_testkit::conformance!(crate::support::open);
windlass_testkit::conformance_sql!(crate::support::open);
