//! `windlass config show`, and what a server refuses to start with.

use crate::support::{run, windlass};

#[test]
fn settings_are_shown_with_where_they_come_from() {
    let folder = tempfile::tempdir().unwrap();
    let file = "store = \"postgres://app:secret@db/app\"\ndrain = \"1 minute\"\nlog = \"warn\"\n";
    std::fs::write(folder.path().join("windlass.toml"), file).unwrap();
    let mut command = windlass();
    command.current_dir(folder.path()).env("WINDLASS_DRAIN", "5 seconds");
    command.args(["config", "show", "--log", "debug"]);
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
    assert!(!said.out.contains("secret"), "{}", said.out);
    let mut command = windlass();
    command.current_dir(folder.path()).env("WINDLASS_ADMIN_KEY", "0123456789abcdef");
    command.args(["config", "show", "-o", "json"]);
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
