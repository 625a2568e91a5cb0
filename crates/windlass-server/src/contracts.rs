//! Routes of the model `contracts`: types, definitions, documents and approvals.
//!
//! A program that serves documents adds the set to [`crate::Options::routes`]. Every write needs a caller with a
//! subject, because the audit note of a document names a person.

mod docs;
mod expressions;
mod listings;
mod visible;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, patch, post, put};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use windlass::ErrorCode;
use windlass::contracts::language::approvers::Directory;
use windlass::contracts::language::diagnostic::Diagnostic;
use windlass::contracts::language::diff::{diff, mermaid};
use windlass::contracts::language::simulate::Scenario;
use windlass::contracts::language::tokens::Verdict;
use windlass::contracts::language::{compile, envelope, source, templates};
use windlass::contracts::{Chain, Contracts, Document, Progress, Review, problems_of};
use windlass::kernel::{Expect, Sha256Digest, Subject};

use crate::auth::{Caller, Scope};
use crate::error::ApiError;
use crate::extract::{CallerEngine, RowHooks};
use crate::precondition::{etag, expectation};
use crate::table::{Access, RouteSet};

type Answer = Result<Response, ApiError>;

const PAGE_DEFAULT: u32 = 25;
const PAGE_MAX: u32 = 100;

/// The routes of contracts. Reads and writes of documents need the scope `records`, decisions `decide`, definitions
/// `define`; only an operator publishes types. Every person reads and dismisses their own notifications.
pub fn routes(contracts: &Contracts) -> RouteSet {
    let (records, decide) = (Access::Scope(Scope::Records), Access::Scope(Scope::Decide));
    let (define, read) = (Access::Scope(Scope::Define), Access::Scope(Scope::Read));
    let (admin, manage) = (Access::Scope(Scope::Admin), Access::Scope(Scope::Manage));
    let with = |handler: MethodRouter<Contracts>| handler.with_state(contracts.clone());
    let (g, p) = (Method::GET, Method::POST);
    let document = "/documents/{type}/{document}";
    let at = |rest: &str| format!("{document}{rest}");
    RouteSet::new("contracts")
        .route(read, g.clone(), "/contracts/templates", with(get(list_templates)))
        .route(read, g.clone(), "/contracts/types", with(get(list_types)))
        .route(Access::Operator, p.clone(), "/contracts/types", with(post(publish_type)))
        .route(read, g.clone(), "/contracts/types/{type}", with(get(read_type)))
        .route(
            read,
            g.clone(),
            "/contracts/types/{type}/versions",
            with(get(listings::type_versions)),
        )
        .route(
            read,
            g.clone(),
            "/contracts/types/{type}/versions/{version}",
            with(get(listings::type_version)),
        )
        .route(
            Access::Operator,
            p.clone(),
            "/contracts/types/{type}/archive",
            with(post(listings::archive_type)),
        )
        .route(define, g.clone(), "/contracts/directory", with(get(directory)))
        .route(admin, Method::PUT, "/contracts/directory", with(put(put_directory)))
        .route(define, g.clone(), "/contracts/settings", with(get(settings)))
        .route(admin, Method::PUT, "/contracts/settings", with(put(put_settings)))
        .route(define, g.clone(), "/contracts/chains", with(get(listings::chains)))
        .route(define, g.clone(), "/contracts/chains/{chain}", with(get(chain)))
        .route(admin, Method::PUT, "/contracts/chains/{chain}", with(put(put_chain)))
        .route(read, g.clone(), "/contracts/health", with(get(health)))
        .route(read, g.clone(), "/contracts/stuck", with(get(stuck)))
        .route(define, g.clone(), "/contracts/{type}/definition", with(get(definition)))
        .route(define, Method::PUT, "/contracts/{type}/draft", with(put(put_draft)))
        .route(define, p.clone(), "/contracts/{type}/check", with(post(check)))
        .route(define, p.clone(), "/contracts/{type}/simulate", with(post(simulate)))
        .route(define, p.clone(), "/contracts/{type}/publish", with(post(publish)))
        .route(define, p.clone(), "/contracts/{type}/archive", with(post(archive)))
        .route(define, p.clone(), "/contracts/{type}/rebase", with(post(rebase)))
        .route(define, p.clone(), "/contracts/{type}/recompile", with(post(recompile)))
        .route(define, p.clone(), "/contracts/{type}/rollback/{version}", with(post(roll_back)))
        .route(
            define,
            g.clone(),
            "/contracts/{type}/versions",
            with(get(listings::definition_versions)),
        )
        .route(define, g.clone(), "/contracts/{type}/versions/{version}", with(get(version)))
        .route(define, g.clone(), "/contracts/{type}/effective", with(get(effective)))
        .route(define, g.clone(), "/contracts/{type}/diff/{format}", with(get(effective_diff)))
        .route(define, p.clone(), "/expressions/evaluate", with(post(expressions::evaluate)))
        .route(records, p.clone(), "/documents/{type}", with(post(create)))
        .route(records, g.clone(), "/documents/{type}", with(get(list)))
        .route(records, g.clone(), document, with(get(read_document)))
        .route(records, Method::PATCH, document, with(patch(edit)))
        .route(records, p.clone(), &at("/actions/{action}"), with(post(act)))
        .route(records, p.clone(), &at("/amend"), with(post(amend)))
        .route(records, g.clone(), &at("/versions/{version}"), with(get(document_version)))
        .route(records, g.clone(), &at("/diff/{from}/{to}"), with(get(document_diff)))
        .route(records, g.clone(), &at("/position"), with(get(position)))
        .route(records, g.clone(), &at("/workflow"), with(get(document_workflow)))
        .route(records, g.clone(), &at("/approvals"), with(get(approvals_of)))
        .route(records, p.clone(), &at("/rebuild"), with(post(rebuild)))
        .route(manage, p.clone(), &at("/advance"), with(post(advance)))
        .route(manage, p.clone(), &at("/fail"), with(post(fail)))
        .route(Access::Credential, g.clone(), "/notifications", with(get(listings::notifications)))
        .route(
            Access::Credential,
            Method::DELETE,
            "/notifications/{notification}",
            with(delete(listings::dismiss)),
        )
        .route(decide, g.clone(), "/approvals", with(get(inbox)))
        .route(decide, g, "/approvals/{approval}", with(get(approval)))
        .route(decide, p, "/approvals/{approval}/{decision}", with(post(decide_approval)))
        .described(docs::of)
}

