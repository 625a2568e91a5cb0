//! The server with JWT authentication.

use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::Ed25519KeyPair;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use crate::support::{Server, run, sqlite_in, windlass};

/// Keys that exist only for these tests.
const ISSUER: &str = include_str!("keys/issuer.pem");
const STRANGER: &str = include_str!("keys/other.pem");

fn now() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()
}

/// Creates a valid token that `change` can modify.
fn token(pem: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut claims = json!({
        "iss": "https://issuer.example", "aud": "windlass", "sub": "ada",
        "exp": now() + 600, "nbf": now() - 10, "namespace": "default",
        "scope": "read create manage",
    });
    change(&mut claims);
    // Issuers set a key id, even if the server has only one key.
    let header = json!({ "typ": "JWT", "alg": "EdDSA", "kid": "2026-01" });
    let encode = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
    let signed = format!("{}.{}", encode(&header), encode(&claims));
    let key = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).unwrap();
    let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(key.secret_pkcs8_der()).unwrap();
    let signature = URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

fn start(folder: &Path) -> Server {
    Server::spawn(serving(folder))
}

fn serving(folder: &Path) -> Command {
    let key = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/keys/issuer.pub.pem");
    let mut command = windlass();
    command.args(["server", "--samples", "--bind", "127.0.0.1:0", "--log", "error"]);
    command.args(["--store", &sqlite_in(folder, "jwt.db"), "--auth", "jwt"]);
    command.args(["--jwt-issuer", "https://issuer.example", "--jwt-audience", "windlass"]);
    command.args(["--jwt-algorithm", "EdDSA", "--jwt-key"]).arg(key);
    command
}

#[test]
fn a_valid_token_grants_its_scopes_and_other_tokens_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    let with = |token: &str, args: &[&str]| {
        let header = format!("authorization: Bearer {token}");
        let mut all = args.to_vec();
        all.extend(["-H", &header]);
        server.run(&all)
    };
    let create = ["runs", "create", "hello", "--id", "j1", "--params", "\"you\"", "--wait"];
    with(&token(ISSUER, |_| ()), &create).expect(0);

    let list: &[&str] = &["runs", "list", "--workflow", "hello", "-o", "json"];
    let listed = with(&token(ISSUER, |_| ()), list).expect(0);
    assert!(listed.stdout.contains("\"j1\""), "{}", listed.stdout);
    let elsewhere = with(&token(ISSUER, |claims| claims["namespace"] = "other".into()), list);
    assert!(
        !elsewhere.stdout.contains("\"j1\""),
        "the run is visible in another namespace: {}",
        elsewhere.stdout
    );

    let reader = token(ISSUER, |claims| claims["scope"] = "read".into());
    let refused = with(&reader, &["runs", "create", "hello", "--params", "\"you\""]).expect(6);
    assert!(refused.stderr.contains("create"), "{refused:?}");

    server.run(list).expect(6);
    for (what, bad) in [
        ("signed with another key", token(STRANGER, |_| ())),
        ("expired", token(ISSUER, |claims| claims["exp"] = (now() - 3_600).into())),
        ("not valid yet", token(ISSUER, |claims| claims["nbf"] = (now() + 3_600).into())),
        ("another issuer", token(ISSUER, |claims| claims["iss"] = "https://else.example".into())),
        ("another audience", token(ISSUER, |claims| claims["aud"] = "somebody".into())),
        ("without a namespace", token(ISSUER, |claims| claims["namespace"] = Value::Null)),
        ("not a token", "not.a.token".to_owned()),
    ] {
        let output = with(&bad, list);
        assert_eq!(output.code, 6, "{what}: {output:?}");
    }
}

#[test]
fn a_short_secret_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    for (secret, expect) in [("", "has 0 bytes"), ("  too-short \n", "has 9 bytes")] {
        let key = folder.path().join("secret");
        std::fs::write(&key, secret).unwrap();
        let mut command = windlass();
        command.args(["server", "--bind", "127.0.0.1:0", "--store", "memory:", "--auth", "jwt"]);
        command.args(["--jwt-issuer", "i", "--jwt-audience", "a", "--jwt-algorithm", "HS256"]);
        command.arg("--jwt-key").arg(&key);
        let output = run(command).expect(2);
        assert!(output.stderr.contains(expect), "{output:?}");
    }
}

#[test]
fn the_namespace_claim_is_configurable() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = serving(folder.path());
    command.args(["--jwt-namespace-claim", "tenant"]);
    let server = Server::spawn(command);
    let list = |token: String| {
        let header = format!("authorization: Bearer {token}");
        server.run(&["runs", "list", "-H", &header]).code
    };
    assert_eq!(list(token(ISSUER, |claims| claims["tenant"] = "shop".into())), 0);
    assert_eq!(list(token(ISSUER, |_| ())), 6, "the default claim must be ignored");
}
