//! Folded and not folded must come to the same.
