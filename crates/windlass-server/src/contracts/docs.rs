//! What the OpenAPI document says about the routes of contracts.

use axum::http::Method;

use super::expressions::Question;
use super::{Amend, Decision, Edit, NewDocument, Reason};
use crate::route_doc::RouteDoc;

/// Method, path, operation id and summary.
const ROUTES: &[(&str, &str, &str, &str)] = &[
    (
        "GET",
        "/contracts/templates",
        "listContractTemplates",
        "Lists the templates of lifecycle contracts.",
    ),
    ("GET", "/contracts/types", "listDocumentTypes", "Lists the document types."),
    (
        "POST",
        "/contracts/types",
        "publishDocumentType",
        "Publishes a lifecycle contract: a new type, or its next version.",
    ),
    (
        "GET",
        "/contracts/types/{type}",
        "getDocumentType",
        "Returns the newest lifecycle contract of a type.",
    ),
    (
        "GET",
        "/contracts/types/{type}/versions",
        "listDocumentTypeVersions",
        "Lists the versions of a lifecycle contract, the newest first.",
    ),
    (
        "GET",
        "/contracts/types/{type}/versions/{version}",
        "getDocumentTypeVersion",
        "Returns a version of a lifecycle contract.",
    ),
    (
        "POST",
        "/contracts/types/{type}/archive",
        "archiveDocumentType",
        "Archives a type: it takes no new documents.",
    ),
    (
        "GET",
        "/contracts/{type}/versions",
        "listDefinitionVersions",
        "Lists the published versions of a definition, the newest first.",
    ),
    ("GET", "/notifications", "listNotifications", "Lists the notifications of the caller."),
    (
        "DELETE",
        "/notifications/{notification}",
        "dismissNotification",
        "Dismisses a notification of the caller.",
    ),
    (
        "GET",
        "/contracts/directory",
        "getDirectory",
        "Returns the people of the namespace and their delegations.",
    ),
    (
        "PUT",
        "/contracts/directory",
        "putDirectory",
        "Replaces the people of the namespace and their delegations.",
    ),
    (
        "GET",
        "/contracts/settings",
        "getContractSettings",
        "Returns the settings that expressions read as `org`.",
    ),
    (
        "PUT",
        "/contracts/settings",
        "putContractSettings",
        "Replaces the settings that expressions read as `org`.",
    ),
    ("GET", "/contracts/chains", "listChains", "Lists the names of the approval chains."),
    ("GET", "/contracts/chains/{chain}", "getChain", "Returns an approval chain."),
    ("PUT", "/contracts/chains/{chain}", "putChain", "Replaces an approval chain."),
    (
        "GET",
        "/contracts/health",
        "getContractsHealth",
        "Returns how many documents are open, failed or stuck, and how long their nodes take.",
    ),
    (
        "GET",
        "/contracts/stuck",
        "listStuckDocuments",
        "Lists the runs of documents that make no progress.",
    ),
    (
        "GET",
        "/contracts/{type}/definition",
        "getDefinition",
        "Returns the draft of a definition and what is published.",
    ),
    ("PUT", "/contracts/{type}/draft", "putDraft", "Replaces the draft of a definition."),
    (
        "POST",
        "/contracts/{type}/check",
        "checkDefinition",
        "Compiles a definition without storing it.",
    ),
    (
        "POST",
        "/contracts/{type}/simulate",
        "simulateDefinition",
        "Simulates the draft, or what is published, on a document.",
    ),
    (
        "POST",
        "/contracts/{type}/publish",
        "publishDefinition",
        "Publishes the draft. Documents that exist keep their workflow.",
    ),
    (
        "POST",
        "/contracts/{type}/archive",
        "archiveDefinition",
        "Lets new documents use the defaults of the contract again.",
    ),
    (
        "POST",
        "/contracts/{type}/rebase",
        "rebaseDefinition",
        "Moves the draft to the newest version of the contract.",
    ),
    (
        "POST",
        "/contracts/{type}/recompile",
        "recompileDefinition",
        "Compiles what is published again with this build.",
    ),
    (
        "POST",
        "/contracts/{type}/rollback/{version}",
        "rollBackDefinition",
        "Publishes an earlier version of a definition again.",
    ),
    (
        "GET",
        "/contracts/{type}/versions/{version}",
        "getDefinitionVersion",
        "Returns a version of a definition.",
    ),
    (
        "GET",
        "/contracts/{type}/effective",
        "getEffectiveWorkflow",
        "Returns the compiled workflow that a new document gets.",
    ),
    (
        "GET",
        "/contracts/{type}/diff/{format}",
        "diffEffectiveWorkflow",
        "Returns what the definition changes, as `json`, `text` or `mermaid`.",
    ),
    (
        "POST",
        "/expressions/evaluate",
        "evaluateExpression",
        "Checks an expression, and evaluates it with an explanation. A problem of the expression is a result.",
    ),
    ("POST", "/documents/{type}", "createDocument", "Creates a document and starts its run."),
    ("GET", "/documents/{type}", "listDocuments", "Lists the documents of a type by id."),
    (
        "GET",
        "/documents/{type}/{document}",
        "getDocument",
        "Returns a document. Its `ETag` is its version.",
    ),
    (
        "PATCH",
        "/documents/{type}/{document}",
        "editDocument",
        "Writes a new version of a document.",
    ),
    (
        "POST",
        "/documents/{type}/{document}/actions/{action}",
        "callGate",
        "Calls a gate of a document. Its run carries the action out.",
    ),
    (
        "POST",
        "/documents/{type}/{document}/amend",
        "amendDocument",
        "Creates a document that amends this one.",
    ),
    (
        "GET",
        "/documents/{type}/{document}/versions/{version}",
        "getDocumentVersion",
        "Returns a version of a document with its note.",
    ),
    (
        "GET",
        "/documents/{type}/{document}/diff/{from}/{to}",
        "diffDocument",
        "Returns the fields that differ between two versions.",
    ),
    (
        "GET",
        "/documents/{type}/{document}/position",
        "getPosition",
        "Returns where the run of a document stands.",
    ),
    (
        "GET",
        "/documents/{type}/{document}/workflow",
        "getDocumentWorkflow",
        "Returns the compiled workflow that a document is pinned to. A later publication does not change it.",
    ),
    (
        "GET",
        "/documents/{type}/{document}/approvals",
        "listApprovalsOfDocument",
        "Lists the requests for approval about a document by id.",
    ),
    (
        "POST",
        "/documents/{type}/{document}/rebuild",
        "rebuildDocument",
        "Rebuilds the state of a run from its steps and compares both. Nothing is written.",
    ),
    (
        "POST",
        "/documents/{type}/{document}/advance",
        "advanceDocument",
        "Lets the run of a document go on again.",
    ),
    (
        "POST",
        "/documents/{type}/{document}/fail",
        "failDocument",
        "Ends the run of a document with a failure. The body must have a reason.",
    ),
    (
        "GET",
        "/approvals",
        "listApprovals",
        "Lists the open requests for approval that ask the caller, by id.",
    ),
    (
        "GET",
        "/approvals/{approval}",
        "getApproval",
        "Returns a request with its content, the changes since the version that the caller approved last, and its quorum so far.",
    ),
    (
        "POST",
        "/approvals/{approval}/{decision}",
        "decideApproval",
        "Decides on a request: `approve`, `reject` or `abstain` with the digest of the content, or `delegate` with a person.",
    ),
];

