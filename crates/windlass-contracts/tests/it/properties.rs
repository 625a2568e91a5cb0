//! Random patches: no panic, and no accepted patch gets round a gate or an obligation.
