//! `windlass config show`, and settings that the server rejects.

use std::time::Instant;

use crate::support::{Server, TEST_TIMEOUT, http_client, run, windlass};

#[test]
fn settings_are_shown_with_their_origin() {
    let folder = tempfile::tempdir().unwrap();
    let file = "store = \"postgres://app:secret@db/app\"\ndrain = \"1 minute\"\nlog = \"warn\"\n";
    std::fs::write(folder.path().join("windlass.toml"), file).unwrap();
    let mut command = windlass();
    command.current_dir(folder.path()).env("WINDLASS_DRAIN", "5 seconds");
    command.args(["config", "show", "--log", "debug", "--tick"]);
    let output = run(command).expect(0);
    let line = |name: &str| {
        let found = output.stdout.lines().find(|line| line.starts_with(name));
        found.unwrap_or_else(|| panic!("{name}: {}", output.stdout)).to_owned()
    };
    assert!(line("store").contains("postgres://app:…@db/app"), "{}", output.stdout);
    assert!(line("store").contains("file windlass.toml"), "{}", output.stdout);
    assert!(line("drain").contains("5 seconds"), "{}", output.stdout);
    assert!(line("drain").contains("environment WINDLASS_DRAIN"), "{}", output.stdout);
    assert!(line("log ").contains("flag --log"), "{}", output.stdout);
    assert!(line("bind").contains("default"), "{}", output.stdout);
    assert!(line("tick").contains("flag --tick"), "{}", output.stdout);
    assert!(line("requests_max").contains("1024"), "{}", output.stdout);
    assert!(!output.stdout.contains("secret"), "{}", output.stdout);
    let mut command = windlass();
    command.current_dir(folder.path()).env("WINDLASS_ADMIN_KEY", "0123456789abcdef".repeat(2));
    command.args(["config", "show", "--auth", "keys", "-o", "json"]);
    let output = run(command).expect(0);
    let report = output.json();
    let of = |name: &str| {
        let rows = report["settings"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).cloned().unwrap()
    };
    assert_eq!(of("store")["value"], "postgres://app:…@db/app");
    assert_eq!(of("store")["from"], "file windlass.toml");
    assert_eq!(of("admin_key")["value"], "(set)");
    assert!(
        !output.stdout.contains("secret") && !output.stdout.contains("0123456789"),
        "{}",
        output.stdout
    );
}

#[test]
fn a_server_on_a_public_address_needs_authentication() {
    let mut command = windlass();
    command.args(["server", "--bind", "0.0.0.0:0", "--auth", "off", "--store", "memory:"]);
    let output = run(command).expect(2);
    assert!(output.stderr.contains("without authentication"), "{output:?}");
    let mut command = windlass();
    command.args(["server", "--bind", "0.0.0.0:0", "--admin-key", "short", "--store", "memory:"]);
    let output = run(command).expect(2);
    assert!(output.stderr.contains("shorter than 32 characters"), "{output:?}");
}

const ADMIN_KEY: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn config_show_rejects_the_same_settings_as_the_server() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("empty.pem"), "").unwrap();
    let relay = "[[relays]]\nname = \"r\"\nurl = \"ftp://x/\"\n\
                 secret = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"\n";
    std::fs::write(folder.path().join("relay.toml"), relay).unwrap();
    let jwt = ["--auth", "jwt", "--jwt-issuer", "i", "--jwt-audience", "a"];
    for (args, expect) in [
        (&["--auth", "off", "--admin-key", ADMIN_KEY][..], "(flag --admin-key)"),
        (&["--auth", "keys", "--admin-key", "short"], "(flag --admin-key)"),
        (&["--auth", "jwt", "--jwt-key", "empty.pem"], "needs the setting jwt_issuer"),
        (&[&jwt[..], &["--jwt-key", "none.pem"]].concat(), "(flag --jwt-key)"),
        (&[&jwt[..], &["--jwt-key", "empty.pem"]].concat(), "not a valid key for RS256"),
        (&["--log", "windlass=loud"], "(flag --log)"),
        (&["--store", "mysql://me:secret@db/app"], "(flag --store)"),
        (&["--config", "relay.toml"], "failed to configure relay \"r\""),
    ] {
        for command in [&["config", "show"][..], &["server"]] {
            let mut windlass = windlass();
            windlass.current_dir(folder.path()).args(command).args(args);
            let output = run(windlass).expect(2);
            assert!(output.stderr.contains(expect), "{command:?} {args:?}: {output:?}");
            assert!(
                !output.stderr.contains("secret@") && !output.stderr.contains("012345"),
                "{output:?}"
            );
        }
    }
    assert!(!folder.path().join(".windlass").exists(), "a store was opened");
}

#[test]
fn unknown_variables_cause_a_warning() {
    let mut command = windlass();
    command.args(["config", "show"]).env("WINDLASS_STROE", "sqlite:x.db");
    command.env("WINDLASS_URL", "http://127.0.0.1:1/api");
    let output = run(command).expect(0);
    assert_eq!(
        output.stderr.trim(),
        "warning: ignoring the unknown environment variable WINDLASS_STROE"
    );
}

#[test]
fn a_piped_log_has_no_colours_and_no_noise() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut command = windlass();
        command.current_dir(folder.path()).env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9");
        command.args([
            "server",
            "--auth",
            "off",
            "--bind",
            "127.0.0.1:0",
            "--store",
            "sqlite:app.db",
        ]);
        let server = Server::spawn(command);
        let log = server.banner.join("\n");
        for noise in ["\u{1b}", "refinery", "opentelemetry", "schema"] {
            assert!(!log.contains(noise), "{noise:?}: {log}");
        }
        assert!(log.contains("listening on"), "{log}");
        // After the first response the signal handlers are installed.
        server.run(&["workflows", "list"]).expect(0);
        assert_eq!(server.terminate(), Some(0));
    }
}

/// The status of a response, or `None` without a response.
fn status(request: reqwest::RequestBuilder) -> Option<u16> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async { Some(request.send().await.ok()?.status().as_u16()) })
}

#[test]
fn http_settings_take_effect() {
    let client = http_client();
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
        while began.elapsed() < TEST_TIMEOUT && seen.last() != Some(&None) {
            seen.push(ready());
        }
        assert!(seen.contains(&Some(503)), "/readyz must fail before the server stops: {seen:?}");
        assert_eq!(stopping.join().unwrap(), Some(0));
    }
}
