//! A person who answers the questions of the examples.

use std::time::Duration;

use windlass::kernel::Subject;
use windlass::requests::{Decider, InboxOrder, InboxQuery, NewDecision};
use windlass::{Engine, Result};

/// Waits for the next question to a person, and answers it.
pub(crate) async fn decide(engine: &Engine, person: &str, decision: NewDecision) -> Result<()> {
    let inbox = InboxQuery::Person(person.to_owned());
    loop {
        let page = engine.requests().inbox(&inbox, InboxOrder::Due, None, 1).await?;
        if let Some(request) = page.requests.into_iter().next() {
            let decider = Decider::new(Subject::parse(person)?);
            engine.requests().decide(&request.id, &decider, &decision).await?;
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
