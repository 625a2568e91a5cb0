//! From an empty folder to a finished sample run, following only what `windlass dev` prints.

use std::process::Command;

use crate::support::{Server, run, until, windlass};

#[test]
fn an_empty_folder_and_the_three_commands_that_are_printed() {
    let folder = tempfile::tempdir().unwrap();
    let mut dev = windlass();
    // A port that is free: the usual one may be somebody's.
    dev.current_dir(folder.path()).args(["dev", "--port", "0"]);
    let server = Server::spawn(dev);
    let commands: Vec<&str> = server
        .banner
        .iter()
        .map(|line| line.trim())
        .filter(|line| line.contains(" runs "))
        .collect();
    assert_eq!(commands.len(), 3, "{:#?}", server.banner);
    let mut said = Vec::new();
    for command in commands {
        // As a person pastes it: into a shell, somewhere else.
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).env_remove("WINDLASS_URL").env_remove("WINDLASS_KEY");
        said.push(run(shell).expect(0));
    }
    assert_eq!(said[0].out.trim(), "\"HELLO, WORLD!\"");
    assert_eq!(said[1].out.trim(), "order/order-1");
    until("the order is shipped", || {
        let got = server.say(&["runs", "get", "order/order-1", "-o", "json"]).expect(0).json();
        got["details"]["output"] == "shipped 1 lamp"
    });
    assert!(folder.path().join(".windlass/windlass.db").exists());
    assert_eq!(server.terminate(), Some(0));
    // What is printed at the second start can be pasted too.
    let mut dev = windlass();
    dev.current_dir(folder.path()).args(["dev", "--port", "0"]);
    let server = Server::spawn(dev);
    let create = server.banner.iter().find(|line| line.contains("runs create order/")).unwrap();
    assert!(create.contains("order/order-2"), "{create}");
    let mut shell = Command::new("sh");
    shell.args(["-c", create.trim()]).env_remove("WINDLASS_URL").env_remove("WINDLASS_KEY");
    run(shell).expect(0);
}

#[test]
fn without_a_command_it_is_dev_and_takes_its_options() {
    let folder = tempfile::tempdir().unwrap();
    let mut plain = windlass();
    plain.current_dir(folder.path()).args(["--ephemeral", "--port", "0"]);
    let server = Server::spawn(plain);
    let listed = server.say(&["workflows", "list", "-o", "json"]).expect(0).json();
    let names: Vec<&str> = listed["workflows"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| row["name"].as_str())
        .collect();
    for name in ["hello", "order", "flaky", "fan-out", "parcel"] {
        assert!(names.contains(&name), "{names:?}");
    }
    drop(server);
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none(), "something was kept");
}

#[test]
fn the_next_free_port_is_taken() {
    let taken: Vec<_> =
        (7878..7881).map(|port| std::net::TcpListener::bind(("127.0.0.1", port))).collect();
    let mut plain = windlass();
    plain.args(["dev", "--ephemeral"]);
    let server = Server::spawn(plain);
    let port: u16 =
        server.url.rsplit(':').next().unwrap().split('/').next().unwrap().parse().unwrap();
    drop(taken);
    assert!(port > 7880, "{}", server.url);
    assert!(server.banner.iter().any(|line| line.contains(&format!("--url {}", server.url))));
}

#[test]
fn the_state_is_kept_where_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", folder.path().join("try.db").display());
    let dev = || {
        let mut dev = windlass();
        dev.current_dir(folder.path()).args(["dev", "--port", "0", "--store", &store]);
        Server::spawn(dev)
    };
    let server = dev();
    assert!(server.banner.iter().any(|line| line.contains("try.db")), "{:#?}", server.banner);
    server.say(&["runs", "create", "fan-out/f-1", "--wait"]).expect(0);
    assert_eq!(server.terminate(), Some(0));
    let server = dev();
    let said = server.say(&["runs", "get", "fan-out/f-1"]).expect(0);
    assert!(said.out.contains("complete"), "{said:?}");
    assert!(!folder.path().join(".windlass").exists());
    let mut both = windlass();
    both.args(["dev", "--ephemeral", "--store", &store]);
    run(both).expect(2);
}
