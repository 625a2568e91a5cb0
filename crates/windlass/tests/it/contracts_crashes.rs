//! A process that dies at every commit of a document: the document ends in the same way, and each action
//! counts once. Use cases A, B, C and E, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::contracts::language::tokens::Verdict;
use windlass::contracts::language::types::OrgWorkflowDefinition;
use windlass::contracts::{
    ActionCall, ActionOutcome, ApprovalStatus, Contracts, EVENT_TYPE, WEBHOOK_EFFECT,
};
use windlass::kernel::{Body, BoxFuture, Collection, Expect, Query};
use windlass::model::{Engine, TaskHandler};
use windlass::{Error, ErrorCode, TaskContext, TaskFailure};
use windlass_testkit::{CrashReport, Probe, Told, every_crash_of, every_crash_of_on_sqlite};

use crate::contracts::{SLOT, TYPE, contract, directory, edge, invoice, node, person, role};

/// Delivers a webhook at the third attempt. What it did survives a crash, as an outside system does.
struct Hook(Probe);

impl TaskHandler for Hook {
    fn run(&self, _: TaskContext, _: Body) -> BoxFuture<'static, Result<Body, TaskFailure>> {
        self.0.ran("hook");
        let count = self.0.count("hook");
        Box::pin(async move {
            match count {
                0..3 => Err(TaskFailure::new("DOWN", "the receiver is down", true)),
                _ => Ok(Body::json("null")),
            }
        })
    }
}

/// A script that may find its earlier self's work.
struct Script {
    engine: Engine,
    contracts: Contracts,
}

/// An error that says that an earlier call has done it.
fn unless(codes: &[ErrorCode], result: Result<(), Error>) -> Result<(), String> {
    match result {
        Err(error) if codes.contains(&error.code()) => Ok(()),
        result => result.map_err(|error| error.to_string()),
    }
}

impl Script {
    async fn open(engine: Engine, probe: &Probe, slots: Value) -> Result<Self, Error> {
        let post = |call: &ActionCall<'_>| {
            let entry = json!({"total": call.payload["total"]});
            let change = windlass::RecordChange::put("ledger", call.id, &entry, Expect::Absent);
            let change = change.map_err(|error| error.to_string())?;
            Ok(ActionOutcome::none().record(change).result(json!({"ok": true})))
        };
        let builder = Contracts::builder().action("ledger.post", Arc::new(post)).webhooks();
        let contracts = builder.open(&engine).await?;
        engine.serve_effects(WEBHOOK_EFFECT, Arc::new(Hook(probe.clone())))?;
        let mut free = contract();
        free.obligations.clear();
        free.schemas.context = json!({"type": "object", "properties": {
            "reserved": {"type": "boolean"}, "checked": {"type": "boolean"},
        }});
        if contracts.types().await?.is_empty() {
            contracts.publish_type(&free, &person("olga")).await?;
        }
        if contracts.directory().await?.people.is_empty() {
            contracts.put_directory(&directory()).await?;
        }
        if contracts.definition(TYPE).await?.published.is_none() {
            let definition: OrgWorkflowDefinition = serde_json::from_value(json!({
                "baseRef": {"entityType": TYPE, "envelopeVersion": 1}, "slots": slots,
            }))
            .unwrap();
            contracts.put_draft(TYPE, &definition).await?;
            contracts.publish(TYPE, &person("dana")).await?;
        }
        Ok(Self { engine, contracts })
    }

    async fn submit(&self, total: u64) -> Result<(), String> {
        let rita = person("rita");
        let made = self.contracts.create(TYPE, "d", &invoice(total), &rita).await;
        unless(&[ErrorCode::DocumentExists], made.map(drop))?;
        self.act("submit").await
    }

    async fn act(&self, gate: &str) -> Result<(), String> {
        let called = self.contracts.act(TYPE, "d", gate, &person("rita"), None).await;
        unless(&[ErrorCode::DocumentActionClosed], called.map(drop))
    }

    async fn pause(&self) {
        self.engine.env().sleep(Duration::from_millis(100)).await;
    }

    async fn state(&self) -> Result<(String, u64), String> {
        let found = self.contracts.document(TYPE, "d").await.map_err(|error| error.to_string())?;
        Ok((found.row.state, found.row.version))
    }

    /// Approves whatever asks, except by the people who made the document, until a state.
    async fn approve_until(&self, state: &str) -> Result<(), String> {
        while self.state().await?.0 != state {
            self.approve_all().await?;
            self.pause().await;
        }
        Ok(())
    }

    async fn approve_all(&self) -> Result<(), String> {
        for by in ["fay", "fred", "cleo", "bob"] {
            let inbox = self.contracts.inbox(&person(by), None, 10).await;
            for request in inbox.map_err(|error| error.to_string())? {
                let decided = self
                    .contracts
                    .decide_approval(
                        &request.id,
                        Verdict::Approved,
                        request.digest,
                        &person(by),
                        None,
                    )
                    .await;
                let late = [
                    ErrorCode::ApprovalWithdrawn,
                    ErrorCode::ApprovalRefused,
                    ErrorCode::ApprovalStale,
                ];
                unless(&late, decided.map(drop))?;
            }
        }
        Ok(())
    }

    /// The data that must be the same after every crash.
    async fn outcome(&self) -> Told {
        let text = |error: Error| error.to_string();
        let (state, version) = self.state().await?;
        let rebuilt = self.contracts.rebuild(TYPE, "d").await.map_err(text)?;
        let approvals = self.contracts.approvals_of(TYPE, "d", None, 100).await.map_err(text)?;
        let open = approvals.iter().filter(|one| one.status == ApprovalStatus::Open).count();
        let ledger = self.records("ledger").await.map_err(text)?;
        let notes = self.records("windlass.notifications").await.map_err(text)?;
        Ok(json!({
            "state": state, "version": version, "rebuilt": rebuilt.same, "open": open,
            "requests": approvals.len(), "ledger": ledger, "notes": notes.len(),
        }))
    }

    /// The revisions of the records of a collection.
    async fn records(&self, collection: &str) -> Result<Vec<u64>, Error> {
        let query = Query::Records {
            namespace: self.engine.namespace().clone(),
            collection: Collection::new(collection)?,
            term: None,
            after: None,
            limit: 100,
        };
        let rows = self.engine.store().list(query).await?.records()?;
        Ok(rows.into_iter().map(|record| record.revision).collect())
    }
}

