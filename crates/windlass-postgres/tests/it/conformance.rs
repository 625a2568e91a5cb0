//! The suite that every store passes.

windlass_testkit::conformance!(crate::support::open);
windlass_testkit::conformance_sql!(crate::support::open);
