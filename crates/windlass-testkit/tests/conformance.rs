//! The memory store passes the suite.

windlass_testkit::conformance!(windlass_testkit::memory::open);
