//! Messages to people: mails, and notifications that people read in the application.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use windlass_contracts::approvers::Resolution;
use windlass_engine::{RecordChange, conflict_delay, refusal};
use windlass_kernel::{
    Collection, CommitError, Conflict, Error, ErrorCode, Expect, Query, RecordId, Subject,
    Timestamp, bodies,
};

use super::error::not_found;
use super::handle::Contracts;
use super::names::NOTIFICATIONS;
use super::work::{MAIL_EFFECT, MailInput, Stop, Worker};

/// The most people whom one notification record names.
const TOLD_MAX: usize = 28;

/// The record of a notification.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NotificationRow {
    #[serde(rename = "type")]
    entity_type: String,
    document: String,
    /// The people who have not dismissed it.
    to: BTreeSet<String>,
    subject: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    at: Timestamp,
}

/// A notification to a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Notification {
    /// The id. Newer ones have smaller ids.
    pub id: String,
    /// The document type.
    #[serde(rename = "type")]
    pub entity_type: String,
    /// The id of the document.
    pub document: String,
    /// The subject.
    pub subject: String,
    /// The text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// When the run sent it.
    pub at: Timestamp,
}

impl NotificationRow {
    fn put(&self, id: &str, expect: Expect) -> Result<RecordChange, Error> {
        let change = RecordChange::put_own(NOTIFICATIONS, id, self, expect)?;
        self.to.iter().try_fold(change, |change, person| change.term("to", person))
    }
}

impl Worker<'_> {
    /// Enqueues one mail for each person.
    pub(crate) fn mail(
        &mut self,
        key: &str,
        found: &Resolution,
        subject: &str,
        body: Option<&str>,
    ) -> Result<(), Stop> {
        for asked in &found.asked {
            let people = self.directory.as_ref().map(|directory| &directory.people);
            let person = people.and_then(|people| people.get(&asked.person));
            let Some(address) = person.and_then(|person| person.email.clone()) else {
                let message = format!("{:?} has no address for mail", asked.person);
                return Err(Stop::new("APPROVER_VALUE", message, Some(key)));
            };
            let row = &self.work.row;
            let input = MailInput {
                to: address,
                subject: subject.to_owned(),
                body: body.unwrap_or_default().to_owned(),
                idempotency_key: self.unique(key, &asked.person),
                entity_type: row.entity_type.clone(),
                document: row.id.clone(),
            };
            self.effect(key, MAIL_EFFECT, &input)?;
        }
        Ok(())
    }

    /// Writes the notification. People who fit into one record share it.
    pub(crate) fn notify(
        &mut self,
        key: &str,
        found: &Resolution,
        subject: &str,
        body: Option<&str>,
    ) -> Result<(), Stop> {
        // Listings are in the order of the ids, and people read the newest first.
        let since = u64::MAX - u64::try_from(self.now.as_micros()).unwrap_or_default();
        for people in found.asked.chunks(TOLD_MAX) {
            let row = NotificationRow {
                entity_type: self.work.row.entity_type.clone(),
                document: self.work.row.id.clone(),
                to: people.iter().map(|asked| asked.person.clone()).collect(),
                subject: subject.to_owned(),
                body: body.map(str::to_owned),
                at: self.now,
            };
            let first = people.first().map_or("", |asked| asked.person.as_str());
            let id = format!("{since:016x}-{}", &self.unique(key, first)[..32]);
            let change = row.put(&id, Expect::Absent).map_err(|error| Stop::of(&error))?;
            self.work.records.push(change);
        }
        Ok(())
    }
}

impl Contracts {
    /// The notifications of a person that they have not dismissed, the newest first.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// for note in contracts.notifications(&dana, None, 20).await? {
    ///     println!("{}: {}", note.document, note.subject);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn notifications(
        &self,
        person: &Subject,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Notification>, Error> {
        let query = Query::Records {
            namespace: self.engine.namespace().clone(),
            collection: Collection::new(NOTIFICATIONS)?,
            term: Some(("to".into(), person.id().into())),
            after: after.map(RecordId::new).transpose()?,
            limit,
        };
        let rows = bodies::list_records(&**self.engine.store(), query).await?;
        let mut found = Vec::new();
        for record in rows {
            let Some(body) = &record.body else { continue };
            let row: NotificationRow = body.read()?;
            found.push(Notification {
                id: record.key.id.as_str().to_owned(),
                entity_type: row.entity_type,
                document: row.document,
                subject: row.subject,
                body: row.body,
                at: row.at,
            });
        }
        Ok(found)
    }

    /// Dismisses a notification of a person. The other people who got it still see it; when all of them have
    /// dismissed it, it is removed.
    ///
    /// ```
    /// # async fn example(contracts: windlass::contracts::Contracts, dana: windlass::kernel::Subject) -> windlass::Result<()> {
    /// for note in contracts.notifications(&dana, None, 20).await? {
    ///     contracts.dismiss_notification(&note.id, &dana).await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::RecordNotFound`] if the person has no notification with this id.
    pub async fn dismiss_notification(&self, id: &str, person: &Subject) -> Result<(), Error> {
        let mut losses = 0;
        loop {
            let namespace = self.engine.namespace();
            let found = self.shared.read::<NotificationRow>(namespace, NOTIFICATIONS, id).await?;
            let found = found.filter(|(row, _)| row.to.contains(person.id()));
            let Some((mut row, revision)) = found else {
                let message = format!("there is no notification {id:?} for {:?}", person.id());
                return Err(not_found(ErrorCode::RecordNotFound, message));
            };
            row.to.remove(person.id());
            let change = match row.to.is_empty() {
                true => RecordChange::remove_own(NOTIFICATIONS, id, revision)?,
                false => row.put(id, Expect::At(revision))?,
            };
            match self.engine.commit_with(&[change], Vec::new()).await {
                Ok(_) => return Ok(()),
                Err(CommitError::Conflict(Conflict::Record { .. })) => {
                    losses += 1;
                    let env = self.engine.env();
                    env.sleep(conflict_delay(env.random(), losses)).await;
                }
                Err(error) => return Err(refusal(&error)),
            }
        }
    }
}
