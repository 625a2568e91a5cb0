//! Tampering: what somebody with a SQL prompt changes is found, and the run is named.

use windlass::admin::verify_store;
use windlass_kernel::{Body, ErrorCode, LoadSteps};

use super::ledger::varied;
use super::load;
use crate::world::{Dialect, World};

/// Damage behind the store's back is found, and the run and the place are named.
pub async fn is_named_by_verification(world: World) {
    let dialect = world.subject.dialect().expect("a SQL database");
    let mut keys = varied(&world).await;
    let (reopened, hold) = world.create_held("reopened").await;
    world.ok(world.step_commit(&reopened, hold, "one", "1")).await;
    keys.push(reopened.run_key);
    let (stateful, hold) = world.create_held("stateful").await;
    let mut draft = world.draft(&stateful, hold);
    draft.state(Body::json("1"), world.stamp());
    world.ok(draft.finish()).await;
    keys.push(stateful.run_key);
    let run = |n: usize| dialect.key(keys[n].0);
    let bytes = |text: &str| match dialect {
        Dialect::Sqlite => format!("CAST('{text}' AS BLOB)"),
        Dialect::Postgres => format!("'{text}'::bytea"),
    };
    let disarm = |table: &str| match dialect {
        Dialect::Sqlite => String::new(),
        Dialect::Postgres => format!("ALTER TABLE {table} DISABLE TRIGGER USER;"),
    };
    if dialect == Dialect::Sqlite {
        world.subject.raw_sql("DROP TRIGGERS".to_owned()).await.expect("triggers can be dropped");
    }
    let cases = [
        ("runs", "output", bytes("1"), ""),
        ("steps", "result", bytes("2"), "step_key = 'one' AND"),
        ("events", "payload", bytes("{}"), "ordinal = 1 AND"),
        ("messages", "body", bytes("0"), ""),
        // A finished step that would be done again.
        ("steps", "status", "'pending'".to_owned(), "step_key = 'one' AND"),
        ("runs", "state", bytes("2"), ""),
    ];
    for (n, (table, column, value, which)) in cases.into_iter().enumerate() {
        let sql =
            format!("UPDATE {table} SET {column} = {value} WHERE {which} run_key = {}", run(n));
        let statement = format!("{}{sql}", disarm(table));
        world.subject.raw_sql(statement).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let report = verify_store(&*world.store, &[]).await.unwrap();
        let named: Vec<_> = report.flaws.iter().map(|flaw| flaw.run_key).collect();
        assert!(named.contains(&keys[n]), "{sql}: {:?}", report.flaws);
        assert_eq!(named.len(), n + 1, "one flaw a run, the first: {:?}", report.flaws);
    }
    let report = verify_store(&*world.store, &[]).await.unwrap();
    let flaw = report.flaws.iter().find(|flaw| flaw.run_key == keys[2]).unwrap();
    assert_eq!(flaw.ordinal, Some(1), "{flaw:?}");
}

/// A load does not read the body of a step that it does not select: a damaged one does not fail it.
pub async fn of_bodies_that_are_not_loaded_is_not_noticed(world: World) {
    let dialect = world.subject.dialect().expect("a SQL database");
    let (run, hold) = world.create_held("run").await;
    for (key, what) in [
        ("0", "progress completed"),
        ("1", "progress completed"),
        ("1/a", "note completed"),
        ("2", "progress waiting"),
    ] {
        load::put(&world, run.run_key, hold, key, what).await;
    }
    let disarm = match dialect {
        Dialect::Sqlite => {
            world.subject.raw_sql("DROP TRIGGERS".to_owned()).await.expect("triggers are dropped");
            ""
        }
        Dialect::Postgres => "ALTER TABLE steps DISABLE TRIGGER USER;",
    };
    let damage = format!(
        "{disarm}UPDATE steps SET result_encoding = 'nonsense' WHERE step_key = '0' \
         AND run_key = {}",
        dialect.key(run.run_key.0)
    );
    world.subject.raw_sql(damage).await.expect("the row is damaged");
    assert!(world.store.load(vec![run.run_key]).await.is_err());
    let from_last = LoadSteps::OpenAndFromLast(load::PROGRESS);
    for (select, expect) in
        [(LoadSteps::Open, "2"), (LoadSteps::OpenAndLastSettled, "1/a 2"), (from_last, "1 1/a 2")]
    {
        assert_eq!(load::keys(&load::load(&world, run.run_key, select).await), expect);
    }
}

/// A reference to a large body that is damaged counts as it is: the limits on unread messages stay.
pub async fn of_a_message_does_not_lift_the_limits(world: World) {
    let dialect = world.subject.dialect().expect("a SQL database");
    let (run, _) = world.create_held("run").await;
    let (large, inline_max) = (Body::bytes(vec![7; 1024 * 1024]), 4 * 1024);
    let send = async |n: usize| {
        let mut message = world.message(run.run_key, &format!("m{n}"));
        message.body = Some(large.clone());
        let sent = world.send_commit(message).with_large_bodies_apart(inline_max);
        world.commit(sent).await.err().map(|error| error.code())
    };
    assert_eq!(send(0).await, None);
    let nonsense = "x".repeat(40);
    let (value, disarm) = match dialect {
        Dialect::Sqlite => {
            world.subject.raw_sql("DROP TRIGGERS".to_owned()).await.expect("triggers are dropped");
            (format!("CAST('{nonsense}' AS BLOB)"), "")
        }
        Dialect::Postgres => {
            (format!("'{nonsense}'::bytea"), "ALTER TABLE messages DISABLE TRIGGER USER;")
        }
    };
    let key = dialect.key(run.run_key.0);
    let damage = format!("{disarm}UPDATE messages SET body = {value} WHERE run_key = {key}");
    world.subject.raw_sql(damage).await.expect("the row is damaged");
    let mut codes = Vec::new();
    for n in 1..36 {
        codes.extend(send(n).await);
    }
    assert!(!codes.is_empty(), "32 MiB are the limit");
    assert!(codes.iter().all(|code| *code == ErrorCode::MessagesLimit), "{codes:?}");
}
