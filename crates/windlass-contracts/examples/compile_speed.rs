//! Measures how long workflows of 200 and 500 nodes take to compile, with the ratio to parsing the
//! same JSON, and how long expressions beyond the limits take to be refused. Run it with `cargo run --release -p windlass-contracts --example compile_speed`.

#![expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use windlass_contracts::compile::{compile, read_definition};
use windlass_contracts::dsl::Expression;
use windlass_contracts::templates;
use windlass_contracts::types::LifecycleContract;

const ROUNDS: usize = 200;
const SLOT: &str = "submitted_to_approved";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let template = templates::all().into_iter().find(|one| one.name == "invoice_approval");
    let contract = template.ok_or("there is no template invoice_approval")?.contract;
    for (wanted, limit) in [(200, Duration::from_millis(5)), (500, Duration::from_millis(20))] {
        let text = definition(&contract, wanted)?;
        let parsed = median(|| serde_json::from_str::<Value>(&text).map(drop))?;
        let definition = read_definition(&text)?;
        let compiled = median(|| compile(&contract, &definition).map(drop))?;
        let nodes = compile(&contract, &definition)?.nodes.len();
        let ratio = compiled.as_secs_f64() / parsed.as_secs_f64();
        println!(
            "{nodes} nodes, {} bytes: parse {parsed:.1?}, compile {compiled:.1?}, ratio {ratio:.1}, \
             limit {limit:?}: {}",
            text.len(),
            if compiled < limit { "ok" } else { "TOO SLOW" }
        );
    }
    let limit = Duration::from_millis(1);
    for (name, text) in hostile() {
        if Expression::parse(&text).is_ok() {
            return Err(format!("{name} is not refused").into());
        }
        let refused = median(|| {
            Expression::parse(&text).map_or(Ok(()), |_| Err("an expression beyond the limits"))
        })?;
        let verdict = if refused < limit { "ok" } else { "TOO SLOW" };
        println!("{name}: refused in {refused:.1?}, limit {limit:?}: {verdict}");
    }
    Ok(())
}

/// Expressions beyond the limits.
fn hostile() -> [(&'static str, String); 5] {
    let many = |count: usize| vec!["entity.total > 1"; count].join(" && ");
    [
        ("!!(!!(…", "!!(".repeat(3_000)),
        ("10,000 parentheses", "(".repeat(10_000)),
        ("501 characters", format!("'{}'", "x".repeat(499))),
        ("depth 11", format!("{}true{}", "!(".repeat(11), ")".repeat(11))),
        ("21 dereferences", many(21)),
    ]
}

/// The median time of a call.
fn median<E>(mut call: impl FnMut() -> Result<(), E>) -> Result<Duration, E> {
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        call()?;
        times.push(begin.elapsed());
    }
    times.sort();
    Ok(times[ROUNDS / 2])
}

/// A definition with so many effective nodes: approvals, conditions, actions with their policy
/// checks, and parallel regions, one after the other.
fn definition(
    contract: &LifecycleContract,
    nodes_wanted: usize,
) -> Result<String, Box<dyn std::error::Error>> {
    let id = |name: String| format!("usr:{SLOT}:{name}");
    let (mut nodes, mut edges): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
    let role = json!({"approvers": {"strategy": "role", "role": "finance_manager"}});
    let mut last: Option<String> = None;
    let mut text = String::new();
    for block in 0.. {
        let name = |part: &str| id(format!("{part}{block}"));
        let edge = |from: &str, to: &str| {
            json!({"id": format!("{from}-{to}").replace(&format!("usr:{SLOT}:"), ""),
                   "source": from, "target": to})
        };
        let (ask, size, post) = (name("ask"), name("size"), name("post"));
        let (fork, a, b, both) = (name("fork"), name("a"), name("b"), name("both"));
        let mut added = vec![
            json!({"id": ask, "type": "approval", "config": role}),
            json!({"id": size, "type": "condition"}),
            json!({"id": post, "type": "action", "config": {"mutation": {
                "actionType": "ledger.post", "payloadTemplate": {"amount": "entity.total"}}}}),
            json!({"id": fork, "type": "parallel_split"}),
            json!({"id": a, "type": "approval", "config": role}),
            json!({"id": b, "type": "approval", "config": role}),
            json!({"id": both, "type": "parallel_join", "config": {"mode": "all"}}),
        ];
        let mut large = edge(&size, &fork);
        large["condition"] = json!("entity.total > 1000000 && entity.currency == 'EUR'");
        let mut other = edge(&size, &post);
        other["priority"] = json!(1);
        let mut more = vec![
            edge(&ask, &size),
            large,
            other,
            edge(&post, &fork),
            edge(&fork, &a),
            edge(&fork, &b),
            edge(&a, &both),
            edge(&b, &both),
        ];
        more.extend(last.iter().map(|last| edge(last, &ask)));
        nodes.append(&mut added);
        edges.append(&mut more);
        last = Some(both);
        let next = json!({
            "baseRef": {"entityType": contract.entity_type, "envelopeVersion": contract.version},
            "slots": {SLOT: {"nodes": nodes, "edges": edges}},
        })
        .to_string();
        match compile(contract, &read_definition(&next)?) {
            Ok(compiled) if compiled.nodes.len() <= nodes_wanted => text = next,
            _ => break,
        }
    }
    Ok(text)
}
