//! Records: read, write, remove, list by term, and kept versions.

use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;
use windlass::ErrorCode;
use windlass::kernel::{
    Body, CausalRef, Collection, CommitError, Conflict, Encoding, Expect, Query, Record,
    RecordFound, RecordId, RecordKey, RecordVersion, Terms, bodies,
};
use windlass_engine::{NewDocument, refusal};

use super::RECORDS;
use crate::app::App;
use crate::auth::{Scope, Target};
use crate::cursor::{self, decode_as};
use crate::depth::is_deeper_than;
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Params, bad_path, json_bytes};
use crate::json::Json;
use crate::options::Options;
use crate::paging::{PAGE_BYTES_MAX, sized};
use crate::precondition::{Precondition, etag, is_known, parse_revision};
use crate::table::Routes;
use crate::view::{Raw, Time, raw};

/// The number of rows that are read from the store at once: each may have a body of 16 MiB.
const STORE_ROWS: usize = 16;

pub(crate) fn routes(routes: Routes, _: &Options) -> Routes {
    routes
        .add(RECORDS, routes!(collections))
        .add(RECORDS, routes!(list))
        .add(RECORDS, routes!(get))
        .add(RECORDS, routes!(put))
        .add(RECORDS, routes!(delete))
        .add(RECORDS, routes!(versions))
        .add(RECORDS, routes!(version))
}

/// The action of a request, for the hook of an embedding program.
pub(crate) fn action(method: &Method, id: Option<&str>) -> &'static str {
    match (method, id) {
        (&Method::PUT, _) => "put",
        (&Method::DELETE, _) => "delete",
        (_, Some(_)) => "get",
        (_, None) => "list",
    }
}

/// The record in the path.
pub(crate) struct AtRecord {
    collection: Collection,
    id: RecordId,
}

impl AtRecord {
    fn new(app: &App, collection: &str, id: &str) -> Result<Self, ApiError> {
        let limits = &app.engine.options().limits;
        Ok(Self {
            collection: Collection::with_limits(collection, limits)?,
            id: RecordId::with_limits(id, limits)?,
        })
    }

    fn key(&self, call: &Call) -> RecordKey {
        let (namespace, collection) = (call.engine.namespace().clone(), self.collection.clone());
        RecordKey { namespace, collection, id: self.id.clone() }
    }
}

impl FromRequestParts<App> for AtRecord {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let Path((collection, id)) = Path::<(String, String)>::from_request_parts(parts, app)
            .await
            .map_err(|error| bad_path(&error))?;
        Self::new(app, &collection, &id)
    }
}

/// The kept version in the path.
pub(crate) struct AtVersion {
    record: AtRecord,
    revision: u64,
}

impl FromRequestParts<App> for AtVersion {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let Path((collection, id, revision)) =
            Path::<(String, String, String)>::from_request_parts(parts, app)
                .await
                .map_err(|error| bad_path(&error))?;
        let record = AtRecord::new(app, &collection, &id)?;
        Ok(Self { record, revision: parse_revision(&revision)? })
    }
}

/// The collection in the path.
pub(crate) struct InCollection(Collection);

impl FromRequestParts<App> for InCollection {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let Path(name) = Path::<String>::from_request_parts(parts, app)
            .await
            .map_err(|error| bad_path(&error))?;
        Ok(Self(Collection::with_limits(name, &app.engine.options().limits)?))
    }
}

/// The body of a write: any JSON, stored as the bytes that came in.
pub(crate) struct JsonDocument(Body);

impl FromRequest<App> for JsonDocument {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let limits = &app.engine.options().limits;
        let bytes = json_bytes(request, limits.record_bytes_max).await?;
        let max = limits.json_depth_max;
        if is_deeper_than(&bytes, max) {
            let message = format!("the document is nested deeper than {max}");
            return Err(ApiError::invalid(ErrorCode::InvalidDepth, message));
        }
        let document: &RawValue = serde_json::from_slice(&bytes).map_err(|error| {
            let message = format!("the document is not JSON: {error}");
            ApiError::invalid(ErrorCode::InvalidBody, message)
        })?;
        Ok(Self(Body::json(document.get().to_owned())))
    }
}

/// The form of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum View {
    /// The document alone, as it was written.
    #[default]
    Document,
    /// The document as `value`, with revision, terms and times.
    Full,
}

/// The form of a response.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct GetParams {
    /// `document` (the default): the body is the document. `full`: the body also has revision, terms and times.
    #[param(inline)]
    #[serde(default)]
    view: View,
}

