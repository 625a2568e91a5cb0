//! Runs that are named by the key of one generation.

use crate::support::{Server, until};

#[test]
fn a_key_of_an_older_generation_is_read_and_not_acted_on() {
    let server = Server::start("memory:");
    let newest = || server.say(&["runs", "get", "order/o-1", "-o", "json"]).expect(0).json();
    let key = || newest()["meta"]["runKey"].as_str().unwrap().to_owned();
    server.say(&["runs", "create", "order/o-1"]).expect(0);
    let old = key();
    until("it has written a log line", || {
        server.say(&["runs", "logs", &old]).expect(0).out.contains("charged")
    });
    server.say(&["runs", "restart", "order/o-1"]).expect(0);
    until("it is begun again", || newest()["meta"]["runNumber"] == 1);
    let new = key();
    assert_ne!(old, new);

    let json = |args: &[&str]| server.say(&[args, &["-o", "json"]].concat()).expect(0).json();
    let got = json(&["runs", "get", &old]);
    assert_eq!((&got["meta"]["runNumber"], &got["meta"]["runKey"]), (&0.into(), &(*old).into()));
    assert_eq!(got["details"]["status"], "terminated");
    assert_eq!(json(&["runs", "history", &old])["runNumber"], 0);
    assert_eq!(json(&["runs", "history", &new])["runNumber"], 1);
    assert_eq!(json(&["runs", "logs", &old])["runNumber"], 0);
    let events = json(&["runs", "events", &old]);
    let events = events["events"].as_array().unwrap();
    assert!(!events.is_empty() && events.iter().all(|event| event["runKey"] == *old));
    let said = server.say(&["why", &old]).expect(0);
    assert!(said.out.contains("terminated: it has ended"), "{said:?}");
    let said = server.say(&["runs", "history", &old, "--run", "1"]).expect(2);
    assert!(said.err.contains("is generation 0"), "{said:?}");
    // What it waited for before it was ended is over.
    let said = server.say(&["runs", "history", &old]).expect(0);
    assert!(!said.out.contains("wakes"), "{said:?}");

    for args in [
        &["runs", "terminate", &old][..],
        &["runs", "pause", &old],
        &["runs", "restart", &old],
        &["runs", "cancel", &old],
        &["runs", "send-event", &old, "--type", "approval"],
        &["runs", "watch", &old],
    ] {
        let said = server.say(args).expect(1);
        assert!(said.err.contains(&format!("the newest is 1, {new}")), "{args:?}: {said:?}");
    }
    assert_eq!(key(), new);
    let status = newest()["details"]["status"].clone();
    assert!(status == "waiting" || status == "active", "{status}");
    server.say(&["runs", "terminate", &new]).expect(0);
    until("the newest is ended", || newest()["details"]["status"] == "terminated");
}
