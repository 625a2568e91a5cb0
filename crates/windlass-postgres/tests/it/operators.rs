//! Set-ups of operators: several hosts, a server that accepts no writes, a connection pooler.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use windlass_kernel::{ErrorCode, ErrorKind, Store as _, Turn};
use windlass_postgres::{Options, PostgresStore};
use windlass_testkit::world::World;

use crate::support::{Schema, TestStore, connect, dsn, options};

fn server() -> (String, u16) {
    let config: tokio_postgres::Config = dsn().parse().expect("invalid DSN");
    match &config.get_hosts()[0] {
        tokio_postgres::config::Host::Tcp(host) => {
            (host.clone(), config.get_ports().first().copied().unwrap_or(5432))
        }
        other => panic!("these tests need a server on TCP, found {other:?}"),
    }
}

// The connection string of the test server with other hosts.
fn dsn_with(hosts: &str, schema: &Schema) -> String {
    let config: tokio_postgres::Config = dsn().parse().expect("invalid DSN");
    let user = config.get_user().unwrap_or("postgres");
    let database = config.get_dbname().unwrap_or("postgres");
    format!(
        "postgres://{user}@{hosts}/{database}?sslmode=disable&options=-csearch_path%3D{}",
        schema.name
    )
}

async fn world_of(dsn: &str, schema: Schema) -> World {
    let store = PostgresStore::open(dsn, options(&schema.name)).await.expect("open failed");
    World::new(Box::new(TestStore { store: Arc::clone(&store), schema })).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_accepts_connections_and_never_answers_is_passed_over() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_port = silent.local_addr().unwrap().port();
    let (host, port) = server();
    let schema = Schema::new();
    let dsn = dsn_with(&format!("127.0.0.1:{silent_port},{host}:{port}"), &schema);
    let world = world_of(&format!("{dsn}&connect_timeout=1"), schema).await;
    world.create_held("run").await;
    // The list form leads to the same server.
    let schema = Schema::new();
    let list = format!(
        "host=127.0.0.1,{host} port={silent_port},{port} user=postgres dbname=postgres \
         connect_timeout=1 sslmode=disable"
    );
    let config: tokio_postgres::Config = crate::support::dsn().parse().unwrap();
    let list = list.replace("user=postgres", &format!("user={}", config.get_user().unwrap()));
    let world = world_of(&list, schema).await;
    world.create_held("run").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_server_is_refused_with_the_reason() {
    let schema = Schema::new();
    let (host, port) = server();
    let dsn = dsn_with(&format!("{host}:{port}"), &schema);
    let dsn = dsn.replace("options=", "options=-cdefault_transaction_read_only%3Don%20");
    let error = PostgresStore::open(&dsn, options(&schema.name)).await.err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("is a standby or read-only"), "{error}");
}

// A proxy whose sessions are read-only as long as `standby` is set, like a server that was demoted.
async fn demotable(standby: Arc<AtomicBool>, connections: Arc<AtomicUsize>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (host, server_port) = server();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            connections.fetch_add(1, Ordering::SeqCst);
            if standby.load(Ordering::SeqCst) {
                continue;
            }
            let mut server = TcpStream::connect((host.as_str(), server_port)).await.unwrap();
            tokio::spawn(async move {
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_became_read_only_is_left_for_the_new_primary() {
    let (standby, connections) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let old = demotable(standby.clone(), connections).await;
    let (host, port) = server();
    let schema = Schema::new();
    let dsn = dsn_with(&format!("127.0.0.1:{old},{host}:{port}"), &schema);
    let dsn = dsn.replace("options=", "application_name=demoted&options=");
    let world = world_of(&dsn, schema).await;
    let worker = world.worker();
    world.renew(worker).await;
    let (run, hold) = world.create_held("run").await;
    // Every session of the store becomes read-only, and the first host accepts no new one.
    standby.store(true, Ordering::SeqCst);
    let admin = connect().await;
    admin.batch_execute("CREATE TABLE IF NOT EXISTS public.wl_probe (x int)").await.unwrap();
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE application_name = 'demoted'";
    admin.query(sql, &[]).await.unwrap();
    world.ok(world.step_commit(&run, hold, "one", "1")).await;
    assert!(!world.renew(worker).await.lapsed);
    world.enqueue(vec![world.task(None)]).await;
    assert_eq!(world.claim_tasks(worker, 1).await.len(), 1);
}

// Sessions become read-only without being closed. The store must not keep them.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_became_read_only_are_dropped() {
    let schema = Schema::new();
    let name = schema.name.clone();
    let store = schema.open(options(&name)).await;
    let world = World::new(Box::new(TestStore { store, schema })).await;
    let worker = world.worker();
    world.renew(worker).await;
    let (run, hold) = world.create_held("run").await;
    let admin = connect().await;
    // A setting of the role applies to new sessions only, so the function makes old ones read-only.
    let sql = format!(
        "SET search_path = \"{name}\"; \
         CREATE TABLE demoted (pid int4 PRIMARY KEY); \
         INSERT INTO demoted SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid(); \
         CREATE FUNCTION refuse_writes() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF EXISTS (SELECT FROM \"{name}\".demoted WHERE pid = pg_backend_pid()) THEN \
                 RAISE EXCEPTION 'cannot write in a read-only transaction' USING ERRCODE = '25006'; \
             END IF; RETURN NULL; END $$; \
         CREATE TRIGGER refuse_steps BEFORE INSERT ON steps FOR EACH STATEMENT \
             EXECUTE FUNCTION refuse_writes(); \
         CREATE TRIGGER refuse_workers BEFORE INSERT OR UPDATE ON workers FOR EACH STATEMENT \
             EXECUTE FUNCTION refuse_writes()"
    );
    admin.batch_execute(&sql).await.unwrap();
    world.ok(world.step_commit(&run, hold, "one", "1")).await;
    assert!(!world.renew(worker).await.lapsed);
}

// A pooler in transaction mode: a client has a server session only from the first message of a
// transaction to its end.
async fn pooler() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let idle: Arc<std::sync::Mutex<Vec<TcpStream>>> = Arc::default();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(pooled(client, idle.clone()));
        }
    });
    port
}