fn ok<T: serde::Serialize>(value: &T) -> Answer {
    Ok(axum::Json(json!(value)).into_response())
}

fn problem(error: windlass::Error) -> ApiError {
    let details = problems_of(&error).map(|problems| json!(problems));
    let api = ApiError::from(error);
    details.into_iter().fold(api, ApiError::with_details)
}

/// Reads a body: no number loses digits, and no key comes twice.
fn body<T: DeserializeOwned>(bytes: &Bytes) -> Result<T, ApiError> {
    // The server has a limit of its own for all bodies.
    body_with(bytes, |text| compile::read_strictly(text, "request body", usize::MAX))
}

/// Reads a body of the language with its limit, so that the problem names the place in it.
fn body_with<T>(
    bytes: &Bytes,
    read: impl FnOnce(&str) -> Result<T, Diagnostic>,
) -> Result<T, ApiError> {
    let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { bytes };
    let text = std::str::from_utf8(bytes).map_err(|error| {
        ApiError::invalid(ErrorCode::InvalidBody, format!("the body is not UTF-8: {error}"))
    })?;
    read(text).map_err(|problem| {
        let message = format!("the body cannot be read: {problem}; {}", problem.help);
        let error = match problem.code == source::JSON_TOO_LARGE {
            true => ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, ErrorCode::BodyTooLarge, message),
            false => ApiError::invalid(ErrorCode::InvalidBody, message),
        };
        error.with_details(json!({"problems": [problem]}))
    })
}

/// The contracts in the namespace of the caller.
fn of(contracts: &Contracts, CallerEngine(engine): &CallerEngine) -> Contracts {
    contracts.in_namespace(engine.namespace().clone())
}

/// As [`of`], for a write or a decision of a person: with the people who created the API key of the caller.
fn by_person<'a>(
    contracts: &Contracts,
    engine: &CallerEngine,
    caller: &'a Caller,
) -> Result<(Contracts, &'a Subject), ApiError> {
    let contracts = of(contracts, engine);
    let creators = caller.key.iter().flat_map(|key| &key.creators).map(String::as_str);
    Ok((contracts.with_key_creators(creators), subject(caller)?))
}

fn subject(caller: &Caller) -> Result<&Subject, ApiError> {
    caller.subject.as_ref().ok_or_else(|| {
        ApiError::forbidden("the credential names no person; use one that has a subject")
    })
}

