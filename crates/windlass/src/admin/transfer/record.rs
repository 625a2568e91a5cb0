//! The shape of an exported record: its row and its kept versions, as one line of JSON.

use serde::{Deserialize, Serialize};
use windlass_kernel::{
    CausalRef, Collection, Error, ErrorCode, ErrorKind, Namespace, Query, Record, RecordId,
    RecordKey, RecordVersion, Sha256Digest, Store, Terms, Timestamp, Uuid, WriteId, bodies,
};

use super::PAGE;
use super::format::BodyText;

/// The shape that this build writes and reads.
const FORMAT: u32 = 1;

/// A record as it was when it was exported, with its kept versions: one line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordExport {
    format: u32,
    record: RecordLine,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    versions: Vec<VersionLine>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RecordLine {
    namespace: Namespace,
    collection: String,
    id: String,
    revision: u64,
    write_id: Uuid,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    body: Option<BodyText>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    terms: Vec<(String, String)>,
    created_at: i64,
    updated_at: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct VersionLine {
    revision: u64,
    body: BodyText,
    digest: Sha256Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    actor: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    caused_by: Option<CausalRef>,
    created_at: i64,
}

/// The rows of an exported record. The versions are oldest first.
#[derive(Clone)]
pub(super) struct RecordParts {
    pub(super) record: Record,
    pub(super) versions: Vec<RecordVersion>,
}

/// Reads a record and its kept versions out of a store. `None` if there is no such record.
///
/// ```
/// # async fn example(engine: windlass::Engine, key: windlass::kernel::RecordKey) -> windlass::Result<()> {
/// use windlass::admin::transfer::export_record;
///
/// if let Some(export) = export_record(&**engine.admin().store(), key).await? {
///     println!("{}", export.to_line()?);
/// }
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// The store cannot be read.
pub async fn export_record(
    store: &dyn Store,
    key: RecordKey,
) -> Result<Option<RecordExport>, Error> {
    let Some(record) = store.records(vec![key.clone()]).await?.pop().flatten() else {
        return Ok(None);
    };
    // Versions up to the revision of the row never change, so both are of one state.
    let mut versions: Vec<RecordVersion> = Vec::new();
    let mut before = Some(record.revision.saturating_add(1));
    loop {
        let query = Query::RecordVersions { key: key.clone(), before, limit: PAGE };
        let page = store.list(query).await?.record_versions()?;
        before = page.last().map(|version| version.revision);
        let last = page.len() < PAGE as usize;
        versions.extend(page);
        if last {
            break;
        }
    }
    bodies::fill(store, bodies::of_versions(&mut versions)).await?;
    versions.reverse();
    Ok(Some(RecordExport::of(&RecordParts { record, versions })))
}

impl RecordExport {
    fn of(parts: &RecordParts) -> Self {
        let RecordParts { record, versions } = parts;
        let pairs = record.terms.iter();
        let record = RecordLine {
            namespace: record.key.namespace.clone(),
            collection: record.key.collection.as_str().to_owned(),
            id: record.key.id.as_str().to_owned(),
            revision: record.revision,
            write_id: record.write_id.0,
            body: record.body.as_ref().map(BodyText::of),
            terms: pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            created_at: record.created_at.as_micros(),
            updated_at: record.updated_at.as_micros(),
        };
        let version = |version: &RecordVersion| VersionLine {
            revision: version.revision,
            body: BodyText::of(&version.body),
            digest: version.digest,
            actor: version.actor.as_deref().map(str::to_owned),
            caused_by: version.caused_by,
            created_at: version.created_at.as_micros(),
        };
        Self { format: FORMAT, record, versions: versions.iter().map(version).collect() }
    }

    /// Whether a line is an exported record and not an exported run.
    pub fn is_record(line: &str) -> bool {
        #[derive(Deserialize)]
        struct Member {
            record: Option<serde::de::IgnoredAny>,
        }
        serde_json::from_str(line).is_ok_and(|member: Member| member.record.is_some())
    }

    /// Reads one line.
    ///
    /// ```
    /// use windlass::admin::transfer::RecordExport;
    ///
    /// assert!(RecordExport::parse("no record").is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidExport`] if the line is no exported record, or has a format that this build does
    /// not know.
    pub fn parse(line: &str) -> Result<Self, Error> {
        let export: Self = serde_json::from_str(line).map_err(|source| {
            invalid("the line is not an exported record".into()).with_source(source)
        })?;
        if export.format != FORMAT {
            let format = export.format;
            return Err(invalid(format!(
                "the line has format {format}; this build reads {FORMAT}"
            )));
        }
        Ok(export)
    }

    /// Writes one line, without its end.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::Internal`] if the record cannot be written as JSON.
    pub fn to_line(&self) -> Result<String, Error> {
        serde_json::to_string(self).map_err(|source| {
            Error::new(ErrorKind::Internal, ErrorCode::Internal, "an export cannot be written")
                .with_source(source)
        })
    }

    /// The rows, if they fit together.
    pub(super) fn parts(self) -> Result<RecordParts, Error> {
        let line = self.record;
        let key = RecordKey {
            namespace: line.namespace,
            collection: Collection::new(&line.collection)?,
            id: RecordId::new(&line.id)?,
        };
        let mut terms = Terms::default();
        for (name, value) in &line.terms {
            terms.add(name, value)?;
        }
        let record = Record {
            key: key.clone(),
            revision: line.revision,
            write_id: WriteId(line.write_id),
            body: line.body.map(BodyText::back).transpose()?,
            terms,
            created_at: Timestamp::from_micros(line.created_at),
            updated_at: Timestamp::from_micros(line.updated_at),
        };
        let version = |version: VersionLine| {
            Ok::<_, Error>(RecordVersion {
                key: key.clone(),
                revision: version.revision,
                body: version.body.back()?,
                digest: version.digest,
                actor: version.actor.map(Into::into),
                caused_by: version.caused_by,
                created_at: Timestamp::from_micros(version.created_at),
            })
        };
        let versions: Result<Vec<_>, Error> = self.versions.into_iter().map(version).collect();
        let parts = RecordParts { record, versions: versions? };
        match parts.flaw() {
            None => Ok(parts),
            Some(flaw) => Err(invalid(format!("record {key} is not what was exported: {flaw}"))),
        }
    }
}

impl RecordParts {
    fn flaw(&self) -> Option<&'static str> {
        let Self { record, versions } = self;
        let removed = record.body.is_none();
        let rises = versions.is_sorted_by(|one, next| one.revision < next.revision);
        let last = versions.last();
        if record.revision == 0 || (removed && record.revision < 2) {
            return Some("it has no such revision");
        }
        if !rises || versions.first().is_some_and(|version| version.revision == 0) {
            return Some("its versions are not in order");
        }
        if last.is_some_and(|last| last.revision + u64::from(removed) > record.revision) {
            return Some("it has a version that is newer than the record");
        }
        if versions.iter().any(|version| version.digest != version.body.digest()) {
            return Some("the digest of a version is not the digest of its body");
        }
        let newest = last.filter(|last| last.revision == record.revision);
        if newest.is_some_and(|newest| Some(&newest.body) != record.body.as_ref()) {
            return Some("its body is not that of its newest version");
        }
        None
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, ErrorCode::InvalidExport, message)
}
