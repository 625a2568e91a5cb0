//! The object that the path of a request names, for the hooks of the embedding program.

use axum::http::Method;

use crate::auth::{Scope, Target};
use crate::routes::records;

/// The object in a path. It owns its texts, because those of the path are decoded.
#[derive(Debug, Default)]
pub(super) struct Named {
    workflow: Option<String>,
    collection: Option<String>,
    is_document: bool,
    id: Option<String>,
    action: Option<String>,
}

impl Named {
    /// Reads a path. `route` is its template without the base path, `path` the path itself, and `param`
    /// returns the decoded parameter of a name.
    pub(super) fn of(
        method: &Method,
        route: &str,
        path: &str,
        scope: Scope,
        param: impl Fn(&str) -> Option<String>,
    ) -> Self {
        if let Some(named) = Self::of_contracts(method, route, &param) {
            return named;
        }
        let collection = param("collection");
        let has_id = collection.is_some() || scope == Scope::Decide;
        let id = param("instanceId").or_else(|| param("id").filter(|_| has_id));
        let (event_type, id) = (param("eventType"), id.or_else(|| param("eventKey")));
        let action = match &collection {
            None if event_type.is_some() => event_type,
            None => path.trim_end_matches('/').rsplit('/').next().map(str::to_owned),
            Some(_) => Some(records::action(method, id.as_deref()).to_owned()),
        };
        Self { workflow: param("workflowName"), collection, is_document: false, id, action }
    }

    // The routes of the model `contracts` have parameters of their own.
    fn of_contracts(
        method: &Method,
        route: &str,
        param: impl Fn(&str) -> Option<String>,
    ) -> Option<Self> {
        let mut parts = route.trim_matches('/').split('/');
        let first = parts.next()?;
        let (id, rest) = match first {
            "documents" => (param("document"), parts.nth(2)),
            "approvals" => (param("approval"), parts.nth(1)),
            "contracts" => (param("chain"), parts.next_back()),
            _ => return None,
        };
        // The last part of the template is a parameter where it is the action itself.
        let decided = || param("decision").or_else(|| param("action"));
        let action = decided().or_else(|| {
            let word = rest.filter(|word| !word.starts_with('{'));
            let usual = match (method, &id) {
                (&Method::PATCH, _) => "edit",
                (&Method::POST, None) => "create",
                (&Method::PUT, _) => "put",
                (_, Some(_)) => "get",
                (_, None) => "list",
            };
            Some(word.unwrap_or(usual).to_owned())
        });
        let is_document = first != "approvals";
        Some(Self { workflow: None, collection: param("type"), is_document, id, action })
    }

    pub(super) fn target(&self) -> Target<'_> {
        Target {
            workflow: self.workflow.as_deref(),
            collection: self.collection.as_deref(),
            is_document: self.is_document,
            id: self.id.as_deref(),
            action: self.action.as_deref(),
            ..Target::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The method, template, parameters and scope, and the collection, id and action.
    #[test]
    fn each_route_names_its_object() {
        let check = |text: &str, scope: Scope, expect: [&str; 3]| {
            let (method, template) = text.split_once(' ').unwrap();
            let param = |name: &str| {
                template.contains(&format!("{{{name}}}")).then(|| format!("the-{name}"))
            };
            let path = template.replace('{', "the-").replace('}', "");
            let method = method.parse().unwrap();
            let named = Named::of(&method, template, &path, scope, param);
            let found = [&named.collection, &named.id, &named.action];
            assert_eq!(found.map(|text| text.as_deref().unwrap_or("")), expect, "{text}");
            assert_eq!(
                named.is_document,
                template.starts_with("/documents") || template.starts_with("/contracts")
            );
        };
        let records = Scope::Records;
        check("GET /documents/{type}", records, ["the-type", "", "list"]);
        check("POST /documents/{type}", records, ["the-type", "", "create"]);
        let document = "/documents/{type}/{document}";
        for (text, action) in [
            (format!("GET {document}"), "get"),
            (format!("PATCH {document}"), "edit"),
            (format!("POST {document}/actions/{{action}}"), "the-action"),
            (format!("POST {document}/amend"), "amend"),
            (format!("GET {document}/versions/{{version}}"), "versions"),
            (format!("POST {document}/fail"), "fail"),
        ] {
            check(&text, records, ["the-type", "the-document", action]);
        }
        check("GET /approvals", Scope::Decide, ["", "", "list"]);
        check("GET /approvals/{approval}", Scope::Decide, ["", "the-approval", "get"]);
        let decide = "POST /approvals/{approval}/{decision}";
        check(decide, Scope::Decide, ["", "the-approval", "the-decision"]);
        check("POST /contracts/{type}/publish", Scope::Define, ["the-type", "", "publish"]);
        check("PUT /contracts/chains/{chain}", Scope::Admin, ["", "the-chain", "put"]);
        check("GET /records/{collection}", records, ["the-collection", "", "list"]);
        check("PUT /records/{collection}/{id}", records, ["the-collection", "the-id", "put"]);
        check("POST /inbox/{id}/decide", Scope::Decide, ["", "the-id", "decide"]);
        check("GET /runs/{id}", Scope::Read, ["", "", "the-id"]);
        let run = "POST /workflows/{workflowName}/instances/{instanceId}/pause";
        check(run, Scope::Manage, ["", "the-instanceId", "pause"]);
    }
}