/// The terms of a write.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PutParams {
    /// A term by which listings find the record, as `name:value`. Can be repeated, at most 32 times. The terms
    /// of a write replace all earlier ones.
    #[serde(default)]
    term: Vec<String>,
    /// Whether to keep this revision as a version that never changes. Default `false`.
    #[serde(default)]
    keep: bool,
}

/// The filter and the page of a listing.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// Only records with this term, as `name:value`.
    term: Option<String>,
    /// The number of rows: 1 to 100. Default 25.
    limit: Option<u32>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// The page of a listing.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageParams {
    /// The number of rows: 1 to 100. Default 25.
    limit: Option<u32>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// A term of a record.
#[derive(Serialize, ToSchema)]
pub(crate) struct TermView {
    /// The name.
    pub name: String,
    /// The value.
    pub value: String,
}

/// A record.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RecordView {
    /// The id.
    pub id: String,
    /// The revision. It increases with each write and removal.
    pub revision: u64,
    /// The document.
    #[schema(value_type = Value)]
    pub value: Raw,
    /// The terms by which listings find it.
    pub terms: Vec<TermView>,
    /// When it was written first.
    pub created_at: Time,
    /// When it was written last.
    pub updated_at: Time,
}

impl RecordView {
    fn of(record: &Record, body: &Body) -> Self {
        let term =
            |(name, value): (&str, &str)| TermView { name: name.into(), value: value.into() };
        Self {
            id: record.key.id.to_string(),
            revision: record.revision,
            value: raw(body),
            terms: record.terms.iter().map(term).collect(),
            created_at: Time(record.created_at),
            updated_at: Time(record.updated_at),
        }
    }
}

/// A page of records.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RecordList {
    /// The records, by id.
    pub records: Vec<RecordView>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Same as `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there is a next page.
    pub has_next_page: bool,
}

/// The result of a write or removal.
#[derive(Serialize, ToSchema)]
pub(crate) struct RecordWritten {
    /// The collection.
    pub collection: String,
    /// The id.
    pub id: String,
    /// The new revision.
    pub revision: u64,
}

/// A kept version of a record.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VersionView {
    /// The revision that the record had.
    pub revision: u64,
    /// The document. Lists leave it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    pub value: Option<Raw>,
    /// The SHA-256 digest of the document's bytes.
    pub digest: String,
    /// The size of the document in bytes.
    pub bytes: usize,
    /// The kind of the writer, and a digest of the writer's id.
    #[schema(value_type = Option<Value>)]
    pub actor: Option<Value>,
    /// The event or run that caused the write.
    #[schema(value_type = Option<Value>)]
    pub caused_by: Option<CausalRef>,
    /// When it was written.
    pub created_at: Time,
}

impl VersionView {
    fn of(version: &RecordVersion, view: View) -> Self {
        let actor = version.actor.as_deref();
        Self {
            revision: version.revision,
            value: (view == View::Full).then(|| raw(&version.body)),
            digest: version.digest.to_string(),
            bytes: version.body.len(),
            actor: actor.and_then(|actor| serde_json::from_str(actor).ok()),
            caused_by: version.caused_by,
            created_at: Time(version.created_at),
        }
    }
}

/// A page of kept versions.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VersionList {
    /// The versions, newest first.
    pub versions: Vec<VersionView>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Same as `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there is a next page.
    pub has_next_page: bool,
}

/// Collections of the engine have routes of their own, with the scopes and the rules of their owner. A raw read passes
/// these rules by, so it needs `admin`.
fn check_readable(call: &Call, collection: &Collection) -> Result<(), ApiError> {
    match collection.is_reserved() {
        true => call.caller.must(Scope::Admin),
        false => Ok(()),
    }
}

/// Parses `name:value`. The name ends at the first colon.
pub(crate) fn parse_term(text: &str) -> Result<(&str, &str), ApiError> {
    text.split_once(':').ok_or_else(|| {
        let shown: String = text.chars().take(80).collect();
        let message = format!("{shown:?} is not a term; use `term=name:value`");
        ApiError::invalid(ErrorCode::InvalidTerm, message)
    })
}

fn not_found(at: &AtRecord, found: RecordFound) -> ApiError {
    let message = match found {
        RecordFound::Removed(revision) => {
            format!("record {}/{} was removed at revision {revision}", at.collection, at.id)
        }
        _ => format!("there is no record {}/{}", at.collection, at.id),
    };
    ApiError::not_found(ErrorCode::RecordNotFound, message)
}

async fn find(call: &Call, at: &AtRecord) -> Result<Option<Record>, ApiError> {
    check_readable(call, &at.collection)?;
    let found = call.engine.store().records(vec![at.key(call)]).await?;
    Ok(found.into_iter().next().flatten())
}

