//! How a run of `steps` ends: with a result, an error, or a next generation.

use windlass_engine::{Turn, TurnError};

use super::StepsProgram;
use crate::kit;
use crate::steps::error::Failure;

impl StepsProgram {
    // The run has returned: its end is in the same commit as its last records.
    pub(super) async fn finish(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        let outcome = self.finished.take().expect("the run has returned");
        self.take_lines(turn)?;
        let continue_with = self.core().continue_with.take();
        if continue_with.is_some() && turn.has_unread() {
            turn.read_messages().await?;
        }
        let outcome = outcome.and_then(|output| {
            kit::check_output(output, turn.limits())
                .map_err(|error| Failure::new("ResultTooLarge", error.to_string(), false))
        });
        let mut draft = match self.draft.take() {
            Some(draft) => draft,
            None => turn.draft(),
        };
        if self.reaches_outside() {
            kit::stop_descendants(turn, &mut draft).await?;
        }
        // Waits and bodies that lost a race have rows, and nobody will end them.
        if self.core().has_open_rows() {
            turn.cancel_open_steps(&mut draft).await?;
        }
        let ended = match (continue_with, outcome) {
            (Some(input), _) => kit::continue_as_new(turn, &mut draft, input),
            (None, Ok(output)) => kit::complete(turn, &mut draft, output),
            (None, Err(failure)) => {
                let error = failure.body().map_err(TurnError::Blocked)?;
                kit::fail(turn, &mut draft, &failure.name, error)
            }
        };
        ended.map_err(TurnError::Blocked)?;
        turn.commit(draft).await.map(|_| ())
    }
}
