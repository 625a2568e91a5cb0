//! `windlass config show`, and what a server refuses to start with.

use std::time::{Duration, Instant};

use crate::support::{Server, run, windlass};

#[test]
fn settings_are_shown_with_where_they_come_from() {
    let folder = tempfile::tempdir().unwrap();
    let file = "store = \"postgres://app:secret@db/app\"\ndrain = \"1 minute\"\nlog = \"warn\"\n";
    std::fs::write(folder.path().join("windlass.toml"), file).unwrap();
    let mut command = windlass();
    command.current_dir(folder.path()).env("WINDLASS_DRAIN", "5 seconds");
    command.args(["config", "show", "--log", "debug", "--tick"]);
    let said = run(command).expect(0);
    let line = |name: &str| {
        let found = said.out.lines().find(|line| line.starts_with(name));
        found.unwrap_or_else(|| panic!("{name}: {}", said.out)).to_owned()
    };
    assert!(line("store").contains("postgres://app:…@db/app"), "{}", said.out);
    assert!(line("store").contains("file windlass.toml"), "{}", said.out);
    assert!(line("drain").contains("5 seconds"), "{}", said.out);
    assert!(line("drain").contains("environment WINDLASS_DRAIN"), "{}", said.out);
    assert!(line("log ").contains("flag --log"), "{}", said.out);
    assert!(line("bind").contains("default"), "{}", said.out);
    assert!(line("tick").contains("flag --tick"), "{}", said.out);
    assert!(line("requests_max").contains("1024"), "{}", said.out);
    assert!(!said.out.contains("secret"), "{}", said.out);
    let mut command = windlass();
    command.current_dir(folder.path()).env("WINDLASS_ADMIN_KEY", "0123456789abcdef".repeat(2));
    command.args(["config", "show", "--auth", "keys", "-o", "json"]);
    let said = run(command).expect(0);
    let told = said.json();
    let of = |name: &str| {
        let rows = told["settings"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).cloned().unwrap()
    };
    assert_eq!(of("store")["value"], "postgres://app:…@db/app");
    assert_eq!(of("store")["from"], "file windlass.toml");
    assert_eq!(of("admin_key")["value"], "(set)");
    assert!(!said.out.contains("secret") && !said.out.contains("0123456789"), "{}", said.out);
}

#[test]
fn a_server_open_to_others_needs_credentials() {
    let mut command = windlass();
    command.args(["server", "--bind", "0.0.0.0:0", "--auth", "off", "--store", "memory:"]);
    let said = run(command).expect(2);
    assert!(said.err.contains("everybody who reaches"), "{said:?}");
    let mut command = windlass();
    command.args(["server", "--bind", "0.0.0.0:0", "--admin-key", "short", "--store", "memory:"]);
    let said = run(command).expect(2);
    assert!(said.err.contains("less than 32 characters"), "{said:?}");
}

#[test]
fn what_a_server_refuses_is_not_shown_as_good() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("empty.pem"), "").unwrap();
    let relay = "[[relays]]\nname = \"r\"\nurl = \"ftp://x/\"\n\
                 secret = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"\n";
    std::fs::write(folder.path().join("relay.toml"), relay).unwrap();
    let jwt = ["--auth", "jwt", "--jwt-issuer", "i", "--jwt-audience", "a"];
    for (args, expect) in [
        (&["--admin-key", "0123456789abcdef0123456789abcdef"][..], "(flag --admin-key)"),
        (&["--auth", "keys", "--admin-key", "short"], "(flag --admin-key)"),
        (&["--auth", "jwt", "--jwt-key", "empty.pem"], "jwt_issuer is not set"),
        (&[&jwt[..], &["--jwt-key", "none.pem"]].concat(), "(flag --jwt-key)"),
        (&[&jwt[..], &["--jwt-key", "empty.pem"]].concat(), "is not a key for RS256"),
        (&["--log", "windlass=loud"], "(flag --log)"),
        (&["--store", "mysql://me:secret@db/app"], "(flag --store)"),
        (&["--config", "relay.toml"], "the relay \"r\" cannot be served"),
    ] {
        for command in [&["config", "show"][..], &["server"]] {
            let mut windlass = windlass();
            windlass.current_dir(folder.path()).args(command).args(args);
            let said = run(windlass).expect(2);
            assert!(said.err.contains(expect), "{command:?} {args:?}: {said:?}");
            assert!(!said.err.contains("secret@") && !said.err.contains("012345"), "{said:?}");
        }
    }
    assert!(!folder.path().join(".windlass").exists(), "a store was opened");
}

