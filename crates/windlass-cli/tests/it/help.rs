//! Help, completions and man pages: enough to find one's way without a page of docs.

use crate::support::say;

#[test]
fn every_command_explains_itself_with_examples() {
    for (args, expect) in [
        (&["--help"][..], &["Examples:", "windlass why", "Exit codes:", "WINDLASS_URL"][..]),
        (&["runs", "--help"], &["pause", "send-event", "watch", "--url", "-H"]),
        (&["runs", "create", "--help"], &["--params", "@order.json", "--wait", "exit code"]),
        (&["instances", "list", "--help"], &["--status", "possible values", "--label"]),
        (&["server", "--help"], &["--store", "flag wins over the environment"]),
        (&["verify", "--help"], &["--anchor", "Ends with 1"]),
    ] {
        let said = say(args).expect(0);
        for text in expect {
            assert!(said.out.contains(text), "{args:?}: {text:?} is not in {}", said.out);
        }
    }
}

#[test]
fn help_fits_a_terminal() {
    let said = say(&["docs"]).expect(0);
    let wide: Vec<&str> = said.out.lines().filter(|line| line.chars().count() > 110).collect();
    assert!(wide.is_empty(), "{wide:#?}");
}

#[test]
fn completions_name_the_commands() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let said = say(&["completions", shell]).expect(0);
        assert!(said.out.contains("send-event"), "{shell}");
    }
}

#[test]
fn there_is_a_man_page_for_each_command() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("man");
    say(&["man", "--out", out.to_str().unwrap()]).expect(0);
    for page in ["windlass.1", "windlass-runs.1", "windlass-runs-create.1", "windlass-why.1"] {
        let text = std::fs::read_to_string(out.join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
}

#[test]
fn every_page_that_does_something_has_an_example_or_needs_none() {
    // What takes no more than the name of one thing, or nothing at all.
    let plain = ["list", "get", "delete", "pause", "resume", "stats", "health"];
    let said = say(&["docs"]).expect(0);
    let pages = said.out.split("\n## ").skip(1).filter(|page| page.starts_with("windlass "));
    for page in pages.filter(|page| !page.contains("\nCommands:\n")) {
        let name = page.lines().next().unwrap();
        let last = name.rsplit(' ').next().unwrap();
        assert!(page.contains("\nExamples:\n") || plain.contains(&last), "{name} has no example");
    }
}
