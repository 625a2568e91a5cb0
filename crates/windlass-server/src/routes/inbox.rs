//! The inbox: requests to people, and what people do with them.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;
use windlass::ErrorCode;
use windlass::kernel::Subject;
use windlass::kernel::request::rules;
use windlass::requests::{
    About, Decider, Decision, InboxOrder, InboxQuery, NewDecision, RequestState, RequestStatus,
    Requests, Verdict,
};

use super::DECIDE;
use crate::auth::{Scope, Target};
use crate::cursor::{self, decode_as};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Incoming, MaybePayload, Named, Params, Payload};
use crate::json::Json;
use crate::options::Options;
use crate::paging::sized;
use crate::table::Routes;
use crate::view::{Time, parse_time};

pub(crate) fn routes(routes: Routes, _: &Options) -> Routes {
    routes
        .add(DECIDE, routes!(list))
        .add(DECIDE, routes!(get))
        .add(DECIDE, routes!(decide))
        .add(DECIDE, routes!(delegate))
        .add(DECIDE, routes!(comment))
        .add(DECIDE, routes!(withdraw))
}

/// The filter and the page of the inbox.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// Whose requests: `mine` (default), `role:<role>`, `person:<id>` or `all`. Requests of others need the
    /// scope `manage`.
    of: Option<String>,
    /// With `of=all`: `open` (default), `approved`, `rejected`, `expired`, `withdrawn` or `stale`.
    status: Option<String>,
    /// With `of=all`: the day on which open requests are due, such as `2026-11-18` (UTC).
    due: Option<String>,
    /// `opened` (default): the oldest first. `due`: those that are due next first.
    order: Option<String>,
    /// The number of rows: 1 to 100. Default 25.
    limit: Option<u32>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// A page of requests.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InboxList {
    /// The requests.
    pub requests: Vec<RequestView>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Same as `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there is a next page.
    pub has_next_page: bool,
}

/// A choice of a request.
#[derive(Serialize, ToSchema)]
pub(crate) struct ChoiceView {
    /// The name, which a decision states.
    pub name: String,
    /// `approve` or `reject`.
    pub verdict: String,
}

/// A decision.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DecisionView {
    /// The person.
    pub by: String,
    /// The person who delegated the decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_behalf_of: Option<String>,
    /// The choice.
    pub choice: String,
    /// `approve` or `reject`.
    pub verdict: String,
    /// The answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
    /// The comment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// The API key that the person used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// When.
    pub at: Time,
}

/// A comment.
#[derive(Serialize, ToSchema)]
pub(crate) struct CommentView {
    /// The person.
    pub by: String,
    /// The text.
    pub text: String,
    /// When.
    pub at: Time,
}

/// A delegation.
#[derive(Serialize, ToSchema)]
pub(crate) struct DelegationView {
    /// The person who is asked.
    pub from: String,
    /// The person who decides for them.
    pub to: String,
    /// When it ends.
    pub until: Time,
}

/// A request to people.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RequestView {
    /// The id.
    pub id: String,
    /// `open`, `approved`, `rejected`, `expired`, `withdrawn` or `stale`.
    pub status: String,
    /// One line.
    pub title: String,
    /// The question in full.
    pub text: String,
    /// The workflow that asks.
    pub workflow: String,
    /// The run that waits.
    pub instance_id: String,
    /// The step that waits.
    pub step: String,
    /// Those who are asked: people, or `role:<role>`.
    pub assignees: Vec<String>,
    /// The person on whose behalf the run asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requester: Option<String>,
    /// The choices.
    pub choices: Vec<ChoiceView>,
    /// The JSON schema of an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// What it is about: a record, or a snapshot, with its digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<Value>,
    /// How many approvals it needs.
    pub quorum: u32,
    /// How many it has.
    pub approvals: u32,
    /// How many rejections it has.
    pub rejections: u32,
    /// Labels.
    #[schema(value_type = Value)]
    pub labels: std::collections::BTreeMap<String, String>,
    /// When it was opened.
    pub opened_at: Time,
    /// When it is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Time>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<Time>,
    /// The person who ended it: by the last decision, or by withdrawing it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closed_by: Option<String>,
    /// The API key with which it was withdrawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closed_key_id: Option<String>,
    /// Why it ended, if decisions did not end it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Delegations.
    pub delegations: Vec<DelegationView>,
    /// Comments.
    pub comments: Vec<CommentView>,
    /// The decisions. Lists leave them out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decisions: Option<Vec<DecisionView>>,
    /// The revision of the record that the caller approved last, below the one of this request. Lists leave it
    /// out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_approved: Option<ApprovedView>,
}

/// An earlier approval.
#[derive(Serialize, ToSchema)]
pub(crate) struct ApprovedView {
    /// The request.
    pub request: String,
    /// The revision of the record.
    pub revision: u64,
    /// When.
    pub at: Time,
}

impl RequestView {
    fn of(state: RequestState, decisions: Option<Vec<Decision>>) -> Self {
        let about = state.about.as_ref().map(about_view);
        let decisions = decisions.map(|all| all.into_iter().map(DecisionView::of).collect());
        let closed = state.closed.as_ref();
        Self {
            status: state.status.to_string(),
            approvals: state.count(Verdict::Approve),
            rejections: state.count(Verdict::Reject),
            assignees: state.assignees.iter().map(ToString::to_string).collect(),
            choices: state
                .choices
                .iter()
                .map(|choice| ChoiceView {
                    name: choice.name.clone(),
                    verdict: choice.verdict.as_str().to_owned(),
                })
                .collect(),
            opened_at: Time(state.opened_at),
            due_at: state.due_at.map(Time),
            closed_at: closed.map(|closed| Time(closed.at)),
            closed_by: closed.and_then(|closed| closed.by.clone()),
            closed_key_id: closed.and_then(|closed| closed.key_id.clone()),
            reason: closed.and_then(|closed| closed.reason.clone()),
            delegations: state
                .delegations
                .iter()
                .map(|given| DelegationView {
                    from: given.from.clone(),
                    to: given.to.clone(),
                    until: Time(given.until),
                })
                .collect(),
            comments: state
                .comments
                .into_iter()
                .map(|comment| CommentView {
                    by: comment.by,
                    text: comment.text,
                    at: Time(comment.at),
                })
                .collect(),
            id: state.id,
            title: state.title,
            text: state.text,
            workflow: state.run.workflow,
            instance_id: state.run.id,
            step: state.run.step,
            requester: state.requester,
            schema: state.schema,
            about,
            quorum: state.quorum,
            labels: state.labels,
            decisions,
            last_approved: None,
        }
    }
}

impl DecisionView {
    fn of(decision: Decision) -> Self {
        Self {
            by: decision.by,
            on_behalf_of: decision.on_behalf_of,
            choice: decision.choice,
            verdict: decision.verdict.as_str().to_owned(),
            answer: decision.answer,
            comment: decision.comment,
            key_id: decision.key_id,
            at: Time(decision.at),
        }
    }
}

fn about_view(about: &About) -> Value {
    match about {
        About::Record(record) => serde_json::json!({
            "collection": record.collection, "id": record.id, "revision": record.revision,
            "digest": record.digest,
        }),
        About::Snapshot { value, digest } => {
            serde_json::json!({ "snapshot": value, "digest": digest })
        }
    }
}

/// A decision to make.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct DecideBody {
    /// The name of a choice of the request, such as `approve`.
    choice: String,
    /// The answer. It must fit the schema of the request.
    #[serde(default)]
    answer: Option<Value>,
    /// A comment.
    comment: Option<String>,
    /// The digest of what the person has seen (`about.digest`). Another digest than that of the request is
    /// refused.
    about: Option<String>,
}

impl Incoming for DecideBody {}

/// A delegation to make.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct DelegateBody {
    /// The person who decides for the caller.
    to: String,
    /// When it ends, RFC 3339.
    until: String,
}

impl Incoming for DelegateBody {}

/// A comment to add.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CommentBody {
    /// The text, at most 4 KiB.
    text: String,
}

impl Incoming for CommentBody {}

/// A withdrawal.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WithdrawBody {
    /// Why.
    reason: Option<String>,
}

impl Incoming for WithdrawBody {}

fn decider(call: &Call) -> Result<Decider, ApiError> {
    let Some(subject) = &call.caller.subject else {
        let message = "the credential stands for no person, so it cannot act on requests; use a key or token \
                       of a person";
        return Err(ApiError::forbidden(message).coded(ErrorCode::SubjectRequired));
    };
    let decider = Decider::new(subject.clone());
    Ok(match &call.caller.key {
        Some(key) => decider.with_key(&key.id, key.creators.iter().map(String::as_str)),
        None => decider,
    })
}

fn requests(call: &Call) -> Requests {
    call.engine.requests()
}

// A request that the caller has nothing to do with looks as if it did not exist.
async fn visible(call: &Call, id: &str) -> Result<RequestState, ApiError> {
    let state = requests(call).get(id).await?;
    let own = call.caller.subject.as_ref().is_some_and(|subject| rules::concerns(&state, subject));
    if own || call.caller.scopes.allow(Scope::Manage) {
        return Ok(state);
    }
    let message = format!("there is no request {id:?} for the caller");
    Err(ApiError::not_found(ErrorCode::RequestNotFound, message))
}

// The hook of the embedding program decides by the run that asks, which the path does not name.
async fn may(call: &Call, state: &RequestState, action: &str) -> Result<(), ApiError> {
    let run = &state.run;
    let (workflow, id) = (Some(run.workflow.as_str()), Some(run.id.as_str()));
    let target = Target { workflow, id, action: Some(action), ..Target::default() };
    call.app.guard.ask(&call.caller, Scope::Decide, &target).await
}

// As `may`, for a change. The change itself answers those who cannot see the request.
async fn may_change(call: &Call, id: &str, action: &str) -> Result<(), ApiError> {
    if call.app.guard.hooks.is_none() {
        return Ok(());
    }
    match visible(call, id).await {
        Ok(state) => may(call, &state, action).await,
        Err(error) if error.status().is_client_error() => Ok(()),
        Err(error) => Err(error),
    }
}

async fn view(call: &Call, state: RequestState) -> ApiResult<RequestView> {
    let decisions = requests(call).decisions(&state).await?;
    Ok(Json(RequestView::of(state, Some(decisions))))
}

fn query(call: &Call, params: &ListParams) -> Result<InboxQuery, ApiError> {
    let of = params.of.as_deref().unwrap_or("mine");
    let bad = |message: String| ApiError::invalid(ErrorCode::InvalidQuery, message);
    if of != "all" && (params.status.is_some() || params.due.is_some()) {
        return Err(bad("`status` and `due` need `of=all`".into()));
    }
    let subject = call.caller.subject.as_ref();
    let others = || call.caller.must(Scope::Manage);
    match of {
        "mine" => decider(call).map(|decider| InboxQuery::Of(decider.subject)),
        "all" => {
            others()?;
            if params.status.is_some() && params.due.is_some() {
                return Err(bad("use `status` or `due`, not both".into()));
            }
            if let Some(day) = &params.due {
                let is_day = day.len() == 10 && parse_time(&format!("{day}T00:00:00Z")).is_some();
                return match is_day {
                    true => Ok(InboxQuery::DueOn(day.clone())),
                    false => Err(bad(format!("due is {day:?}; use a day such as 2026-11-18"))),
                };
            }
            let text = params.status.as_deref().unwrap_or("open");
            let status = RequestStatus::ALL.into_iter().find(|status| status.as_str() == text);
            let status = status.ok_or_else(|| {
                let message = format!("{text:?} is not a status of requests");
                ApiError::invalid(ErrorCode::InvalidStatus, message)
            })?;
            Ok(InboxQuery::Status(status))
        }
        of => match of.split_once(':') {
            Some(("role", role)) => {
                if !subject.is_some_and(|subject| subject.has_role(role)) {
                    others()?;
                }
                Ok(InboxQuery::Role(role.to_owned()))
            }
            Some(("person", id)) => {
                if subject.is_none_or(|subject| subject.id() != id) {
                    others()?;
                }
                Ok(InboxQuery::Person(id.to_owned()))
            }
            _ => Err(bad(format!("of is {of:?}; use mine, role:<role>, person:<id> or all"))),
        },
    }
}

/// Lists requests to people.
#[utoipa::path(get, path = "/inbox", tag = "inbox", operation_id = "listInbox", params(ListParams),
    responses((status = 200, body = InboxList), (status = "default", body = Failure)))]
pub(crate) async fn list(call: Call, Params(params): Params<ListParams>) -> ApiResult<InboxList> {
    let limit = sized("limit", params.limit)?;
    let query = query(&call, &params)?;
    let order = match params.order.as_deref() {
        None | Some("opened") => InboxOrder::Opened,
        Some("due") => InboxOrder::Due,
        Some(other) => {
            let message = format!("order is {other:?}; use opened or due");
            return Err(ApiError::invalid(ErrorCode::InvalidQuery, message));
        }
    };
    let of = (&params.of, &params.status, &params.due, &params.order);
    let listing = format!("inbox-{}", cursor::digest_of(&of));
    let after = decode_as(&listing, params.cursor.as_deref(), |id| Some(id.to_owned()))?;
    let page = requests(&call).inbox(&query, order, after.as_deref(), limit).await?;
    let next = page.next.as_deref().map(|id| cursor::encode(&listing, id));
    let mut requests = Vec::with_capacity(page.requests.len());
    for state in page.requests {
        match may(&call, &state, "inbox").await {
            Ok(()) => requests.push(RequestView::of(state, None)),
            Err(error) if error.status().is_client_error() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Json(InboxList {
        requests,
        has_next_page: next.is_some(),
        next_cursor: next.clone(),
        cursor: next,
    }))
}

/// Reads a request with its decisions.
#[utoipa::path(get, path = "/inbox/{id}", tag = "inbox", operation_id = "getRequest",
    params(("id" = String, Path, description = "The id of the request")),
    responses((status = 200, body = RequestView), (status = "default", body = Failure)))]
pub(crate) async fn get(call: Call, Named(id): Named) -> ApiResult<RequestView> {
    let state = visible(&call, &id).await?;
    may(&call, &state, "get").await?;
    let approved = match (&call.caller.subject, &state.about) {
        (Some(subject), Some(About::Record(record))) => {
            requests(&call).last_approved(subject.id(), record).await?
        }
        _ => None,
    };
    let mut view = view(&call, state).await?;
    view.0.last_approved = approved.map(|approved| ApprovedView {
        request: approved.request,
        revision: approved.revision,
        at: Time(approved.at),
    });
    Ok(view)
}

/// Decides about a request. The same decision again changes nothing.
#[utoipa::path(post, path = "/inbox/{id}/decide", tag = "inbox", operation_id = "decideRequest",
    params(("id" = String, Path, description = "The id of the request")), request_body = DecideBody,
    responses((status = 200, body = RequestView), (status = "default", body = Failure)))]
pub(crate) async fn decide(
    call: Call,
    Named(id): Named,
    Payload(body): Payload<DecideBody>,
) -> ApiResult<RequestView> {
    let decider = decider(&call)?;
    let about = body.about.map(|text| text.parse()).transpose().map_err(|error| {
        ApiError::invalid(ErrorCode::InvalidDecision, format!("about: {error}"))
    })?;
    let new =
        NewDecision { choice: body.choice, answer: body.answer, comment: body.comment, about };
    may_change(&call, &id, "decide").await?;
    let state = requests(&call).decide(&id, &decider, &new).await?;
    view(&call, state).await
}

/// Gives the caller's right to decide to another person until a time.
#[utoipa::path(post, path = "/inbox/{id}/delegate", tag = "inbox", operation_id = "delegateRequest",
    params(("id" = String, Path, description = "The id of the request")), request_body = DelegateBody,
    responses((status = 200, body = RequestView), (status = "default", body = Failure)))]
pub(crate) async fn delegate(
    call: Call,
    Named(id): Named,
    Payload(body): Payload<DelegateBody>,
) -> ApiResult<RequestView> {
    let decider = decider(&call)?;
    let until = parse_time(&body.until).ok_or_else(|| {
        let message = format!("until is {:?}; use a time such as 2026-11-18T08:00:00Z", body.until);
        ApiError::invalid(ErrorCode::InvalidTime, message)
    })?;
    may_change(&call, &id, "delegate").await?;
    let state = requests(&call).delegate(&id, &decider, &body.to, until).await?;
    view(&call, state).await
}

/// Adds a comment to a request.
#[utoipa::path(post, path = "/inbox/{id}/comment", tag = "inbox", operation_id = "commentRequest",
    params(("id" = String, Path, description = "The id of the request")), request_body = CommentBody,
    responses((status = 200, body = RequestView), (status = "default", body = Failure)))]
pub(crate) async fn comment(
    call: Call,
    Named(id): Named,
    Payload(body): Payload<CommentBody>,
) -> ApiResult<RequestView> {
    let decider = decider(&call)?;
    may_change(&call, &id, "comment").await?;
    let state = requests(&call).comment(&id, &decider, &body.text).await?;
    view(&call, state).await
}

/// Takes a request back. Its requester can, and everybody with the scope `manage`.
#[utoipa::path(post, path = "/inbox/{id}/withdraw", tag = "inbox", operation_id = "withdrawRequest",
    params(("id" = String, Path, description = "The id of the request")), request_body = WithdrawBody,
    responses((status = 200, body = RequestView), (status = "default", body = Failure)))]
pub(crate) async fn withdraw(
    call: Call,
    Named(id): Named,
    MaybePayload(body): MaybePayload<WithdrawBody>,
) -> ApiResult<RequestView> {
    may_change(&call, &id, "withdraw").await?;
    let reason = body.reason.as_deref();
    let requests = requests(&call);
    let state = match call.caller.scopes.allow(Scope::Manage) {
        true => {
            let person = call.caller.subject.as_ref().map(Subject::id);
            let key = call.caller.key.as_ref().map(|key| &*key.id);
            requests.withdraw_as_operator(&id, (person, key), reason).await?
        }
        false => requests.withdraw(&id, &decider(&call)?, reason).await?,
    };
    view(&call, state).await
}