/// The response with a document as its body.
fn document(body: &Body) -> Response {
    let kind = match body.encoding {
        Encoding::Json => "application/json",
        Encoding::Bytes => "application/octet-stream",
    };
    ([(header::CONTENT_TYPE, HeaderValue::from_static(kind))], body.bytes.clone()).into_response()
}

fn tagged(mut response: Response, revision: u64) -> Response {
    response.headers_mut().insert(header::ETAG, etag(revision));
    response
}

/// Reads a record. `ETag` is its revision. With `If-None-Match`, the response is 304 if the client has read
/// this revision.
#[utoipa::path(get, path = "/records/{collection}/{id}", tag = "records",
    operation_id = "getRecord",
    params(("collection" = String, Path, description = "The collection"),
        ("id" = String, Path, description = "The id, percent-encoded"), GetParams,
        ("If-None-Match" = Option<String>, Header, description = "The `ETag` of a revision that the client has")),
    responses((status = 200, body = Value, description = "The document, or the record if `view=full`"),
        (status = 304, description = "the client has this revision"),
        (status = "default", body = Failure)))]
pub(crate) async fn get(
    call: Call,
    at: AtRecord,
    Params(params): Params<GetParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let record = find(&call, &at).await?.ok_or_else(|| not_found(&at, RecordFound::Absent))?;
    let Some(body) = &record.body else { return Err(not_found(&at, record.found())) };
    if is_known(&headers, record.revision) {
        return Ok(tagged(StatusCode::NOT_MODIFIED.into_response(), record.revision));
    }
    let response = match params.view {
        View::Document => document(body),
        View::Full => Json(RecordView::of(&record, body)).into_response(),
    };
    Ok(tagged(response, record.revision))
}

/// Writes a record. The body is the document: any JSON. A precondition is required.
#[utoipa::path(put, path = "/records/{collection}/{id}", tag = "records",
    operation_id = "putRecord",
    params(("collection" = String, Path, description = "The collection"),
        ("id" = String, Path, description = "The id, percent-encoded"), PutParams,
        ("If-Match" = Option<String>, Header, description = "The `ETag` of the revision to replace, or `*` for any revision"),
        ("If-None-Match" = Option<String>, Header, description = "`*`: the record must not exist")),
    request_body(content = Value, content_type = "application/json"),
    responses((status = 200, body = RecordWritten), (status = 201, body = RecordWritten),
        (status = "default", body = Failure)))]
pub(crate) async fn put(
    call: Call,
    at: AtRecord,
    Precondition(expect): Precondition,
    Params(params): Params<PutParams>,
    JsonDocument(body): JsonDocument,
) -> Result<Response, ApiError> {
    let mut terms = Terms::default();
    for term in &params.term {
        let (name, value) = parse_term(term)?;
        terms.add(name, value)?;
    }
    let creators = call.caller.key.iter().flat_map(|key| &key.creators).map(String::as_str);
    let actor = call.caller.actor.clone().map(|actor| actor.with_key_creators(creators));
    let document = NewDocument { body, terms, keep: params.keep, actor };
    let records = call.engine.records::<Value>(at.collection.as_str());
    let written = records.put_expecting(&at.id, expect, document).await;
    let revision = written.map_err(|error| refused(error, None))?;
    let status = if expect == Expect::Absent { StatusCode::CREATED } else { StatusCode::OK };
    Ok(tagged((status, Json(written_view(&at, revision))).into_response(), revision))
}

/// Removes a record. `If-Match` is required. Kept versions stay. The removal is a revision of its own.
#[utoipa::path(delete, path = "/records/{collection}/{id}", tag = "records",
    operation_id = "deleteRecord",
    params(("collection" = String, Path, description = "The collection"),
        ("id" = String, Path, description = "The id, percent-encoded"),
        ("If-Match" = Option<String>, Header, description = "The `ETag` of the revision to remove, or `*` for any revision")),
    responses((status = 200, body = RecordWritten), (status = "default", body = Failure)))]
pub(crate) async fn delete(
    call: Call,
    at: AtRecord,
    Precondition(expect): Precondition,
) -> ApiResult<RecordWritten> {
    if expect == Expect::Absent {
        let message =
            "`If-None-Match` cannot hold for a removal; send `If-Match` with the `ETag`, or `*`";
        return Err(ApiError::invalid(ErrorCode::InvalidPrecondition, message));
    }
    let records = call.engine.records::<Value>(at.collection.as_str());
    let removed = records.remove_expecting(&at.id, expect).await;
    let revision = removed.map_err(|error| refused(error, Some(&at)))?;
    Ok(Json(written_view(&at, revision)))
}