fn post() -> Value {
    let mutation =
        json!({"actionType": "ledger.post", "payloadTemplate": {"total": "entity.total"}});
    let config = json!({"mutation": mutation});
    json!({"nodes": [{"id": "usr:approved_to_active:post", "type": "action", "config": config}]})
}

#[test]
fn case_19_use_case_a_ends_in_the_same_way_after_every_crash() {
    check_use_case_a(&every_crash_of(use_case_a));
}

#[test]
fn case_19_use_case_a_ends_in_the_same_way_after_every_crash_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    check_use_case_a(&every_crash_of_on_sqlite(folder.path(), use_case_a));
}

fn use_case_a(engine: &Engine, probe: &Probe) -> BoxFuture<'static, Told> {
    let (engine, probe) = (engine.clone(), probe.clone());
    Box::pin(async move {
        let nodes = json!([
            node("fork", "parallel_split", json!({})),
            node("one", "approval", role("finance_manager")),
            node("two", "approval", role("cfo")),
            node("both", "parallel_join", json!({"mode": "all"})),
        ]);
        let edges = json!([
            edge("f1", "fork", "one"),
            edge("f2", "fork", "two"),
            edge("j1", "one", "both"),
            edge("j2", "two", "both"),
        ]);
        let slots = json!({SLOT: {"nodes": nodes, "edges": edges}, "approved_to_active": post()});
        let script = Script::open(engine, &probe, slots).await;
        let script = script.map_err(|error| error.to_string())?;
        script.submit(900).await?;
        script.approve_until("active").await?;
        script.outcome().await
    })
}

fn check_use_case_a(report: &CrashReport) {
    let expect = json!({"state": "active", "version": 1, "rebuilt": true, "open": 0, "requests": 2,
                        "ledger": [1], "notes": 0});
    assert_eq!(report.output, expect);
    assert!(report.commits > 10, "{report:?}");
}

