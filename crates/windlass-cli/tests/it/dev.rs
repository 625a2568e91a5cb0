//! From an empty directory to a completed sample run, with only the commands that `windlass dev`
//! prints.

use std::process::Command;

use crate::support::{Server, run, wait_until, windlass};

#[test]
fn the_printed_commands_work_in_an_empty_directory() {
    let folder = tempfile::tempdir().unwrap();
    let mut dev = windlass();
    // Another process may use the default port.
    dev.current_dir(folder.path()).args(["dev", "--port", "0"]);
    let server = Server::spawn(dev);
    let commands: Vec<&str> = server
        .banner
        .iter()
        .map(|line| line.trim())
        .filter(|line| line.contains(" runs "))
        .collect();
    assert_eq!(commands.len(), 4, "{:#?}", server.banner);
    let mut output = Vec::new();
    for command in commands {
        // Like a user who pastes the command into a shell in another directory.
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).env_remove("WINDLASS_URL").env_remove("WINDLASS_KEY");
        output.push(run(shell).expect(0));
    }
    assert_eq!(output[0].stdout.trim(), "\"HELLO, WORLD!\"");
    assert_eq!(output[1].stdout.trim(), "\"You said: Who are you?\"");
    assert_eq!(output[2].stdout.trim(), "order/order-1");
    wait_until("the order is shipped", || {
        let received = server.run(&["runs", "get", "order/order-1", "-o", "json"]).expect(0).json();
        received["details"]["output"] == "shipped 1 lamp"
    });
    assert!(folder.path().join(".windlass/windlass.db").exists());
    assert_eq!(server.terminate(), Some(0));
    // The second start prints an unused order id.
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
fn dev_is_the_default_command_and_accepts_its_options() {
    let folder = tempfile::tempdir().unwrap();
    let mut plain = windlass();
    plain.current_dir(folder.path()).args(["--ephemeral", "--port", "0"]);
    let server = Server::spawn(plain);
    let listed = server.run(&["workflows", "list", "-o", "json"]).expect(0).json();
    let names: Vec<&str> = listed["workflows"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| row["name"].as_str())
        .collect();
    for name in ["hello", "order", "flaky", "fan-out", "expense", "parcel", "ask"] {
        assert!(names.contains(&name), "{names:?}");
    }
    drop(server);
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none(), "files were written");
}

#[test]
fn dev_uses_the_next_free_port() {
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
fn dev_uses_the_given_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", folder.path().join("try.db").display());
    let dev = || {
        let mut dev = windlass();
        dev.current_dir(folder.path()).args(["dev", "--port", "0", "--store", &store]);
        Server::spawn(dev)
    };
    let server = dev();
    assert!(server.banner.iter().any(|line| line.contains("try.db")), "{:#?}", server.banner);
    server.run(&["runs", "create", "fan-out/f-1", "--wait"]).expect(0);
    assert_eq!(server.terminate(), Some(0));
    let server = dev();
    let output = server.run(&["runs", "get", "fan-out/f-1"]).expect(0);
    assert!(output.stdout.contains("complete"), "{output:?}");
    assert!(!folder.path().join(".windlass").exists());
    let mut both = windlass();
    both.args(["dev", "--ephemeral", "--store", &store]);
    run(both).expect(2);
}

#[test]
fn dev_starts_a_scripted_provider_of_language_models() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script.json");
    std::fs::write(&script, r#"{ "rules": [{ "answer": { "text": "from the script" } }] }"#)
        .unwrap();
    let mut dev = windlass();
    dev.args(["dev", "--ephemeral", "--port", "0", "--scripted-llm"]).arg(&script);
    let server = Server::spawn(dev);
    assert!(server.banner.iter().any(|line| line.contains("(scripted, ")), "{:#?}", server.banner);
    let output = server.run(&["runs", "create", "ask", "--params", "{}", "--wait"]).expect(0);
    assert_eq!(output.stdout.trim(), "\"from the script\"");
    drop(server);
    std::fs::write(&script, r#"{ "rules": [{}] }"#).unwrap();
    let mut dev = windlass();
    dev.args(["dev", "--ephemeral", "--port", "0", "--scripted-llm"]).arg(&script);
    let output = run(dev).expect(1);
    assert!(output.stderr.contains("rule 0"), "{output:?}");
}
