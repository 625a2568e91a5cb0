//! Commands with the run key of one generation.

use crate::support::{Server, wait_until};

#[test]
fn an_older_generation_can_be_read_but_not_changed() {
    let server = Server::start("memory:");
    let newest = || server.run(&["runs", "get", "order/o-1", "-o", "json"]).expect(0).json();
    let key = || newest()["meta"]["runKey"].as_str().unwrap().to_owned();
    server.run(&["runs", "create", "order/o-1"]).expect(0);
    let old = key();
    wait_until("the run has written a log line", || {
        server.run(&["runs", "logs", &old]).expect(0).stdout.contains("charged")
    });
    server.run(&["runs", "restart", "order/o-1"]).expect(0);
    wait_until("the run is restarted", || newest()["meta"]["runNumber"] == 1);
    let new = key();
    assert_ne!(old, new);

    let json = |args: &[&str]| server.run(&[args, &["-o", "json"]].concat()).expect(0).json();
    let received = json(&["runs", "get", &old]);
    assert_eq!(
        (&received["meta"]["runNumber"], &received["meta"]["runKey"]),
        (&0.into(), &(*old).into())
    );
    assert_eq!(received["details"]["status"], "terminated");
    assert_eq!(json(&["runs", "get", "order/o-1", "--run", "0"])["meta"]["runKey"], *old);
    assert_eq!(json(&["runs", "get", "order/o-1", "--run", "1"])["meta"]["runKey"], *new);
    server.run(&["runs", "get", "order/o-1", "--run", "2"]).expect(3);
    server.run(&["runs", "get", &old, "--run", "1"]).expect(2);
    assert_eq!(json(&["runs", "history", &old])["runNumber"], 0);
    assert_eq!(json(&["runs", "history", &new])["runNumber"], 1);
    assert_eq!(json(&["runs", "logs", &old])["runNumber"], 0);
    let events = json(&["runs", "events", &old]);
    let events = events["events"].as_array().unwrap();
    assert!(!events.is_empty() && events.iter().all(|event| event["runKey"] == *old));
    let output = server.run(&["why", &old]).expect(0);
    assert!(output.stdout.contains("terminated: it has ended"), "{output:?}");
    let output = server.run(&["runs", "history", &old, "--run", "1"]).expect(2);
    assert!(output.stderr.contains("is generation 0"), "{output:?}");
    // A terminated generation waits for nothing.
    let output = server.run(&["runs", "history", &old]).expect(0);
    assert!(!output.stdout.contains("wakes"), "{output:?}");

    for args in [
        &["runs", "terminate", &old][..],
        &["runs", "pause", &old],
        &["runs", "restart", &old],
        &["runs", "cancel", &old],
        &["runs", "send-event", &old, "--type", "approval"],
        &["runs", "watch", &old],
    ] {
        let output = server.run(args).expect(1);
        assert!(output.stderr.contains(&format!("the newest is 1, {new}")), "{args:?}: {output:?}");
    }
    assert_eq!(key(), new);
    let status = newest()["details"]["status"].clone();
    assert!(status == "waiting" || status == "active", "{status}");
    server.run(&["runs", "terminate", &new]).expect(0);
    wait_until("the newest generation is terminated", || {
        newest()["details"]["status"] == "terminated"
    });
}
