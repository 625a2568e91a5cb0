//! `windlass events` against a real server.

use crate::support::{Server, sqlite_in};

#[test]
fn an_event_is_sent_to_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&sqlite_in(folder.path(), "app.db"));
    let send =
        |rest: &[&str]| server.run(&[&["events", "send", "scanned", "parcel-17"], rest].concat());
    let event = ["--payload", "{\"place\":\"Oslo\"}", "--event-id", "scan-1", "--ttl", "2h"];
    let output = send(&event).expect(0);
    let expect = "event \"scanned\" sent to key \"parcel-17\": 0 waiting runs got it, kept until ";
    assert!(output.stdout.starts_with(expect), "{output:?}");
    let again = send(&event).expect(0);
    assert!(again.stdout.contains("has this event of type \"scanned\" already"), "{again:?}");
    let json = send(&["-o", "json"]).expect(0).json();
    assert_eq!((&json["delivered"], &json["repeated"]), (&0.into(), &false.into()));
    let output = send(&["--payload", "1", "--event-id", "scan-1"]).expect(1);
    assert!(output.stderr.contains("EVENT_ID_ALREADY_EXISTS"), "{output:?}");
    let output = send(&["--payload", "Oslo"]).expect(2);
    assert!(output.stderr.contains("--payload is not JSON"), "{output:?}");
}
