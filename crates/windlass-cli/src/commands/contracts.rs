//! `windlass contracts`: works on files, without a server or a store; `online` calls a server.

mod online;
pub(crate) mod serve;

use std::path::Path;

use serde_json::{Value, json};
use windlass_contracts::compile::{
    self, BYTES_MAX, Origin, default_definition, read_contract, read_definition,
};
use windlass_contracts::diagnostic::Diagnostic;
use windlass_contracts::diff::{diff, mermaid};
use windlass_contracts::envelope::generate;
use windlass_contracts::simulate::{Scenario, Simulation, simulate};
use windlass_contracts::source;
use windlass_contracts::tokens::Status;
use windlass_contracts::types::{CompiledWorkflow, LifecycleContract, OrgWorkflowDefinition};

use crate::args::{ContractsCommand, FilesArgs};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Out, sanitize};

pub(super) async fn run(command: ContractsCommand) -> Outcome {
    match command {
        ContractsCommand::Check(args) => check(&args),
        ContractsCommand::Compile(args) => print_artefacts(&args),
        ContractsCommand::Diff { args, mermaid } => print_diffs(&args, mermaid),
        ContractsCommand::Simulate(args) => print_simulations(&args, false),
        ContractsCommand::Explain(args) => print_simulations(&args, true),
        ContractsCommand::Online(command) => online::run(command).await,
    }
}

/// The content of a file.
enum Content {
    Contract(Box<LifecycleContract>),
    Definition(OrgWorkflowDefinition),
    Scenario(Box<Scenario>),
    /// It is verified when it is read.
    Artefact,
}

struct File {
    name: String,
    /// Which content the file has, or was meant to have.
    kind: &'static str,
    text: String,
    content: Result<Content, Diagnostic>,
}

/// The most bytes of a file: an artefact is larger than its definition.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

fn read_all(args: &FilesArgs) -> Result<Vec<File>, Failure> {
    let mut files = Vec::new();
    for path in &args.files {
        files.extend(read_file(path)?);
    }
    Ok(files)
}

fn read_file(path: &Path) -> Result<Vec<File>, Failure> {
    let name = path.display().to_string();
    let fail = |error: std::io::Error| Failure::error(format!("failed to read {name}: {error}"));
    let size = std::fs::metadata(path).map_err(fail)?.len();
    if size > FILE_BYTES_MAX {
        let message = format!("{name} has {size} bytes, the limit is {FILE_BYTES_MAX}");
        return Err(Failure::error(message));
    }
    let text = std::fs::read_to_string(path).map_err(fail)?;
    let shape: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    // A template has a contract and a definition in one file.
    if let (Some(contract), Some(definition)) = (shape.get("contract"), shape.get("definition")) {
        source::read(&text, BYTES_MAX).map_err(|problem| Failure::error(problem.to_string()))?;
        let contract = pretty(contract);
        let definition = pretty(definition);
        return Ok(vec![
            File {
                name: format!("{name}#/contract"),
                kind: "contract",
                content: read_contract(&contract).map(Box::new).map(Content::Contract),
                text: contract,
            },
            File {
                name: format!("{name}#/definition"),
                kind: "definition",
                content: read_definition(&definition).map(Content::Definition),
                text: definition,
            },
        ]);
    }
    let has = |key: &str| shape.get(key).is_some();
    let (kind, content) = if has("compilerVersion") {
        ("artefact", compile::load(text.as_bytes()).map(|_| Content::Artefact))
    } else if has("baseRef") {
        ("definition", read_definition(&text).map(Content::Definition))
    } else if has("document") {
        ("scenario", Scenario::read(&text).map(|scenario| Content::Scenario(Box::new(scenario))))
    } else {
        ("contract", read_contract(&text).map(Box::new).map(Content::Contract))
    };
    Ok(vec![File { name, kind, text, content }])
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// A contract and its definition, compiled.
struct Compiled<'a> {
    /// The file of the definition, or of the contract whose defaults were compiled.
    name: String,
    contract: &'a LifecycleContract,
    artefact: CompiledWorkflow,
}

/// Compiles one definition. The error names the file that has the problems.
fn compile_one<'a>(
    file: &'a File,
    from: &'a File,
    contract: &LifecycleContract,
    definition: &OrgWorkflowDefinition,
) -> Result<(&'a File, CompiledWorkflow), (&'a File, Vec<Diagnostic>)> {
    match compile::compile(contract, definition) {
        Ok(artefact) => Ok((file, artefact)),
        Err(error) if error.origin == Origin::Contract => Err((from, error.problems)),
        Err(error) => Err((file, error.problems)),
    }
}

