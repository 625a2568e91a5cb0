//! The messages of the compiler for the common mistakes in `src/compile_tests.rs`. Each mistake is compiled
//! against the library that cargo built for this test. The table has the parts of the message that tell a
//! reader what to do, so that a new compiler may change the rest.

use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("../../src/compile_tests.rs");

const EXPECTED: &[(&str, &[&str])] = &[
    (
        "OwnErrorInStep",
        &["E0271", "expected `Result<u32, AnyError>`, found `Result<u32, ParseIntError>`"],
    ),
    ("ClosureInCall", &["E0283", "cannot infer type of the type parameter `E`", "Ok::<u32, E>(1)"]),
    ("BorrowedInput", &["E0283", "BorrowedTypesAreNotAllowedUseAnOwnedType", "engine.workflow("]),
    ("BorrowedOutput", &["E0283", "BorrowedTypesAreNotAllowedUseAnOwnedType", "engine.workflow("]),
    ("BorrowedStepResult", &["E0283", "BorrowedTypesAreNotAllowedUseAnOwnedType", "ctx.step("]),
    (
        "StepResultWithoutSerde",
        &[
            "E0277",
            "`Receipt` cannot be stored: it is no input, output or step result",
            "derive `serde::Serialize` and `serde::Deserialize`, and use owned types",
        ],
    ),
    ("ClosureWithoutInputType", &["E0283", "type annotations needed", "async |_, n| Ok(n)"]),
    ("WorkflowWithoutContext", &["E0593", "expected to take 2 arguments, but it takes 1 argument"]),
    (
        "ContextByReference",
        &["E0631", "expected function signature `fn(Ctx, _) -> _`", "does not borrow its argument"],
    ),
    (
        "BodyThatIsNotSend",
        &["future cannot be sent between threads safely", "has type `Rc<i32>` which is not `Send`"],
    ),
    ("TextAsError", &["E0277", "the trait `std::error::Error` is not implemented for `str`"]),
];

/// A block of `compile_tests.rs`, named after the type below it.
struct Block {
    name: String,
    fails: bool,
    code: String,
}

fn blocks() -> Vec<Block> {
    let mut blocks = Vec::new();
    let (mut fails, mut code, mut inside) = (false, String::new(), false);
    for line in SOURCE.lines() {
        let comment = line.strip_prefix("///").map(|text| text.strip_prefix(' ').unwrap_or(text));
        if let Some(tag) = comment.and_then(|text| text.strip_prefix("```")) {
            inside = !inside;
            if inside {
                (fails, code) = (tag == "compile_fail", String::new());
            }
        } else if let Some(text) = comment.filter(|_| inside) {
            code.push_str(text.strip_prefix("# ").unwrap_or(text));
            code.push('\n');
        } else if let Some(name) = line.strip_prefix("struct ") {
            let (name, code) = (name.trim_end_matches(';').to_owned(), std::mem::take(&mut code));
            blocks.push(Block { name, fails, code });
        }
    }
    blocks
}

/// The libraries that cargo built of a crate, the newest first.
fn libraries(directory: &Path, name: &str) -> Vec<PathBuf> {
    let prefix = format!("lib{name}-");
    let mut found: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| {
            let file = entry.file_name().into_string().unwrap();
            file.starts_with(&prefix) && file.ends_with(".rlib")
        })
        .map(|entry| (entry.metadata().unwrap().modified().unwrap(), entry.path()))
        .collect();
    found.sort();
    found.into_iter().rev().map(|(_, path)| path).collect()
}

/// The messages of the compiler, and whether it accepted the code.
fn compile(folder: &Path, code: &str, libraries: [(&str, &Path); 2]) -> (bool, String) {
    let file = folder.join("example.rs");
    std::fs::write(&file, code).unwrap();
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--edition=2024", "--crate-type=lib", "--emit=metadata", "--cap-lints=allow"]);
    rustc.arg("-o").arg(folder.join("example.rmeta")).arg(&file);
    for (name, path) in libraries {
        rustc.arg("--extern").arg(format!("{name}={}", path.display()));
        rustc.arg("-L").arg(format!("dependency={}", path.parent().unwrap().display()));
    }
    let output = rustc.output().expect("the compiler that cargo uses is in PATH");
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn common_mistakes_give_readable_messages() {
    let folder = tempfile::tempdir().unwrap();
    let directory = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let tokio = libraries(&directory, "tokio").into_iter().next().expect("tokio is a dependency");
    let blocks = blocks();
    let styles = blocks.iter().find(|block| block.name == "Styles").unwrap();
    // Libraries of earlier builds may lack features or their own dependencies.
    let built = libraries(&directory, "windlass");
    let windlass = built.iter().find(|library| {
        compile(folder.path(), &styles.code, [("windlass", library), ("tokio", &tokio)]).0
    });
    let windlass = windlass.expect("the library of this build compiles the example");
    let failing: Vec<&Block> = blocks.iter().filter(|block| block.fails).collect();
    let names: Vec<&str> = failing.iter().map(|block| &*block.name).collect();
    assert_eq!(names, EXPECTED.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    for (block, (name, parts)) in failing.iter().zip(EXPECTED) {
        let libraries = [("windlass", &**windlass), ("tokio", &*tokio)];
        let (accepted, messages) = compile(folder.path(), &block.code, libraries);
        assert!(!accepted, "{name} compiles");
        for part in *parts {
            assert!(messages.contains(part), "{name} does not say {part:?}:\n{messages}");
        }
    }
}