#[test]
fn case_19_use_case_b_ends_in_the_same_way_after_every_crash() {
    let report = every_crash_of(|engine, probe| {
        let (engine, probe) = (engine.clone(), probe.clone());
        Box::pin(async move {
            let notify = json!({"channel": "in_app", "to": {"strategy": "role", "role": "cfo"},
                                "subject": "Order {entity.id}"});
            let credit = json!({"eventKey": "credit:{entity.id}", "writes": {"checked": "ok"}});
            let accept = "context.checked == true";
            let nodes = json!([
                node("split", "parallel_split", json!({})),
                node("notify", "notification", notify),
                node("credit", "wait_event", credit),
                node("late", "approval", role("cfo")),
                node("join", "parallel_join", json!({"mode": "any", "accept": accept})),
                node("pay", "wait_event", json!({"eventKey": "paid:{entity.id}"})),
                node("done", "script", json!({"writes": {"reserved": "true"}})),
            ]);
            let mut unpaid = edge("no", "join", "pay");
            unpaid["label"] = json!("exhausted");
            let edges = json!([
                edge("s1", "split", "notify"),
                edge("s2", "split", "credit"),
                edge("s3", "split", "late"),
                edge("j1", "notify", "join"),
                edge("j2", "credit", "join"),
                edge("j3", "late", "join"),
                edge("go", "join", "done"),
                unpaid,
            ]);
            let slots = json!({SLOT: {"nodes": nodes, "edges": edges, "exitEdgeMode": "join"}});
            let script = Script::open(engine, &probe, slots).await;
            let script = script.map_err(|error| error.to_string())?;
            script.submit(900).await?;
            let payload = serde_json::value::to_raw_value(&json!({"ok": true})).unwrap();
            let sent = script
                .engine
                .send_by_key(EVENT_TYPE, "credit:i-1", Ok(Body::json(payload.get().to_owned())))
                .id("credit")
                .await;
            sent.map_err(|error| error.to_string())?;
            while script.state().await?.0 != "active" {
                script.pause().await;
            }
            script.outcome().await
        })
    });
    let expect = json!({"state": "active", "version": 1, "rebuilt": true, "open": 0, "requests": 1,
                        "ledger": [], "notes": 1});
    assert_eq!(report.output, expect);
}

#[test]
fn use_case_c_asks_again_after_every_crash() {
    let report = every_crash_of(|engine, probe| {
        let (engine, probe) = (engine.clone(), probe.clone());
        Box::pin(async move {
            let nodes = json!([node("one", "approval", role("finance_manager"))]);
            let slots = json!({SLOT: {"nodes": nodes}, "approved_to_active": post()});
            let script = Script::open(engine, &probe, slots).await;
            let script = script.map_err(|error| error.to_string())?;
            script.submit(900).await?;
            // The document changes while people are asked.
            while script
                .contracts
                .inbox(&person("fay"), None, 10)
                .await
                .is_ok_and(|all| all.is_empty())
                && script.state().await? == ("submitted".to_owned(), 1)
            {
                script.pause().await;
            }
            if script.state().await?.1 == 1 {
                let rita = person("rita");
                let edited = script.contracts.edit(TYPE, "d", 1, &invoice(950), &rita, None).await;
                unless(&[ErrorCode::DocumentConflict], edited.map(drop))?;
            }
            while script.state().await?.0 != "active" {
                script.act("submit").await?;
                if script.state().await?.0 == "submitted" {
                    script.approve_all().await?;
                }
                script.pause().await;
            }
            script.outcome().await
        })
    });
    let found = &report.output;
    assert_eq!((&found["state"], &found["version"]), (&json!("active"), &json!(2)), "{found}");
    assert_eq!(
        (&found["open"], &found["ledger"], &found["rebuilt"]),
        (&json!(0), &json!([1]), &json!(true))
    );
}

#[test]
fn use_case_e_waits_for_its_time_and_its_delivery_after_every_crash() {
    let report = every_crash_of(|engine, probe| {
        let (engine, probe) = (engine.clone(), probe.clone());
        Box::pin(async move {
            let mut large = edge("large", "size", "audit");
            large["condition"] = json!("entity.total > 500");
            let mut small = edge("small", "size", "fine");
            small["condition"] = json!("entity.total <= 500");
            let hook = json!({"url": "https://example.org/statements", "await": "delivered",
                              "payloadTemplate": {"total": "entity.total"}});
            let nodes = json!([
                node("time", "wait_timer", json!({"cron": "*/10 * * * *"})),
                node("size", "condition", json!({})),
                node("audit", "approval", role("cfo")),
                node("fine", "script", json!({"writes": {"checked": "true"}})),
            ]);
            let edges = json!([edge("e1", "time", "size"), large, small]);
            let send =
                json!({"id": "usr:approved_to_active:send", "type": "webhook_out", "config": hook});
            let slots = json!({
                SLOT: {"nodes": nodes, "edges": edges, "exitEdgeMode": "join"},
                "approved_to_active": {"nodes": [send]},
            });
            let script = Script::open(engine, &probe, slots).await;
            let script = script.map_err(|error| error.to_string())?;
            script.submit(900).await?;
            while script.state().await?.0 != "active" {
                script.approve_all().await?;
                script.engine.env().sleep(Duration::from_secs(20)).await;
            }
            assert!(probe.count("hook") >= 3, "the run went on before the delivery");
            script.outcome().await
        })
    });
    let expect = json!({"state": "active", "version": 1, "rebuilt": true, "open": 0, "requests": 1,
                        "ledger": [], "notes": 0});
    assert_eq!(report.output, expect);
}