// Reads one message: its type byte and all its bytes.
async fn message(from: &mut TcpStream, first: bool) -> Option<(u8, Vec<u8>)> {
    let mut bytes = vec![0; if first { 4 } else { 5 }];
    from.read_exact(&mut bytes).await.ok()?;
    let at = bytes.len() - 4;
    let length = u32::from_be_bytes(bytes[at..].try_into().ok()?) as usize;
    let start = bytes.len();
    bytes.resize(at + length, 0);
    from.read_exact(&mut bytes[start..]).await.ok()?;
    Some((if first { 0 } else { bytes[0] }, bytes))
}

// The server's messages until it is ready, and whether no transaction is open then.
async fn until_ready(server: &mut TcpStream) -> Option<(Vec<u8>, bool)> {
    let mut all = Vec::new();
    loop {
        let (kind, bytes) = message(server, false).await?;
        all.extend_from_slice(&bytes);
        if kind == b'Z' {
            return Some((all, bytes[5] == b'I'));
        }
    }
}

async fn pooled(mut client: TcpStream, idle: Arc<std::sync::Mutex<Vec<TcpStream>>>) -> Option<()> {
    let (_, startup) = message(&mut client, true).await?;
    let mut server = TcpStream::connect(server()).await.ok()?;
    server.write_all(&startup).await.ok()?;
    let (answer, _) = until_ready(&mut server).await?;
    idle.lock().unwrap().push(server);
    client.write_all(&answer).await.ok()?;
    loop {
        let (mut kind, mut bytes) = message(&mut client, false).await?;
        let free = idle.lock().unwrap().pop();
        let mut server = match free {
            Some(server) => server,
            None => {
                let mut server = TcpStream::connect(crate::operators::server()).await.ok()?;
                server.write_all(&startup).await.ok()?;
                until_ready(&mut server).await?;
                server
            }
        };
        let answer = loop {
            server.write_all(&bytes).await.ok()?;
            if matches!(kind, b'S' | b'Q') {
                let (answer, is_idle) = until_ready(&mut server).await?;
                if is_idle {
                    break answer;
                }
                client.write_all(&answer).await.ok()?;
            }
            (kind, bytes) = message(&mut client, false).await?;
        };
        // The session is free before the client can send its next statement.
        idle.lock().unwrap().push(server);
        client.write_all(&answer).await.ok()?;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_in_transaction_mode_is_refused() {
    let schema = Schema::new();
    let dsn = dsn_with(&format!("127.0.0.1:{}", pooler().await), &schema);
    let error = PostgresStore::open(&dsn, options(&schema.name)).await.err().expect("refused");
    assert_eq!((error.code(), error.kind()), (ErrorCode::StorePooled, ErrorKind::Closed));
    assert!(error.message().contains("pool_mode = session"), "{error}");
}

static PANICS: AtomicBool = AtomicBool::new(false);

fn panic_once() {
    assert!(!PANICS.swap(false, Ordering::SeqCst), "injected panic of a committer");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_committer_that_panics_answers_unknown_and_goes_on() {
    let schema = Schema::new();
    let options =
        Options { committers: 1, before_batch: Some(panic_once), ..options(&schema.name) };
    let store = schema.open(options).await;
    let world = World::new(Box::new(TestStore { store: store.clone(), schema })).await;
    let (run, hold) = world.create_held("run").await;
    let step = world.step_commit(&run, hold, "one", "1");
    PANICS.store(true, Ordering::SeqCst);
    let error = world.commit(step.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
    world.ok(step).await;
    world.create(world.new_run("other", Turn::ready())).await;
    let facts = store.facts().await.unwrap();
    let panics = facts.iter().find(|fact| fact.name == "panics").expect("a fact");
    assert_eq!(panics.value, "1");
    assert!(panics.warning.is_some());
    // It also ends when the store is closed.
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_opens_as_many_connections_as_documented() {
    let schema = Schema::new();
    let config: tokio_postgres::Config = dsn().parse().unwrap();
    let (host, port) = server();
    let name = format!("count-{}", schema.name);
    let dsn = format!(
        "host={host} port={port} user={} dbname={} application_name={name}",
        config.get_user().unwrap(),
        config.get_dbname().unwrap_or("postgres")
    );
    let options = Options { schema: schema.name.clone(), ..Options::default() };
    let store = PostgresStore::open(&dsn, options).await.expect("open failed");
    let world = World::new(Box::new(TestStore { store: store.clone(), schema })).await;
    store.listen(Arc::new(|_| {}));
    let worker = world.worker();
    let admin = connect().await;
    let mut most = 0;
    for round in 0..20 {
        let calls = (0..40).map(|n| {
            let world = &world;
            async move {
                match n % 4 {
                    0 => drop(world.store.health().await.unwrap()),
                    1 => drop(world.renew(worker).await),
                    2 => drop(world.create_held(&format!("r{round}-{n}")).await),
                    _ => drop(world.store.now().await.unwrap()),
                }
            }
        });
        futures::future::join_all(calls).await;
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
        let count: i64 = admin.query_one(sql, &[&name]).await.unwrap().get(0);
        most = most.max(count);
    }
    assert_eq!(most, 13, "docs/deployment.md says 13");
}