/// The problems of one file.
struct Found<'a> {
    file: &'a File,
    problems: Vec<Diagnostic>,
}

/// Compiles every definition against the contract of its type, and a contract without a definition
/// by itself.
fn compile_all(files: &[File]) -> (Vec<Compiled<'_>>, Vec<Found<'_>>) {
    let contracts: Vec<(&File, &LifecycleContract)> = files
        .iter()
        .filter_map(|file| match &file.content {
            Ok(Content::Contract(contract)) => Some((file, &**contract)),
            _ => None,
        })
        .collect();
    let (mut compiled, mut found) = (Vec::new(), Vec::new());
    for file in files {
        let result = match &file.content {
            Err(problem) => Err((file, vec![problem.clone()])),
            Ok(Content::Contract(contract)) => {
                let used = files.iter().any(|file| matches!(&file.content,
                    Ok(Content::Definition(one)) if one.base_ref.entity_type == contract.entity_type));
                if used {
                    continue;
                }
                compile_one(file, file, contract, &default_definition(contract))
                    .map(|(file, artefact)| (file, &**contract, artefact))
            }
            Ok(Content::Definition(definition)) => {
                let own = |(_, contract): &&(&File, &LifecycleContract)| {
                    contract.entity_type == definition.base_ref.entity_type
                };
                match contracts.iter().find(own).or(contracts.first()) {
                    Some((from, contract)) => compile_one(file, from, contract, definition)
                        .map(|(file, artefact)| (file, *contract, artefact)),
                    None => Err((file, vec![no_contract(definition)])),
                }
            }
            Ok(Content::Scenario(_) | Content::Artefact) => continue,
        };
        match result {
            Ok((file, contract, artefact)) => {
                compiled.push(Compiled { name: file.name.clone(), contract, artefact });
            }
            Err((file, problems)) => found.push(Found { file, problems }),
        }
    }
    (compiled, found)
}

fn no_contract(definition: &OrgWorkflowDefinition) -> Diagnostic {
    let name = &definition.base_ref.entity_type;
    Diagnostic::new(
        windlass_contracts::codes::CONTRACT_UNKNOWN,
        format!("there is no contract of the type {name:?} among the files"),
    )
    .at("/baseRef/entityType")
    .help("add the file of the contract to the command line")
}

fn check(args: &FilesArgs) -> Outcome {
    let files = read_all(args)?;
    let out = Out::new(args.output.output);
    let (_, found) = compile_all(&files);
    let problems = |file: &File| -> Vec<&Diagnostic> {
        let own = found.iter().filter(|one| one.file.name == file.name);
        own.flat_map(|one| &one.problems).collect()
    };
    let row = |file: &File| {
        let problems = problems(file);
        json!({"file": file.name, "kind": file.kind, "ok": problems.is_empty(), "problems": problems})
    };
    let rows: Vec<Value> = files.iter().map(row).collect();
    if out.is_text() {
        for file in &files {
            let problems = problems(file);
            let mark = out.check_mark(problems.is_empty());
            out.line(&format!("{mark} {} ({})", file.name, file.kind))?;
            for problem in problems {
                show(out, file, problem)?;
            }
        }
    } else {
        out.list(&json!({"files": rows}), "files")?;
    }
    Ok(if found.is_empty() { Exit::Ok } else { Exit::Error })
}

fn show(out: Out, file: &File, problem: &Diagnostic) -> Result<(), Failure> {
    let source = (file.name.as_str(), file.text.as_str());
    out.line(&sanitize(problem.render(Some(source)).trim_end()))
}

/// Compiles all files and fails with the first problem.
fn compiled(files: &[File], out: Out) -> Result<Vec<Compiled<'_>>, Failure> {
    let (compiled, found) = compile_all(files);
    if let Some(one) = found.first() {
        if out.is_text() {
            for problem in &one.problems {
                show(out, one.file, problem)?;
            }
        }
        let code = one.problems.first().map_or("CONTRACT_SHAPE", |problem| problem.code.as_str());
        let count = one.problems.len();
        let first = one.problems.first().map(ToString::to_string).unwrap_or_default();
        let message = format!("{} has {count} problems; the first one: {first}", one.file.name);
        let hint = "`windlass contracts check` shows all problems";
        return Err(Failure::error(message).with_code(code).with_hint(hint));
    }
    if compiled.is_empty() {
        return Err(Failure::usage("no file is a contract or a definition"));
    }
    Ok(compiled)
}

