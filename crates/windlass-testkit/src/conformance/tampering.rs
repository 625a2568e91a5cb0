//! Tampering: what somebody with a SQL prompt changes is found, and the run is named.

use windlass_kernel::verify::verify_store;

use super::ledger::varied;
use crate::world::{Dialect, World};

/// Damage behind the store's back is found, and the run and the place are named.
pub async fn is_named_by_verification(world: World) {
    let dialect = world.subject.dialect().expect("a SQL database");
    let mut keys = varied(&world).await;
    let (reopened, hold) = world.create_held("reopened").await;
    world.ok(world.step_commit(&reopened, hold, "one", "1")).await;
    keys.push(reopened.run_key);
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
