//! Help, completions and man pages.

use crate::support::run_cli;

#[test]
fn help_explains_commands_with_examples() {
    for (args, expect) in [
        (&["--help"][..], &["Examples:", "windlass why", "Exit codes:", "WINDLASS_URL"][..]),
        (&["runs", "--help"], &["pause", "send-event", "watch", "--url", "-H"]),
        (&["runs", "create", "--help"], &["--params", "@order.json", "--wait", "exit code"]),
        (&["instances", "list", "--help"], &["--status", "possible values", "--label"]),
        (&["server", "--help"], &["--store", "Flags override the environment"]),
        (&["verify", "--help"], &["--anchor", "The exit code is 1"]),
    ] {
        let output = run_cli(args).expect(0);
        for text in expect {
            assert!(
                output.stdout.contains(text),
                "{args:?}: {text:?} is missing in {}",
                output.stdout
            );
        }
    }
}

#[test]
fn help_fits_a_terminal() {
    let output = run_cli(&["docs"]).expect(0);
    let wide: Vec<&str> = output.stdout.lines().filter(|line| line.chars().count() > 110).collect();
    assert!(wide.is_empty(), "{wide:#?}");
}

#[test]
fn completions_name_the_commands() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let output = run_cli(&["completions", shell]).expect(0);
        assert!(output.stdout.contains("send-event"), "{shell}");
    }
}

#[test]
fn every_command_has_a_man_page() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("man");
    run_cli(&["man", "--out", out.to_str().unwrap()]).expect(0);
    for page in ["windlass.1", "windlass-runs.1", "windlass-runs-create.1", "windlass-why.1"] {
        let text = std::fs::read_to_string(out.join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
}

#[test]
fn every_command_with_arguments_has_an_example() {
    // Commands with no argument, or with a single name, need no example.
    let plain = ["list", "lanes", "get", "show", "delete", "pause", "resume", "stats", "health"];
    let output = run_cli(&["docs"]).expect(0);
    let pages = output.stdout.split("\n## ").skip(1).filter(|page| page.starts_with("windlass "));
    for page in pages.filter(|page| !page.contains("\nCommands:\n")) {
        let name = page.lines().next().unwrap();
        let last = name.rsplit(' ').next().unwrap();
        assert!(page.contains("\nExamples:\n") || plain.contains(&last), "{name} has no example");
    }
}