fn document_answer(status: StatusCode, document: &Document) -> Answer {
    let tag = etag(document.row.version);
    Ok((status, [(header::ETAG, tag)], axum::Json(json!(document))).into_response())
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Page {
    limit: Option<u32>,
    after: Option<String>,
    state: Option<String>,
}

impl Page {
    fn of(query: Option<&str>) -> Result<Self, ApiError> {
        let invalid = |message: String| ApiError::invalid(ErrorCode::InvalidQuery, message);
        let page: Self = serde_html_form::from_str(query.unwrap_or_default())
            .map_err(|error| invalid(error.to_string()))?;
        match page.limit {
            Some(limit) if !(1..=PAGE_MAX).contains(&limit) => {
                Err(invalid(format!("`limit` is {limit}; use 1 to {PAGE_MAX}")))
            }
            _ => Ok(page),
        }
    }

    fn limit(&self) -> u32 {
        self.limit.unwrap_or(PAGE_DEFAULT)
    }
}

/// Why a person acts.
#[derive(Deserialize, Default, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DocumentReason)]
struct Reason {
    /// The reason, for the audit.
    reason: Option<String>,
}

type Who = Extension<Arc<Caller>>;
type Rows = Extension<RowHooks>;

async fn list_templates() -> Answer {
    ok(&templates::all())
}

async fn list_types(State(contracts): State<Contracts>) -> Answer {
    ok(&json!({"types": contracts.types().await?}))
}

async fn publish_type(State(contracts): State<Contracts>, who: Who, bytes: Bytes) -> Answer {
    let contract = body_with(&bytes, compile::read_contract)?;
    ok(&contracts.publish_type(&contract, subject(&who)?).await.map_err(problem)?)
}

async fn read_type(State(contracts): State<Contracts>, Path(name): Path<String>) -> Answer {
    ok(&contracts.contract(&name, None).await?)
}

async fn directory(State(contracts): State<Contracts>, engine: CallerEngine) -> Answer {
    ok(&of(&contracts, &engine).directory().await?)
}

async fn put_directory(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    bytes: Bytes,
) -> Answer {
    let directory: Directory = body(&bytes)?;
    of(&contracts, &engine).put_directory(&directory).await?;
    ok(&directory)
}

async fn settings(State(contracts): State<Contracts>, engine: CallerEngine) -> Answer {
    ok(&of(&contracts, &engine).settings().await?)
}

async fn put_settings(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    bytes: Bytes,
) -> Answer {
    let settings: serde_json::Map<String, Value> = body(&bytes)?;
    let settings = Value::Object(settings);
    of(&contracts, &engine).put_settings(&settings).await?;
    ok(&settings)
}

async fn chain(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    Path(name): Path<String>,
) -> Answer {
    ok(&of(&contracts, &engine).chain(&name).await?)
}

async fn put_chain(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    who: Who,
    Path(name): Path<String>,
    bytes: Bytes,
) -> Answer {
    let chain: Chain = body(&bytes)?;
    of(&contracts, &engine).put_chain(&name, &chain, subject(&who)?).await?;
    ok(&chain)
}

async fn health(State(contracts): State<Contracts>, engine: CallerEngine) -> Answer {
    ok(&of(&contracts, &engine).health().await?)
}

async fn stuck(State(contracts): State<Contracts>, engine: CallerEngine, rows: Rows) -> Answer {
    let stuck = visible::stuck(&rows, of(&contracts, &engine).stuck().await?).await?;
    ok(&json!({"stuck": stuck}))
}

async fn definition(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    Path(name): Path<String>,
) -> Answer {
    ok(&of(&contracts, &engine).definition(&name).await?)
}

async fn put_draft(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    Path(name): Path<String>,
    bytes: Bytes,
) -> Answer {
    let definition = body_with(&bytes, compile::read_definition)?;
    ok(&of(&contracts, &engine).put_draft(&name, &definition).await?)
}

async fn check(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    Path(name): Path<String>,
    bytes: Bytes,
) -> Answer {
    let definition = body_with(&bytes, compile::read_definition)?;
    let compiled = of(&contracts, &engine).check(&name, &definition).await.map_err(problem)?;
    ok(&json!({"hash": compiled.hash, "nodes": compiled.nodes.len()}))
}

async fn simulate(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    Path(name): Path<String>,
    bytes: Bytes,
) -> Answer {
    let scenario = body_with(&bytes, Scenario::read)?;
    ok(&of(&contracts, &engine).simulate(&name, &scenario).await.map_err(problem)?)
}

async fn publish(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    who: Who,
    Path(name): Path<String>,
) -> Answer {
    ok(&of(&contracts, &engine).publish(&name, subject(&who)?).await.map_err(problem)?)
}

async fn archive(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    Path(name): Path<String>,
) -> Answer {
    ok(&of(&contracts, &engine).archive(&name).await?)
}

async fn rebase(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    Path(name): Path<String>,
) -> Answer {
    let compiled = of(&contracts, &engine).rebase(&name).await.map_err(problem)?;
    ok(&json!({"hash": compiled.hash, "envelopeVersion": compiled.envelope_version}))
}

async fn recompile(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    who: Who,
    Path(name): Path<String>,
) -> Answer {
    let contracts = of(&contracts, &engine);
    ok(&contracts.recompile(&name, subject(&who)?).await.map_err(problem)?)
}

async fn roll_back(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    who: Who,
    Path((name, version)): Path<(String, u32)>,
) -> Answer {
    let contracts = of(&contracts, &engine);
    ok(&contracts.roll_back(&name, version, subject(&who)?).await.map_err(problem)?)
}

async fn version(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    Path((name, version)): Path<(String, u32)>,
) -> Answer {
    ok(&of(&contracts, &engine).definition_version(&name, version).await?)
}

async fn effective(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    Path(name): Path<String>,
) -> Answer {
    ok(&*of(&contracts, &engine).workflow(&name).await?)
}

async fn effective_diff(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    Path((name, format)): Path<(String, String)>,
) -> Answer {
    let contracts = of(&contracts, &engine);
    let compiled = contracts.workflow(&name).await?;
    let contract = contracts.contract(&name, Some(compiled.envelope_version)).await?;
    let envelope = envelope::generate(&contract).map_err(|problems| {
        let text = problems.first().map(ToString::to_string).unwrap_or_default();
        ApiError::invalid(ErrorCode::ContractInvalid, text)
    })?;
    let changes = diff(&envelope, &compiled);
    match format.as_str() {
        "json" => ok(&changes),
        "text" => Ok(changes.to_string().into_response()),
        "mermaid" => Ok(mermaid(&compiled).into_response()),
        other => {
            let message = format!("{other:?} is not a format; use json, text or mermaid");
            Err(ApiError::invalid(ErrorCode::InvalidQuery, message))
        }
    }
}

/// A document to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewDocument {
    /// The id, unique in the type.
    id: String,
    /// The content, which fits the schema of the type.
    content: Value,
}

