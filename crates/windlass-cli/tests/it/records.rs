//! `windlass records` against a real server.

use std::io::Write as _;
use std::process::Stdio;

use serde_json::json;

use crate::support::{Server, sqlite_in};

fn start() -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&sqlite_in(folder.path(), "app.db"));
    (folder, server)
}

#[test]
fn the_life_of_a_record() {
    let (folder, server) = start();
    let put = |rest: &[&str]| server.run(&[&["records", "put", "carts", "c-7"], rest].concat());
    let output = put(&["{\"n\":12345678901234567890123}", "--create", "-t", "customer=ann"]);
    assert_eq!(output.expect(0).stdout.trim(), "carts/c-7 is written at revision 1");

    // The document is printed as it was written, and the rest goes to standard error.
    let output = server.run(&["records", "get", "carts", "c-7"]).expect(0);
    assert_eq!(output.stdout.trim(), "{\"n\":12345678901234567890123}");
    assert_eq!(output.stderr.trim(), "revision 1, terms customer=ann");

    let file = folder.path().join("cart.json");
    std::fs::write(&file, "{\"n\": 2}\n").unwrap();
    let at_file = format!("@{}", file.display());
    put(&[&at_file, "--if-revision", "1", "--keep", "--term", "state:a=b"]).expect(0);
    let full = server.run(&["records", "get", "carts", "c-7", "-o", "json"]).expect(0).json();
    assert_eq!((&full["revision"], &full["value"]), (&json!(2), &json!({ "n": 2 })));
    assert_eq!(full["terms"], json!([{ "name": "state", "value": "a=b" }]), "terms are replaced");

    let output = put(&["3", "--if-revision", "1"]).expect(1);
    for text in ["revision 1, but it has revision 2", "[RECORD_CONFLICT]", "records get carts c-7"]
    {
        assert!(output.stderr.contains(text), "{text}: {output:?}");
    }
    let output = put(&["3", "--create"]).expect(1);
    assert!(output.stderr.contains("not to exist, but it has revision 2"), "{output:?}");

    let mut command = server.command(&["records", "put", "carts", "c-7", "-", "--if-exists"]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"[-5]").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap().trim(),
        "carts/c-7 is written at revision 3"
    );

    let output = server.run(&["records", "collections"]).expect(0);
    // The samples have collections of the engine, which come after it.
    assert_eq!(output.stdout.lines().take(2).collect::<Vec<_>>(), ["COLLECTION", "carts"]);
    let output = server.run(&["receipts", "show", "c-7"]).expect(3);
    assert!(output.stderr.contains("[RECORD_NOT_FOUND]"), "{output:?}");
    server.run(&["receipts", "list", "order/o-1"]).expect(3);

    let output = server.run(&["records", "versions", "carts", "c-7"]).expect(0);
    let rows: Vec<_> = output.stdout.lines().collect();
    assert!(rows.len() == 2 && rows[1].starts_with('2') && rows[1].contains("sha256:"), "{rows:?}");
    let output = server.run(&["records", "get", "carts", "c-7", "--revision", "2"]).expect(0);
    assert_eq!(output.stdout.trim(), "{\"n\": 2}");
    let output = server.run(&["records", "get", "carts", "c-7", "--revision", "3"]).expect(3);
    assert!(output.stderr.contains("records versions carts c-7"), "{output:?}");

    server.run(&["records", "delete", "carts", "c-7", "--if-revision", "2"]).expect(1);
    let output = server.run(&["records", "delete", "carts", "c-7", "--if-revision", "3"]).expect(0);
    assert_eq!(output.stdout.trim(), "carts/c-7 is removed at revision 4");
    server.run(&["records", "delete", "carts", "c-7", "--if-exists"]).expect(3);
    let output = server.run(&["records", "get", "carts", "c-7"]).expect(3);
    assert!(output.stderr.contains("was removed at revision 4 [RECORD_NOT_FOUND]"), "{output:?}");
    let again = put(&["-6", "--create", "-o", "json"]).expect(0).json();
    assert_eq!(again, json!({ "collection": "carts", "id": "c-7", "revision": 5 }));
}

#[test]
fn records_are_listed_in_every_format() {
    let (_folder, server) = start();
    for (id, customer) in [("a/b %", "ann"), ("b", "bob"), ("c", "ann")] {
        let term = format!("customer={customer}");
        let document = "{\"n\":12345678901234567890123}";
        server.run(&["records", "put", "carts", id, document, "--create", "-t", &term]).expect(0);
    }
    let list =
        |rest: &[&str]| server.run(&[&["records", "list", "carts"], rest].concat()).expect(0);
    let output = list(&[]);
    for text in ["RECORD", "a/b %", "customer=bob", "{\"n\":12345678901234567890123}"] {
        assert!(output.stdout.contains(text), "{text}: {output:?}");
    }
    let output = list(&["--term", "customer=ann"]);
    assert!(output.stdout.contains("a/b %") && !output.stdout.contains("bob"), "{output:?}");
    let output = list(&["-o", "jsonl"]);
    assert_eq!(output.stdout.lines().count(), 3);
    assert_eq!(output.stdout.matches("12345678901234567890123").count(), 3, "{output:?}");
    let first = list(&["-n", "2", "-o", "json"]).json();
    assert_eq!(
        (first["records"].as_array().unwrap().len(), &first["hasNextPage"]),
        (2, &json!(true))
    );
    let rest = list(&["--cursor", first["cursor"].as_str().unwrap(), "-o", "json"]).json();
    assert_eq!((&rest["records"][0]["id"], &rest["hasNextPage"]), (&json!("c"), &json!(false)));
    let output = server.run(&["records", "list", "nothing"]).expect(0);
    assert_eq!((output.stdout.as_str(), output.stderr.trim()), ("", "no records"));
}

#[test]
fn bad_arguments_are_refused() {
    let (_folder, server) = start();
    for (args, code, text) in [
        (&["records", "put", "carts", "c", "1"][..], 2, "--create|--if-revision <N>|--if-exists"),
        (
            &["records", "put", "carts", "c", "1", "--create", "--if-exists"],
            2,
            "cannot be used with",
        ),
        (&["records", "delete", "carts", "c"], 2, "--if-revision <N>|--if-exists"),
        (&["records", "put", "carts", "c", "world", "--create"], 2, "the document is not JSON"),
        (&["records", "put", "carts", "c", "@/nothing", "--create"], 1, "failed to read /nothing"),
        (&["records", "put", "carts", "c", "1", "--create", "-t", "x"], 2, "is not NAME=VALUE"),
        (&["records", "put", "carts", "c", "1", "--create", "-t", "a b=c"], 1, "INVALID_TERM"),
        (&["records", "put", "carts", "c", "1", "--if-revision", "0"], 1, "INVALID_REVISION"),
        (&["records", "put", "windlass.x", "c", "1", "--create"], 1, "COLLECTION_RESERVED"),
        (&["records", "put", "a/b", "c", "1", "--create"], 1, "INVALID_NAME"),
        (&["records", "list", "carts", "-n", "0"], 2, "--limit is 0"),
        // These names would change the path of the URL, and so the route.
        (&["records", "get", "carts", ".."], 2, "\"..\" is not a name"),
        (&["records", "delete", "carts", "", "--if-exists"], 2, "\"\" is not a name"),
        (&["records", "get", ".", "c"], 2, "\".\" is not a name"),
    ] {
        let output = server.run(args).expect(code);
        assert!(output.stderr.contains(text), "{args:?}: {output:?}");
    }
    let all = server.run(&["records", "list", "carts", "-o", "json"]).expect(0).json();
    assert_eq!(all["records"], json!([]));
}
