//! Building blocks of models: control messages, rows, children, activities, results, ends.
//!
//! A model keeps the state of its runs and decides what comes next. Everything that two models would
//! write alike is here, so that it is written once and reads the same in every ledger.

mod activity;
mod child;
mod control;
mod finish;
mod results;
mod rows;

pub use activity::{NewActivity, schedule_activity};
pub use child::{ChildRef, NewChild, begin_child, name_child, next_generation, start_child};
pub use control::{apply_control, commit_turn, read_messages, release, take_message};
pub use finish::{check_output, complete, continue_as_new, fail, stop_descendants};
pub use results::{LargeResults, ResultIndex};
pub use rows::{blank_step, new_step};
pub use windlass_engine::description::{
    ACTIVITY, ACTIVITY_RETRY, ACTIVITY_STEP, CHILD, CHILD_STEP,
};
pub use windlass_engine::events;