async fn create(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    who: Who,
    rows: Rows,
    Path(name): Path<String>,
    bytes: Bytes,
) -> Answer {
    let NewDocument { id, content } = body(&bytes)?;
    visible::may_create(&rows, &name, &id).await?;
    let (contracts, by) = by_person(&contracts, &engine, &who)?;
    let made = contracts.create(&name, &id, &content, by).await?;
    document_answer(StatusCode::CREATED, &made)
}

async fn list(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    rows: Rows,
    Path(name): Path<String>,
    uri: axum::http::Uri,
) -> Answer {
    let page = Page::of(uri.query())?;
    let documents = visible::documents(&rows, &of(&contracts, &engine), &name, page).await?;
    ok(&json!({"documents": documents}))
}

async fn read_document(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    Path((name, id)): Path<(String, String)>,
) -> Answer {
    document_answer(StatusCode::OK, &of(&contracts, &engine).document(&name, &id).await?)
}

/// An edit of a document.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DocumentEdit)]
struct Edit {
    /// The whole new content.
    content: Value,
    /// The reason, for the audit.
    reason: Option<String>,
}

async fn edit(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    who: Who,
    Path((name, id)): Path<(String, String)>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let tag = headers.get(header::IF_MATCH).and_then(|value| value.to_str().ok());
    let Expect::At(version) = expectation(tag, None)? else {
        let message = "send `If-Match` with the `ETag` of the document, which is its version";
        return Err(ApiError::invalid(ErrorCode::InvalidQuery, message));
    };
    let Edit { content, reason } = body(&bytes)?;
    let (contracts, by) = by_person(&contracts, &engine, &who)?;
    let edited = contracts.edit(&name, &id, version, &content, by, reason.as_deref()).await?;
    document_answer(StatusCode::OK, &edited)
}

async fn act(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    who: Who,
    Path((name, id, action)): Path<(String, String, String)>,
    bytes: Bytes,
) -> Answer {
    let Reason { reason } = body(&bytes)?;
    let (contracts, by) = by_person(&contracts, &engine, &who)?;
    let called = contracts.act(&name, &id, &action, by, reason.as_deref()).await?;
    document_answer(StatusCode::ACCEPTED, &called)
}

/// An amendment of a document.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DocumentAmendment)]
struct Amend {
    /// The id of the new document.
    id: String,
}

