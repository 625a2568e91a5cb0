//! The binary with tokens of an issuer in place of its own keys.

use std::path::Path;
use std::process::Command;

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use crate::support::{Server, run, sqlite_in, windlass};

/// Keys of an issuer that exists for these tests alone.
const ISSUER: &str = include_str!("keys/issuer.pem");
const STRANGER: &str = include_str!("keys/other.pem");

fn now() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()
}

/// A token that is good, but for what `change` does to it.
fn token(pem: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut claims = json!({
        "iss": "https://issuer.example", "aud": "windlass", "sub": "ada",
        "exp": now() + 600, "nbf": now() - 10, "namespace": "default",
        "scope": "read create manage",
    });
    change(&mut claims);
    let key = EncodingKey::from_ed_pem(pem.as_bytes()).unwrap();
    // As issuers do: the key is named, though the server has but one.
    let header = Header { kid: Some("2026-01".to_owned()), ..Header::new(Algorithm::EdDSA) };
    encode(&header, &claims, &key).unwrap()
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
fn a_token_of_the_issuer_opens_what_its_scopes_name_and_nothing_else_does() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    let with = |token: &str, args: &[&str]| {
        let header = format!("authorization: Bearer {token}");
        let mut all = args.to_vec();
        all.extend(["-H", &header]);
        server.say(&all)
    };
    let create = ["runs", "create", "hello", "--id", "j1", "--params", "\"you\"", "--wait"];
    with(&token(ISSUER, |_| ()), &create).expect(0);

    let list: &[&str] = &["runs", "list", "--workflow", "hello", "-o", "json"];
    let listed = with(&token(ISSUER, |_| ()), list).expect(0);
    assert!(listed.out.contains("\"j1\""), "{}", listed.out);
    let elsewhere = with(&token(ISSUER, |claims| claims["namespace"] = "other".into()), list);
    assert!(!elsewhere.out.contains("\"j1\""), "another namespace sees it: {}", elsewhere.out);

    let reader = token(ISSUER, |claims| claims["scope"] = "read".into());
    let refused = with(&reader, &["runs", "create", "hello", "--params", "\"you\""]).expect(6);
    assert!(refused.err.contains("create"), "{refused:?}");

    server.say(list).expect(6);
    for (what, bad) in [
        ("a stranger's key", token(STRANGER, |_| ())),
        ("an old one", token(ISSUER, |claims| claims["exp"] = (now() - 3_600).into())),
        ("one of tomorrow", token(ISSUER, |claims| claims["nbf"] = (now() + 3_600).into())),
        ("another issuer's", token(ISSUER, |claims| claims["iss"] = "https://else.example".into())),
        ("one for others", token(ISSUER, |claims| claims["aud"] = "somebody".into())),
        ("one without a namespace", token(ISSUER, |claims| claims["namespace"] = Value::Null)),
        ("no token at all", "not.a.token".to_owned()),
    ] {
        let said = with(&bad, list);
        assert_eq!(said.code, 6, "{what}: {said:?}");
    }
}

#[test]
fn a_secret_that_could_be_guessed_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (secret, expect) in [("", "has 0 bytes"), ("  too-short \n", "has 9 bytes")] {
        let key = folder.path().join("secret");
        std::fs::write(&key, secret).unwrap();
        let mut command = windlass();
        command.args(["server", "--bind", "127.0.0.1:0", "--store", "memory:", "--auth", "jwt"]);
        command.args(["--jwt-issuer", "i", "--jwt-audience", "a", "--jwt-algorithm", "HS256"]);
        command.arg("--jwt-key").arg(&key);
        let said = run(command).expect(2);
        assert!(said.err.contains(expect), "{said:?}");
    }
}

#[test]
fn another_claim_can_hold_the_namespace() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = serving(folder.path());
    command.args(["--jwt-namespace-claim", "tenant"]);
    let server = Server::spawn(command);
    let list = |token: String| {
        let header = format!("authorization: Bearer {token}");
        server.say(&["runs", "list", "-H", &header]).code
    };
    assert_eq!(list(token(ISSUER, |claims| claims["tenant"] = "shop".into())), 0);
    assert_eq!(list(token(ISSUER, |_| ())), 6, "the usual claim is not looked at");
}
