//! The tool that controls runs, with its dry run.

use serde::Deserialize as _;
use serde_json::{Value, json};

use super::super::arguments::Arguments;
use super::super::inner::{Inner, Query, Rejected};
use super::super::shape::shorten;
use super::read::of_run;
use crate::paging::parse_status;
use crate::routes::control::Action;

/// Values above this are left out of answers, in bytes.
const IN_ANSWER_MAX: usize = 2 * 1024;
/// How many runs of the tree a dry run looks at.
const TREE_RUNS: u32 = 100;

pub(super) async fn control(inner: &Inner, arguments: Arguments<'_>) -> Result<Value, Rejected> {
    let word = arguments.text("action");
    let action = Action::deserialize(Value::from(word))
        .map_err(|_| Rejected::invalid(format!("unknown action {word:?}")))?;
    if arguments.optional("reason").is_some()
        && !matches!(action, Action::Cancel | Action::Terminate)
    {
        return Err(Rejected::invalid("only cancel and terminate take a `reason`"));
    }
    if arguments.flag("dryRun") {
        return preview(inner, &arguments, action).await;
    }
    let body = arguments.body(&[("reason", "reason")]);
    let mut done = match action {
        Action::Cancel => {
            let run = inner.get(&of_run(&arguments, &[]), &Query::new()).await?;
            let key = run["meta"]["runKey"].as_str().unwrap_or_default();
            inner.post(&["durable", "workflows", key, "cancel"], &body).await?
        }
        Action::Terminate => inner.post(&of_run(&arguments, &[word]), &body).await?,
        _ => inner.post(&of_run(&arguments, &[word]), &json!({})).await?,
    };
    shorten(&mut done, IN_ANSWER_MAX);
    Ok(done)
}

/// Says which changes an action would make now. Nothing is written.
async fn preview(
    inner: &Inner,
    arguments: &Arguments<'_>,
    action: Action,
) -> Result<Value, Rejected> {
    let run = inner.get(&of_run(arguments, &[]), &Query::new()).await?;
    let status = run["details"]["status"].as_str().unwrap_or_default();
    let accepted = action.accepted_statuses();
    let is_accepted = accepted.iter().any(|accepted| accepted.as_str() == status);
    let effect = match is_accepted {
        true => effect(action).to_owned(),
        false => {
            let words: Vec<&str> = accepted.iter().map(|status| status.as_str()).collect();
            format!("nothing: the run is {status}, and the action needs {}", words.join(" or "))
        }
    };
    let mut preview = json!({
        "dryRun": true,
        "accepted": is_accepted,
        "effect": effect,
        "run": {
            "workflow": run["workflowName"],
            "id": run["id"],
            "runKey": run["meta"]["runKey"],
            "runNumber": run["meta"]["runNumber"],
            "status": status,
        },
    });
    if matches!(action, Action::Cancel | Action::Terminate) {
        let query = vec![("pageSize", TREE_RUNS.to_string())];
        let tree = inner.get(&of_run(arguments, &["tree"]), &query).await?;
        preview["openChildren"] = open_children(&tree, &run["meta"]["runKey"]).into();
        preview["moreChildren"] = tree["hasNextPage"].clone();
    }
    Ok(preview)
}

/// How many descendants of a run have not ended. Parents come before their children.
fn open_children(tree: &Value, run_key: &Value) -> usize {
    let mut below = vec![run_key];
    let mut open = 0;
    for run in tree["runs"].as_array().into_iter().flatten() {
        if !below.contains(&&run["parent"]) {
            continue;
        }
        below.push(&run["runKey"]);
        let status = parse_status(run["status"].as_str().unwrap_or_default());
        open += usize::from(status.is_ok_and(|status| !status.is_ended()));
    }
    open
}

fn effect(action: Action) -> &'static str {
    match action {
        Action::Pause => "the run stops before its next turn; its timers continue",
        Action::Resume => "the run continues",
        Action::Terminate => {
            "the run ends at once as terminated, without cleaning up; its children and activities are cancelled"
        }
        Action::Retry => "a new generation continues at the failed step; completed steps are kept",
        Action::Cancel => {
            "the run is asked to end and may clean up first; its children and activities are cancelled"
        }
        Action::Restart => "a new generation begins with the same input; all steps are done again",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_open_descendants_count() {
        let run = |key: &str, parent: Option<&str>, status: &str| json!({ "runKey": key, "parent": parent, "status": status });
        let tree = json!({ "runs": [
            run("root", None, "waiting"),
            run("a", Some("root"), "waiting"),
            run("b", Some("root"), "complete"),
            run("c", Some("b"), "active"),
            run("d", Some("a"), "errored"),
        ]});
        for (key, open) in [("root", 2), ("a", 0), ("b", 1), ("c", 0)] {
            assert_eq!(open_children(&tree, &key.into()), open, "{key}");
        }
    }
}