#[test]
fn a_variable_that_nobody_reads_is_named() {
    let mut command = windlass();
    command.args(["config", "show"]).env("WINDLASS_STROE", "sqlite:x.db");
    command.env("WINDLASS_URL", "http://127.0.0.1:1/api");
    let said = run(command).expect(0);
    assert_eq!(said.err.trim(), "warning: WINDLASS_STROE is no setting and is not read");
}

#[test]
fn a_log_that_is_no_terminal_is_plain_and_tells_what_happens() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut command = windlass();
        command.current_dir(folder.path()).env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9");
        command.args(["server", "--bind", "127.0.0.1:0", "--store", "sqlite:app.db"]);
        let server = Server::spawn(command);
        let log = server.banner.join("\n");
        for noise in ["\u{1b}", "refinery", "opentelemetry", "schema"] {
            assert!(!log.contains(noise), "{noise:?}: {log}");
        }
        assert!(log.contains("listening on"), "{log}");
        // Once it has answered it knows what a signal means.
        server.say(&["workflows", "list"]).expect(0);
        assert_eq!(server.terminate(), Some(0));
    }
}

/// The status of a request, and whether it was answered at all.
fn status(request: reqwest::RequestBuilder) -> Option<u16> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async { Some(request.send().await.ok()?.status().as_u16()) })
}

#[test]
fn what_the_server_answers_is_a_setting() {
    let client = reqwest::Client::new();
    for on in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = windlass();
        command.args(["server", "--bind", "127.0.0.1:0", "--store", "memory:", "--log", "error"]);
        command.args(["--auth", "keys", "--admin-key", &"k".repeat(32)]);
        command.current_dir(folder.path());
        if on {
            command.arg("--tick").env("WINDLASS_METRICS_OPEN", "true");
            let file = "body_bytes_max = 100\nready_grace = \"1 second\"\n";
            std::fs::write(folder.path().join("windlass.toml"), file).unwrap();
        }
        let server = Server::spawn(command);
        let base = server.url.trim_end_matches("/api").to_owned();
        let post = |path: &str, body: String| {
            let request = client.post(format!("{}{path}", server.url)).bearer_auth("k".repeat(32));
            status(request.header("content-type", "application/json").body(body))
        };
        assert_eq!(post("/_runner/tick", "{}".into()), Some(if on { 200 } else { 404 }));
        let large = format!("{{\"name\":\"x\",\"scopes\":[\"read\"]{}}}", " ".repeat(200));
        assert_eq!(post("/keys", large), Some(if on { 413 } else { 200 }));
        let metrics = status(client.get(format!("{base}/metrics")));
        assert_eq!(metrics, Some(if on { 200 } else { 401 }));
        assert_eq!(status(client.get(format!("{base}/readyz"))), Some(200));
        if !on {
            continue;
        }
        let stopping = std::thread::spawn(move || server.terminate());
        let began = Instant::now();
        let ready = || status(client.get(format!("{base}/readyz")));
        let mut seen = Vec::new();
        while began.elapsed() < Duration::from_secs(20) && seen.last() != Some(&None) {
            seen.push(ready());
        }
        assert!(seen.contains(&Some(503)), "it says that it is not ready first: {seen:?}");
        assert_eq!(stopping.join().unwrap(), Some(0));
    }
}