/// The description of a route.
pub(super) fn of(method: &Method, path: &str) -> RouteDoc {
    let known = ROUTES.iter().find(|(name, at, ..)| *name == method.as_str() && *at == path);
    let Some((.., id, summary)) = known else { return RouteDoc::default() };
    let doc = RouteDoc::new(id, summary);
    let page = |doc: RouteDoc| {
        doc.count("limit", "The number of rows: 1 to 100. Default 25.")
            .query("after", "The id of the last row of the previous page.")
    };
    match *id {
        "createDocument" => doc.body::<NewDocument>().status(201),
        "listDocuments" => page(doc).query("state", "Only documents in this state."),
        "listApprovals" | "listApprovalsOfDocument" | "listNotifications" => page(doc),
        "listDocumentTypeVersions" | "listDefinitionVersions" => doc
            .count("limit", "The number of rows: 1 to 100. Default 25.")
            .count("before", "Only versions below this one."),
        "dismissNotification" => doc.status(204),
        "editDocument" => doc
            .header("If-Match", "The `ETag` of the document, which is the version that is edited.")
            .body::<Edit>(),
        "callGate" => doc.body::<Reason>().status(202),
        "failDocument" => doc.body::<Reason>(),
        "amendDocument" => doc.body::<Amend>().status(201),
        "decideApproval" => doc.body::<Decision>(),
        "evaluateExpression" => doc.body::<Question>(),
        "publishDocumentType" => doc.any_body(
            "A lifecycle contract. `windlass contracts schema contract` prints its JSON Schema.",
        ),
        "putDraft" | "checkDefinition" => doc.any_body(
            "A definition. `windlass contracts schema definition` prints its JSON Schema.",
        ),
        "simulateDefinition" => {
            doc.any_body("The document, the requester, the time, and the decisions by node.")
        }
        "putDirectory" => doc.any_body("People by id with their roles, and delegations."),
        "putContractSettings" => doc.any_body("An object."),
        "putChain" => doc.any_body("The stages of the chain, in order."),
        _ => doc,
    }
}