async fn amend(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    who: Who,
    Path((name, id)): Path<(String, String)>,
    bytes: Bytes,
) -> Answer {
    let Amend { id: new_id } = body(&bytes)?;
    let (contracts, by) = by_person(&contracts, &engine, &who)?;
    let made = contracts.amend(&name, &id, &new_id, by).await?;
    document_answer(StatusCode::CREATED, &made)
}

async fn document_version(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    Path((name, id, version)): Path<(String, String, u64)>,
) -> Answer {
    ok(&of(&contracts, &engine).document_version(&name, &id, version).await?)
}

async fn document_diff(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    Path((name, id, from, to)): Path<(String, String, u64, u64)>,
) -> Answer {
    ok(&json!({"changes": of(&contracts, &engine).document_diff(&name, &id, from, to).await?}))
}

async fn position(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    Path((name, id)): Path<(String, String)>,
) -> Answer {
    ok(&of(&contracts, &engine).position(&name, &id).await?)
}

async fn document_workflow(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    Path((name, id)): Path<(String, String)>,
) -> Answer {
    ok(&*of(&contracts, &engine).document_workflow(&name, &id).await?)
}

async fn approvals_of(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    Path((name, id)): Path<(String, String)>,
    uri: axum::http::Uri,
) -> Answer {
    let page = Page::of(uri.query())?;
    let contracts = of(&contracts, &engine);
    let found = contracts.approvals_of(&name, &id, page.after.as_deref(), page.limit()).await?;
    ok(&json!({"approvals": found}))
}

async fn rebuild(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    Path((name, id)): Path<(String, String)>,
) -> Answer {
    ok(&of(&contracts, &engine).rebuild(&name, &id).await?)
}

async fn advance(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    Path((name, id)): Path<(String, String)>,
) -> Answer {
    ok(&of(&contracts, &engine).advance_again(&name, &id).await?)
}

async fn fail(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    who: Who,
    Path((name, id)): Path<(String, String)>,
    bytes: Bytes,
) -> Answer {
    let Reason { reason } = body(&bytes)?;
    let reason = reason.ok_or_else(|| {
        ApiError::invalid(ErrorCode::InvalidBody, "the body has no field \"reason\"")
    })?;
    let contracts = of(&contracts, &engine);
    ok(&contracts.force_fail(&name, &id, subject(&who)?, &reason).await?)
}

async fn inbox(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    who: Who,
    rows: Rows,
    uri: axum::http::Uri,
) -> Answer {
    let page = Page::of(uri.query())?;
    let found = visible::inbox(&rows, &of(&contracts, &engine), subject(&who)?, page).await?;
    ok(&json!({"approvals": found}))
}

/// A request with its content and the progress of its quorum.
#[derive(Serialize)]
struct Reviewed {
    #[serde(flatten)]
    review: Review,
    /// Absent if the request is not open.
    #[serde(skip_serializing_if = "Option::is_none")]
    quorum: Option<Progress>,
}

async fn approval(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    who: Who,
    Path(id): Path<String>,
) -> Answer {
    let contracts = of(&contracts, &engine);
    let review = contracts.review(&id, who.subject.as_ref()).await?;
    let quorum = contracts.progress(&review.approval).await?;
    ok(&Reviewed { review, quorum })
}

/// A decision on a request for approval.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ApprovalDecision)]
struct Decision {
    /// The digest of the content that the person has read. Needed to approve, reject or abstain.
    #[schema(value_type = Option<String>)]
    digest: Option<Sha256Digest>,
    /// Why.
    reason: Option<String>,
    /// The person who decides instead. Needed to delegate.
    to: Option<String>,
}

async fn decide_approval(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    who: Who,
    Path((id, decision)): Path<(String, String)>,
    bytes: Bytes,
) -> Answer {
    let Decision { digest, reason, to } = body(&bytes)?;
    let (contracts, by) = by_person(&contracts, &engine, &who)?;
    let missing = |field: &str| {
        ApiError::invalid(ErrorCode::InvalidBody, format!("the body has no field {field:?}"))
    };
    let verdict = match decision.as_str() {
        "approve" => Verdict::Approved,
        "reject" => Verdict::Rejected,
        "abstain" => Verdict::Abstained,
        "delegate" => {
            let to = to.ok_or_else(|| missing("to"))?;
            return ok(&contracts.delegate_approval(&id, &to, by).await?);
        }
        other => {
            let message =
                format!("{other:?} is no decision; use approve, reject, abstain or delegate");
            return Err(ApiError::not_found(ErrorCode::RouteNotFound, message));
        }
    };
    let digest = digest.ok_or_else(|| missing("digest"))?;
    ok(&contracts.decide_approval(&id, verdict, digest, by, reason.as_deref()).await?)
}
