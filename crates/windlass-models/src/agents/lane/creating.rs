//! A batch is created, and found again when the reply to its creation is lost.

use std::time::Duration;

use serde_json::json;
use windlass_engine::{Turn, TurnError};

use super::filling::{Request, batch_key};
use super::program::{LaneProgram, RETRIED, SUBMITTED};
use super::settling::{Change, GivenUp, MESSAGES_MAX, message};
use super::state::{InFlight, Join, Phase, What};
use super::view;
use crate::agents::batch::{BatchRefused, BatchView};
use crate::agents::provider::{ProviderError, ProviderErrorKind as Kind};

/// The clock of a provider may be behind the store's by this.
const CLOCK_SKEW: Duration = Duration::from_secs(300);
/// How long a lane waits after a spend limit if the provider names no time.
const SPEND_CLOSED_FOR: Duration = Duration::from_secs(60 * 60);
/// How often a provider may refuse a batch for now before its members follow the policy of their agents.
const CREATES_MAX: u32 = 100;

impl LaneProgram {
    // Writes the intent of an attempt, then makes it.
    pub(super) async fn create(
        &mut self,
        turn: &mut Turn,
        mut batch: InFlight,
    ) -> Result<(), TurnError> {
        let members = self.members_of(&batch)?;
        let built = self.requests(&batch, &members).await.map_err(TurnError::Store)?;
        let (mut requests, mut broken) = (Vec::new(), Vec::new());
        batch.left.clear();
        for (index, request) in (0..).zip(built) {
            match request {
                Request::Sent(member) => requests.push(member),
                Request::Left => batch.left.push(index),
                Request::Broken { why, retryable } => {
                    batch.left.push(index);
                    broken.push((&members[index as usize], why, retryable));
                }
            }
        }
        self.tell_broken(turn, &batch, broken).await?;
        if requests.is_empty() {
            return self.give_up(turn, batch, GivenUp::unsent("every member has left")).await;
        }
        let now = turn.now();
        batch.creates += 1;
        (batch.phase, batch.since, batch.next) = (Phase::Intended, now, now);
        (batch.sent, batch.unknown_since) = (requests.len() as u64, None);
        let intent = batch.intent.clone();
        self.write(turn, Change::of(batch.clone())).await?;
        match self.provider()?.create(&intent, requests).await {
            Ok(view) => self.created(turn, batch, view, false).await,
            Err(error) => self.create_failed(turn, batch, error).await,
        }
    }

    // After a crash the lane sends the messages again; the second message has the same id.
    async fn tell_broken(
        &mut self,
        turn: &mut Turn,
        batch: &InFlight,
        broken: Vec<(&Join, String, bool)>,
    ) -> Result<(), TurnError> {
        for part in broken.chunks(MESSAGES_MAX) {
            let told = part.iter().map(|(member, why, retryable)| {
                let what = What::Failed {
                    reason: "not_sent".into(),
                    message: why.chars().take(500).collect(),
                    retryable: *retryable,
                    possibly_paid: false,
                };
                message(member, &self.told(batch, member, what), "end", turn.now())
            });
            let messages: Vec<_> = told.collect::<Result<_, _>>().map_err(TurnError::Blocked)?;
            self.send(turn, messages).await?;
        }
        Ok(())
    }

    async fn created(
        &mut self,
        turn: &mut Turn,
        mut batch: InFlight,
        view: BatchView,
        recovered: bool,
    ) -> Result<(), TurnError> {
        let provisional = recovered && view.intent.is_none();
        let payload = json!({
            "step": batch_key(batch.number), "intent": batch.intent, "members": batch.sent,
            "provider": self.input.provider, "provider_batch_id": view.id, "recovered": recovered,
            "provisional": provisional,
        });
        batch.phase = Phase::Created { id: view.id.clone(), provisional, told: false };
        (batch.next, batch.polls) = (turn.now(), 0);
        let event = Some((SUBMITTED, payload));
        self.write(turn, Change { event, view: Some(view), ..Change::of(batch) }).await
    }

    async fn create_failed(
        &mut self,
        turn: &mut Turn,
        mut batch: InFlight,
        error: ProviderError,
    ) -> Result<(), TurnError> {
        let now = turn.now();
        if let Some(wait) = error.postponed_by() {
            // The account is closed. Nothing was sent, so this is no attempt, and no event: it may last for days.
            batch.creates -= 1;
            (batch.phase, batch.next) = (Phase::Refused, now.plus(wait));
            let closed_until = Some(batch.next);
            return self.write(turn, Change { closed_until, ..Change::of(batch) }).await;
        }
        let mut closed_until = None;
        if error.kind().may_be_paid() {
            // It may exist. The next step looks for it.
            (batch.next, batch.unknown_since) = (now, Some(now));
        } else if let Some(wait) = self.wait_after(&batch, error.kind(), error.retry_after()) {
            closed_until = Some(now.plus(wait));
            (batch.phase, batch.next) = (Phase::Refused, now.plus(wait));
        } else {
            batch.phase = Phase::Refused;
            return self.give_up(turn, batch, GivenUp::unsent(&error.to_string())).await;
        }
        let payload = json!({
            "step": batch_key(batch.number), "intent": batch.intent,
            "attempt": batch.creates, "kind": error.kind().as_str(), "status": error.status(),
            "possibly_paid": error.kind().may_be_paid(),
        });
        let event = Some((RETRIED, payload));
        self.write(turn, Change { event, closed_until, ..Change::of(batch) }).await
    }

