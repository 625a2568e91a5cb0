//! Building blocks of models: control messages, rows, children, activities, results, ends.
//!
//! A model keeps the state of its runs and decides what comes next. Everything that two models would
//! write alike is here, so that it is written once and reads the same in every ledger.

mod activity;
mod child;
mod control;
mod finish;
mod keyed;
mod requests;
mod results;
mod rows;

pub use activity::{NewActivity, schedule_activity};
pub use child::{ChildRef, NewChild, begin_child, name_child, next_generation, start_child};
pub use control::{apply_control, commit_turn, read_messages, release, take_message};
pub use finish::{check_output, complete, continue_as_new, fail, stop_descendants};
pub use keyed::{begin_keyed_wait, end_keyed_wait, give_up_keyed_wait};
pub use requests::{RequestResults, close_request, open_request};
pub use results::{LargeResults, ResultIndex};
pub use rows::{blank_step, micros, new_step};
pub use windlass_engine::description::{
    ACTIVITY, ACTIVITY_RETRY, ACTIVITY_STEP, CHILD, CHILD_STEP, REQUEST, REQUEST_STEP,
};
pub use windlass_engine::{EventAddress, KeyedWait, events};
