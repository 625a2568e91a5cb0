//! Routes of the model `agents`: batches and their lanes, budgets, and what calls have used.
//!
//! A program adds the set to [`crate::Options::routes`].

use axum::body::Bytes;
use axum::extract::{Path, RawQuery};
use axum::http::Method;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use utoipa::ToSchema;
use windlass::ErrorCode;
use windlass::agents::prices::UsdNanos;
use windlass::agents::{self, BudgetLimits, SpendQuery};
use windlass::kernel::RunKey;

use crate::auth::Scope;
use crate::error::ApiError;
use crate::extract::CallerEngine;
use crate::route_doc::RouteDoc;
use crate::table::{Access, RouteSet};

type Answer = Result<Response, ApiError>;

const PAGE_DEFAULT: u32 = 25;
const PAGE_MAX: u32 = 100;

/// The routes of agents. Reads need the scope `read`, changes `manage`.
pub fn routes() -> RouteSet {
    let (read, manage) = (Access::Scope(Scope::Read), Access::Scope(Scope::Manage));
    let (g, p) = (Method::GET, Method::POST);
    RouteSet::new("llm")
        .route(read, g.clone(), "/batches", get(list_batches))
        .route(read, g.clone(), "/batches/{intent}", get(read_batch))
        .route(manage, p.clone(), "/batches/{intent}/cancel", post(cancel_batch))
        .route(read, g.clone(), "/lanes", get(list_lanes))
        .route(manage, p.clone(), "/lanes/{provider}/flush", post(flush_lane))
        .route(read, g.clone(), "/budgets", get(list_budgets))
        .route(read, g.clone(), "/budgets/{budget}", get(read_budget))
        .route(manage, p, "/budgets/{budget}/raise", post(raise_budget))
        .route(read, g.clone(), "/spend", get(spend))
        .route(read, g, "/spend/{runKey}", get(root_spend))
        .described(doc)
}

/// What the OpenAPI document says about a route.
fn doc(method: &Method, path: &str) -> RouteDoc {
    let page = |doc: RouteDoc| {
        doc.count("limit", "The number of rows: 1 to 100. Default 25.")
            .query("after", "`next` of the previous page.")
    };
    match (method.as_str(), path) {
        ("GET", "/batches") => page(RouteDoc::new("listBatches", "Lists batches of calls."))
            .query("status", "Only batches with this status.")
            .query("provider", "Only batches of this provider."),
        ("GET", "/batches/{intent}") => RouteDoc::new("getBatchOfCalls", "Returns a batch."),
        ("POST", "/batches/{intent}/cancel") => {
            RouteDoc::new("cancelBatch", "Asks the provider to cancel a batch.")
        }
        ("GET", "/lanes") => RouteDoc::new(
            "listLanes",
            "Lists the lanes with the calls that wait and the batches in flight.",
        ),
        ("POST", "/lanes/{provider}/flush") => {
            RouteDoc::new("flushLane", "Sends what waits in the lanes of a provider.")
        }
        ("GET", "/budgets") => page(RouteDoc::new("listBudgets", "Lists budgets by id."))
            .query("workflow", "Only the budget of this workflow.")
            .query("run", "Only the budget of this run.")
            .query("root", "Only the budgets of runs below this root."),
        ("GET", "/budgets/{budget}") => RouteDoc::new("getBudget", "Returns a budget."),
        ("POST", "/budgets/{budget}/raise") => {
            RouteDoc::new("raiseBudget", "Adds to the limits of a budget.").body::<Raise>()
        }
        ("GET", "/spend") => {
            RouteDoc::new("getSpend", "Returns the usage of calls by day, workflow and model.")
                .query("from", "The first day, as `2026-11-18`.")
                .query("to", "The last day.")
                .query("workflow", "Only calls of this workflow.")
                .query("model", "Only calls of this model.")
        }
        ("GET", "/spend/{runKey}") => {
            RouteDoc::new("getRootSpend", "Returns the usage of a root run with all its branches.")
        }
        _ => RouteDoc::default(),
    }
}

fn ok<T: serde::Serialize>(value: &T) -> Answer {
    Ok(axum::Json(json!(value)).into_response())
}