fn print_artefacts(args: &FilesArgs) -> Outcome {
    let files = read_all(args)?;
    let out = Out::new(args.output.output);
    for one in compiled(&files, out)? {
        let bytes =
            one.artefact.to_json().map_err(|problem| Failure::error(problem.to_string()))?;
        // The stored form is printed as it is, so that its hash can be checked.
        out.line(&String::from_utf8_lossy(&bytes))?;
    }
    Ok(Exit::Ok)
}

fn print_diffs(args: &FilesArgs, chart: bool) -> Outcome {
    let files = read_all(args)?;
    let out = Out::new(args.output.output);
    let mut rows = Vec::new();
    for one in compiled(&files, out)? {
        if chart {
            out.line(mermaid(&one.artefact).trim_end())?;
            continue;
        }
        let envelope = generate(one.contract)
            .map_err(|problems| Failure::error(format!("the contract is broken: {problems:?}")))?;
        let found = diff(&envelope, &one.artefact);
        if out.is_text() {
            out.line(&sanitize(found.to_string().trim_end()))?;
        }
        rows.push(json!({"file": one.name, "diff": found}));
    }
    if !chart {
        out.list(&json!({"diffs": rows}), "diffs")?;
    }
    Ok(Exit::Ok)
}

fn print_simulations(args: &FilesArgs, explain: bool) -> Outcome {
    let files = read_all(args)?;
    let out = Out::new(args.output.output);
    let compiled = compiled(&files, out)?;
    let mut rows = Vec::new();
    let mut exit = Exit::Ok;
    for file in &files {
        let Ok(Content::Scenario(scenario)) = &file.content else { continue };
        for one in &compiled {
            let result = simulate(&one.artefact, scenario)
                .map_err(|problem| Failure::error(problem.to_string()))?;
            if result.status == Status::Failed || result.stuck.is_some() {
                exit = Exit::Error;
            }
            if out.is_text() {
                print_one(out, &format!("{} with {}", file.name, one.name), &result, explain)?;
            }
            let mut row = json!({"scenario": file.name, "definition": one.name});
            row["result"] = json!(result);
            if !explain && let Some(fields) = row["result"].as_object_mut() {
                fields.remove("steps");
            }
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return Err(Failure::usage("no file is a scenario")
            .with_hint("a scenario is a JSON file such as {\"document\": {\"total\": 100}}"));
    }
    out.list(&json!({"simulations": rows}), "simulations")?;
    Ok(exit)
}

fn print_one(out: Out, name: &str, result: &Simulation, explain: bool) -> Result<(), Failure> {
    let status = format!("{:?}", result.status).to_lowercase();
    out.line(&format!("{}: {} in state {}", out.bold(&sanitize(name)), status, result.state))?;
    for asked in &result.asked {
        let people = match (&asked.people, &asked.problem) {
            (Some(people), _) => {
                let names: Vec<&str> = people.asked.iter().map(|one| one.person.as_str()).collect();
                names.join(", ")
            }
            (None, Some(problem)) => problem.to_string(),
            (None, None) => json!(asked.request.approvers).to_string(),
        };
        let verdict = format!("{:?}", asked.verdict).to_lowercase();
        let line =
            format!("  asks {} (version {}): {people}: {verdict}", asked.node, asked.version);
        out.line(&sanitize(&line))?;
    }
    for held in &result.obligations {
        out.line(&sanitize(&format!("  obligation {} is met by {}", held.id, held.by)))?;
    }
    if explain {
        for step in &result.steps {
            let edges = step.chosen_edge_ids.as_ref().map(|ids| ids.join(", ")).unwrap_or_default();
            let status = format!("{:?}", step.status).to_lowercase();
            out.line(&sanitize(&format!("  {} {status} {} -> {edges}", step.seq, step.node)))?;
            if !step.output.is_null() {
                out.line(&sanitize(&format!("      {}", step.output)))?;
            }
        }
    } else {
        out.line(&sanitize(&format!("  path {}", result.path.join(" -> "))))?;
    }
    if let Some(reason) = &result.stuck {
        out.line(&sanitize(&format!("  stuck: {reason}")))?;
    }
    if let Some(failure) = &result.failure {
        let text = |key: &str| failure.get(key).and_then(Value::as_str).unwrap_or_default();
        let line = format!("  failed: {} [{}]; {}", text("message"), text("code"), text("help"));
        out.line(&sanitize(&line))?;
    }
    Ok(())
}