    // How long the lane waits before it sends a refused batch again; none if that cannot help.
    fn wait_after(
        &self,
        batch: &InFlight,
        kind: Kind,
        retry_after: Option<Duration>,
    ) -> Option<Duration> {
        let spent = kind == Kind::SpendLimitReached;
        if kind == Kind::Invalid || batch.creates >= CREATES_MAX && !spent {
            return None;
        }
        Some(retry_after.unwrap_or_else(|| match spent {
            true => SPEND_CLOSED_FOR,
            false => self.poll_delay(batch.creates.saturating_sub(1)),
        }))
    }

    /// The provider has looked at the batch and refused it as a whole.
    pub(super) async fn refused(
        &mut self,
        turn: &mut Turn,
        mut batch: InFlight,
        view: BatchView,
        refused: BatchRefused,
    ) -> Result<(), TurnError> {
        let Some(wait) = self.wait_after(&batch, refused.kind, refused.retry_after) else {
            let unsent = GivenUp::unsent(&refused.message);
            return self
                .give_up(turn, batch, GivenUp { refused: &refused.members, ..unsent })
                .await;
        };
        let payload = json!({
            "step": batch_key(batch.number), "intent": batch.intent, "attempt": batch.creates,
            "provider_batch_id": view.id, "kind": refused.kind.as_str(), "possibly_paid": false,
        });
        batch.foreign.push(view.id);
        (batch.phase, batch.next) = (Phase::Refused, turn.now().plus(wait));
        let closed_until = Some(batch.next);
        let event = Some((RETRIED, payload));
        self.write(turn, Change { event, closed_until, ..Change::of(batch) }).await
    }

    // The creation has an unknown outcome: looks for the batch at the provider.
    pub(super) async fn find(
        &mut self,
        turn: &mut Turn,
        mut batch: InFlight,
    ) -> Result<(), TurnError> {
        let now = turn.now();
        let limits = self.provider()?.limits();
        let listed = self.provider()?.since(batch.since.minus(CLOCK_SKEW)).await;
        let found = match listed {
            Ok(listed) => self.choose(turn, &batch, listed, limits.marks).await?,
            Err(error) => {
                tracing::warn!(%error, intent = %batch.intent, "failed to list the batches of a provider");
                batch.next = now.plus(self.served.options.poll_min);
                return self.write(turn, Change::of(batch)).await;
            }
        };
        if let Some(view) = found {
            return self.created(turn, batch, view, true).await;
        }
        // After a crash nobody knows when the creation ended.
        let unknown_since = batch.unknown_since.unwrap_or(batch.since.plus(limits.create_time_max));
        let over = unknown_since.plus(self.served.options.grace);
        if now < over {
            batch.next = now.plus(self.served.options.poll_min).min(over);
            return self.write(turn, Change::of(batch)).await;
        }
        // It never arrived, or the provider shows it so late that both are paid: it is sent again.
        let payload = json!({
            "step": batch_key(batch.number), "intent": batch.intent,
            "attempt": batch.creates, "not_found": true, "possibly_paid": true,
        });
        (batch.phase, batch.next) = (Phase::Refused, now);
        let event = Some((RETRIED, payload));
        self.write(turn, Change { event, ..Change::of(batch) }).await
    }

    // With marks exactly ours; else the oldest batch of this size that nobody else of this store has.
    async fn choose(
        &self,
        turn: &Turn,
        batch: &InFlight,
        listed: Vec<BatchView>,
        marks: bool,
    ) -> Result<Option<BatchView>, TurnError> {
        if marks {
            let ours = |view: &BatchView| {
                view.intent.as_deref() == Some(batch.intent.as_str())
                    && !batch.foreign.contains(&view.id)
            };
            return Ok(listed.into_iter().find(ours));
        }
        let store = &*self.engine.store;
        for view in listed.into_iter().rev() {
            let fits = view.total == batch.sent && !batch.foreign.contains(&view.id);
            if fits {
                let known = view::is_known(store, &turn.run.namespace, &view.id).await;
                if !known.map_err(TurnError::Store)? {
                    return Ok(Some(view));
                }
            }
        }
        Ok(None)
    }

    // Each member's ledger names the batch that it is in.
    pub(super) async fn tell_members(
        &mut self,
        turn: &mut Turn,
        mut batch: InFlight,
    ) -> Result<(), TurnError> {
        let members = self.members_of(&batch)?;
        let Phase::Created { id, provisional, .. } = batch.phase.clone() else { return Ok(()) };
        let what = What::Submitted { members: batch.members, recovered: batch.creates > 1 };
        for part in members.chunks(MESSAGES_MAX) {
            let mut draft = turn.draft();
            for member in part {
                let told = self.told(&batch, member, what.clone());
                draft.send(
                    message(member, &told, "submitted", turn.now()).map_err(TurnError::Blocked)?,
                );
            }
            turn.commit(draft).await?;
        }
        batch.phase = Phase::Created { id, provisional, told: true };
        batch.next = turn.now().plus(self.served.options.poll_min);
        self.write(turn, Change::of(batch)).await
    }
}