fn written_view(at: &AtRecord, revision: u64) -> RecordWritten {
    RecordWritten { collection: at.collection.to_string(), id: at.id.to_string(), revision }
}

/// The response to a refused write. A removal of a record that does not exist is 404.
fn refused(error: CommitError, removed: Option<&AtRecord>) -> ApiError {
    let CommitError::Conflict(Conflict::Record { collection, id, expected, found }) = &error else {
        return refusal(&error).into();
    };
    if let (Some(at), RecordFound::Absent | RecordFound::Removed(_)) = (removed, found) {
        return not_found(at, *found);
    }
    let expected = match expected {
        Expect::Absent => json!({ "state": "absent" }),
        Expect::Present => json!({ "state": "present" }),
        Expect::At(revision) => json!({ "state": "present", "revision": revision }),
    };
    let found = match found {
        RecordFound::Absent => json!({ "state": "absent" }),
        RecordFound::At(revision) => json!({ "state": "present", "revision": revision }),
        RecordFound::Removed(revision) => json!({ "state": "removed", "revision": revision }),
    };
    let details = json!({ "collection": collection.as_str(), "id": id.as_str(), "expected": expected, "found": found });
    ApiError::from(refusal(&error)).with_details(details)
}

/// A page of collections.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CollectionList {
    /// The names of the collections, sorted.
    pub collections: Vec<String>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Same as `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there is a next page.
    pub has_next_page: bool,
}

/// Lists the collections by name. Those of the engine are listed for `admin` only.
#[utoipa::path(get, path = "/records", tag = "records", operation_id = "listCollections",
    params(PageParams),
    responses((status = 200, body = CollectionList), (status = "default", body = Failure)))]
pub(crate) async fn collections(
    call: Call,
    Params(params): Params<PageParams>,
) -> ApiResult<CollectionList> {
    let size = sized("limit", params.limit)? as usize;
    let cursor = params.cursor.as_deref();
    let mut after = decode_as("collections", cursor, |name| Collection::new(name).ok())?;
    let mut names: Vec<Collection> = Vec::new();
    loop {
        let namespace = call.engine.namespace().clone();
        let query = Query::Collections { namespace, after, limit: size as u32 + 1 };
        let page = call.engine.store().list(query).await?.collections()?;
        let is_last = page.len() <= size;
        after = page.last().cloned();
        for name in page {
            let target = Target {
                collection: Some(name.as_str()),
                action: Some("list"),
                ..Target::default()
            };
            let is_readable = check_readable(&call, &name).is_ok();
            if is_readable && may_list(&call, &target).await? {
                names.push(name);
            }
        }
        if is_last || names.len() > size {
            break;
        }
    }
    let has_next_page = names.len() > size;
    names.truncate(size);
    let last = names.last().filter(|_| has_next_page);
    let next = last.map(|name| cursor::encode("collections", name.as_str()));
    let collections = names.iter().map(ToString::to_string).collect();
    Ok(Json(CollectionList { collections, has_next_page, next_cursor: next.clone(), cursor: next }))
}

/// Lists the records of a collection by id, all or those with a term.
#[utoipa::path(get, path = "/records/{collection}", tag = "records", operation_id = "listRecords",
    params(("collection" = String, Path, description = "The collection"), ListParams),
    responses((status = 200, body = RecordList), (status = "default", body = Failure)))]
pub(crate) async fn list(
    call: Call,
    InCollection(collection): InCollection,
    Params(params): Params<ListParams>,
) -> ApiResult<RecordList> {
    check_readable(&call, &collection)?;
    let size = sized("limit", params.limit)? as usize;
    let term = params.term.as_deref().map(parse_term).transpose()?;
    if let Some((name, value)) = term {
        // The rules of a term: a store cannot query every text.
        Terms::default().add(name, value)?;
    }
    let listing = format!("records-{}", cursor::digest_of(&(&collection, term)));
    let mut after = decode_as(&listing, params.cursor.as_deref(), |id| RecordId::new(id).ok())?;
    let (mut records, mut read, mut bytes) = (Vec::new(), 0, 0);
    let next = loop {
        // One more than the page, to know whether there is a next one.
        let limit = (size + 1 - read).min(STORE_ROWS);
        let query = Query::Records {
            namespace: call.engine.namespace().clone(),
            collection: collection.clone(),
            term: term.map(|(name, value)| (name.into(), value.into())),
            after: after.clone(),
            limit: limit as u32,
        };
        let rows = call.engine.store().list(query).await?.records()?;
        let is_last = rows.len() < limit;
        for record in rows {
            if read == size || (read > 0 && bytes >= PAGE_BYTES_MAX) {
                read = size + 1;
                break;
            }
            read += 1;
            after = Some(record.key.id.clone());
            let Some(body) = &record.body else { continue };
            let target = Target {
                collection: Some(record.key.collection.as_str()),
                id: Some(record.key.id.as_str()),
                action: Some("list"),
                ..Target::default()
            };
            if may_list(&call, &target).await? {
                bytes += body.len();
                records.push(RecordView::of(&record, body));
            }
        }
        if read > size {
            break after.map(|id| cursor::encode(&listing, id.as_str()));
        }
        if is_last {
            break None;
        }
    };
    let has_next_page = next.is_some();
    Ok(Json(RecordList { records, has_next_page, next_cursor: next.clone(), cursor: next }))
}

/// Whether the hook of the embedding program allows to list a record or a collection.
async fn may_list(call: &Call, target: &Target<'_>) -> Result<bool, ApiError> {
    match call.app.guard.ask(&call.caller, Scope::Records, target).await {
        Ok(()) => Ok(true),
        Err(error) if error.status().is_client_error() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Lists the kept versions of a record, newest first, without their documents.
#[utoipa::path(get, path = "/records/{collection}/{id}/versions", tag = "records",
    operation_id = "listRecordVersions",
    params(("collection" = String, Path, description = "The collection"),
        ("id" = String, Path, description = "The id, percent-encoded"), PageParams),
    responses((status = 200, body = VersionList), (status = "default", body = Failure)))]
pub(crate) async fn versions(
    call: Call,
    at: AtRecord,
    Params(params): Params<PageParams>,
) -> ApiResult<VersionList> {
    let size = sized("limit", params.limit)? as usize;
    let listing = format!("versions-{}", cursor::digest_of(&(&at.collection, &at.id)));
    let mut before = decode_as(&listing, params.cursor.as_deref(), |text| text.parse().ok())?;
    if find(&call, &at).await?.is_none() {
        return Err(not_found(&at, RecordFound::Absent));
    }
    let mut versions: Vec<VersionView> = Vec::new();
    let next = loop {
        let limit = (size + 1 - versions.len()).min(STORE_ROWS);
        let query = Query::RecordVersions { key: at.key(&call), before, limit: limit as u32 };
        let rows = call.engine.store().list(query).await?.record_versions()?;
        let is_last = rows.len() < limit;
        versions.extend(rows.iter().map(|version| VersionView::of(version, View::Document)));
        before = versions.last().map(|version| version.revision);
        if versions.len() > size {
            versions.truncate(size);
            let last = versions.last().map(|version| version.revision.to_string());
            break last.map(|revision| cursor::encode(&listing, &revision));
        }
        if is_last {
            break None;
        }
    };
    let has_next_page = next.is_some();
    Ok(Json(VersionList { versions, has_next_page, next_cursor: next.clone(), cursor: next }))
}

/// Reads a kept version of a record. It never changes.
#[utoipa::path(get, path = "/records/{collection}/{id}/versions/{revision}", tag = "records",
    operation_id = "getRecordVersion",
    params(("collection" = String, Path, description = "The collection"),
        ("id" = String, Path, description = "The id, percent-encoded"),
        ("revision" = u64, Path, description = "The revision"), GetParams),
    responses((status = 200, body = Value, description = "The document, or the version if `view=full`"),
        (status = "default", body = Failure)))]
pub(crate) async fn version(
    call: Call,
    AtVersion { record: at, revision }: AtVersion,
    Params(params): Params<GetParams>,
) -> Result<Response, ApiError> {
    check_readable(&call, &at.collection)?;
    let before = Some(revision + 1);
    let query = Query::RecordVersions { key: at.key(&call), before, limit: 1 };
    let found = call.engine.store().list(query).await?.record_versions()?;
    let found = found.into_iter().find(|version| version.revision == revision);
    let mut version = found.ok_or_else(|| {
        let (collection, id) = (&at.collection, &at.id);
        let message = format!("revision {revision} of record {collection}/{id} is not kept");
        ApiError::not_found(ErrorCode::RecordVersionNotFound, message)
    })?;
    let places = bodies::of_versions(std::slice::from_mut(&mut version));
    bodies::fill(&**call.engine.store(), places).await?;
    let response = match params.view {
        View::Document => document(&version.body),
        View::Full => Json(VersionView::of(&version, View::Full)).into_response(),
    };
    Ok(tagged(response, revision))
}