fn query<T: DeserializeOwned>(text: Option<&str>) -> Result<T, ApiError> {
    serde_html_form::from_str(text.unwrap_or_default())
        .map_err(|error| ApiError::invalid(ErrorCode::InvalidQuery, error.to_string()))
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Page {
    limit: Option<u32>,
    after: Option<String>,
    status: Option<String>,
    provider: Option<String>,
    workflow: Option<String>,
    run: Option<String>,
    root: Option<String>,
}

impl Page {
    fn limit(&self) -> Result<u32, ApiError> {
        match self.limit.unwrap_or(PAGE_DEFAULT) {
            limit @ 1..=PAGE_MAX => Ok(limit),
            limit => Err(ApiError::invalid(
                ErrorCode::InvalidQuery,
                format!("`limit` is {limit}; use 1 to {PAGE_MAX}"),
            )),
        }
    }

    // At most one of them finds rows.
    fn term<'a>(
        &'a self,
        names: &[&'static str],
    ) -> Result<Option<(&'static str, &'a str)>, ApiError> {
        let mut found = Vec::new();
        for (name, value) in [
            ("status", &self.status),
            ("provider", &self.provider),
            ("workflow", &self.workflow),
            ("run", &self.run),
            ("root", &self.root),
        ] {
            if let Some(value) = value {
                found.push((name, value.as_str()));
            }
        }
        let known = found.iter().all(|(name, _)| names.contains(name));
        if found.len() > 1 || !known {
            let message = format!("filter by at most one of {}", names.join(", "));
            return Err(ApiError::invalid(ErrorCode::InvalidQuery, message));
        }
        Ok(found.pop())
    }
}

async fn list_batches(CallerEngine(engine): CallerEngine, RawQuery(text): RawQuery) -> Answer {
    let page: Page = query(text.as_deref())?;
    let (term, limit) = (page.term(&["status", "provider"])?, page.limit()?);
    let batches = agents::batches(&engine, term, page.after.as_deref(), limit).await?;
    let next = batches.last().filter(|_| batches.len() == limit as usize);
    let next = next.map(|batch| batch.intent.clone());
    ok(&json!({ "batches": batches, "next": next }))
}

async fn read_batch(CallerEngine(engine): CallerEngine, Path(intent): Path<String>) -> Answer {
    ok(&agents::batch_of(&engine, &intent).await?)
}

async fn cancel_batch(CallerEngine(engine): CallerEngine, Path(intent): Path<String>) -> Answer {
    ok(&agents::cancel_batch(&engine, &intent).await?)
}

async fn list_lanes(CallerEngine(engine): CallerEngine) -> Answer {
    ok(&json!({ "lanes": agents::lanes(&engine).await? }))
}

async fn flush_lane(CallerEngine(engine): CallerEngine, Path(provider): Path<String>) -> Answer {
    ok(&json!({ "asked": agents::flush_lane(&engine, &provider).await? }))
}

async fn list_budgets(CallerEngine(engine): CallerEngine, RawQuery(text): RawQuery) -> Answer {
    let page: Page = query(text.as_deref())?;
    let (term, limit) = (page.term(&["workflow", "run", "root"])?, page.limit()?);
    let budgets = agents::budgets(&engine, term, page.after.as_deref(), limit).await?;
    let next = budgets.last().filter(|_| budgets.len() == limit as usize);
    let next = next.map(|budget| budget.id.clone());
    ok(&json!({ "budgets": budgets, "next": next }))
}

async fn read_budget(CallerEngine(engine): CallerEngine, Path(id): Path<String>) -> Answer {
    ok(&agents::budget(&engine, &id).await?)
}

/// What is added to the limits of a budget.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BudgetRaise)]
struct Raise {
    /// US dollars.
    usd: Option<f64>,
    /// Tokens.
    tokens: Option<u64>,
    /// Calls.
    calls: Option<u64>,
}

async fn raise_budget(
    CallerEngine(engine): CallerEngine,
    Path(id): Path<String>,
    bytes: Bytes,
) -> Answer {
    let invalid = |message: String| ApiError::invalid(ErrorCode::InvalidBudget, message);
    let raise: Raise = serde_json::from_slice(&bytes)
        .map_err(|error| invalid(format!("the body cannot be read: {error}")))?;
    let usd = match raise.usd {
        Some(usd) if !(0.0..=1e9).contains(&usd) => {
            return Err(invalid(format!("`usd` is {usd}; use 0 to 1,000,000,000")));
        }
        usd => usd.map(|usd| UsdNanos((usd * 1e9).round() as u64)),
    };
    let more = BudgetLimits { usd_nanos: usd, tokens: raise.tokens, calls: raise.calls };
    ok(&agents::raise_budget(&engine, &id, more).await?)
}

async fn spend(CallerEngine(engine): CallerEngine, RawQuery(text): RawQuery) -> Answer {
    let asked: SpendQuery = query(text.as_deref())?;
    ok(&json!({ "spend": agents::spend(&engine, &asked).await? }))
}

async fn root_spend(CallerEngine(engine): CallerEngine, Path(key): Path<String>) -> Answer {
    let root: RunKey = key.parse()?;
    // A key of another namespace looks like one that does not exist.
    let run = engine.current(root).await?;
    if run.namespace != *engine.namespace() {
        let message = format!("there is no run {root}");
        return Err(ApiError::not_found(ErrorCode::InstanceNotFound, message));
    }
    ok(&agents::root_spend_served(&engine, root).await?)
}
