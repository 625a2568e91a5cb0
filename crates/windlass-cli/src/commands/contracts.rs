//! `windlass contracts`: works on files, without a server or a store; `online` calls a server.

mod online;
mod schema;
pub(crate) mod serve;

use std::path::Path;

use serde_json::{Value, json};
use windlass_contracts::compile::{
    self, Origin, default_definition, read_contract, read_definition,
};
use windlass_contracts::diagnostic::Diagnostic;
use windlass_contracts::diff::{diff, mermaid};
use windlass_contracts::document::Validator;
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
        ContractsCommand::Schema { kind } => schema::print(kind),
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
    /// The path, as the user gave it.
    path: String,
    /// Which content the file has, or was meant to have.
    kind: &'static str,
    text: String,
    /// The place of the content in the text: a part of a template is not the whole file.
    pointer: &'static str,
    start: usize,
    content: Result<Content, Diagnostic>,
}

impl File {
    /// Moves a problem of the content to its place in the file.
    fn placed(&self, problem: Diagnostic) -> Diagnostic {
        if self.pointer.is_empty() {
            return problem;
        }
        let mut problem = problem.under(self.pointer);
        if let (None, Some(span)) = (&problem.place.expression, &mut problem.place.span) {
            span.start += self.start;
            span.end += self.start;
        }
        problem
    }
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
    if let (Some(contract), Some(definition)) =
        (source::locate(&text, "/contract"), source::locate(&text, "/definition"))
    {
        let part = |pointer: &'static str, kind, start, content| File {
            name: format!("{name}#{pointer}"),
            path: name.clone(),
            kind,
            text: text.clone(),
            pointer,
            start,
            content,
        };
        let read = read_contract(&text[contract.clone()]).map(Box::new).map(Content::Contract);
        let first = part("/contract", "contract", contract.start, read);
        let read = read_definition(&text[definition.clone()]).map(Content::Definition);
        return Ok(vec![first, part("/definition", "definition", definition.start, read)]);
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
    Ok(vec![File { path: name.clone(), name, kind, text, pointer: "", start: 0, content }])
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

/// Compiles every definition against the contract of its type and version, and a contract without a
/// definition by itself.
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
                let same = |one: &&(&File, &LifecycleContract)| {
                    own(one) && one.1.version == definition.base_ref.envelope_version
                };
                let found = contracts.iter().find(same).or_else(|| contracts.iter().find(own));
                match found.or(contracts.first()) {
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
            Err((file, problems)) => {
                let problems = problems.into_iter().map(|problem| file.placed(problem)).collect();
                // Several definitions can find the same problems in one contract.
                let new = Found { file, problems };
                if !found.iter().any(|one: &Found<'_>| {
                    one.file.name == file.name && one.problems == new.problems
                }) {
                    found.push(new);
                }
            }
        }
    }
    (compiled, found)
}

/// The problems of the default patches of contracts whose definitions replace them.
fn unused_defaults<'a>(files: &'a [File], found: &[Found<'a>]) -> Vec<Found<'a>> {
    let mut more = Vec::new();
    for file in files {
        let Ok(Content::Contract(contract)) = &file.content else { continue };
        if found.iter().any(|one| one.file.name == file.name) {
            continue;
        }
        if let Err((file, problems)) =
            compile_one(file, file, contract, &default_definition(contract))
        {
            let problems = problems.into_iter().map(|problem| file.placed(problem)).collect();
            more.push(Found { file, problems });
        }
    }
    more
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
    let (_, mut found) = compile_all(&files);
    let more = unused_defaults(&files, &found);
    found.extend(more);
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
    let source = (file.path.as_str(), file.text.as_str());
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
        let name = &one.file.name;
        let message = match count {
            1 => format!("{name} has a problem: {first}"),
            _ => format!("{name} has {count} problems; the first one: {first}"),
        };
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
            let problems = check_scenario(one.contract, scenario)?;
            if out.is_text() {
                for problem in &problems {
                    show(out, file, problem)?;
                }
            }
            let result = simulate(&one.artefact, scenario).map_err(|problem| {
                let message = format!("{}: {}", file.name, problem.message);
                let failure = Failure::error(message).with_code(problem.code.as_str());
                failure.or_hint(Some(problem.help))
            })?;
            if !problems.is_empty() {
                exit = Exit::Error;
            }
            if result.status == Status::Failed || result.stuck.is_some() {
                exit = Exit::Error;
            }
            if out.is_text() {
                print_one(out, &format!("{} with {}", file.name, one.name), &result, explain)?;
            }
            let mut row = json!({"scenario": file.name, "definition": one.name});
            row["problems"] = json!(problems);
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

/// Checks the values of a scenario against the schemas of the contract. The simulation goes on with a
/// document that does not fit, so that its effect is seen.
fn check_scenario(
    contract: &LifecycleContract,
    scenario: &Scenario,
) -> Result<Vec<Diagnostic>, Failure> {
    let broken = |problem: Diagnostic| Failure::error(problem.to_string());
    let document = Validator::new(&contract.schemas.document).map_err(broken)?;
    let mut found = document.check(&scenario.document).err().unwrap_or_default();
    found = found.into_iter().map(|problem| problem.under("/document")).collect();
    for (place, schema, value) in [
        ("/actor", &contract.schemas.actor, &scenario.actor),
        ("/org", &contract.schemas.org, &scenario.org),
    ] {
        if !value.is_null() {
            let problems = Validator::new(schema).map_err(broken)?.check(value);
            let problems = problems.err().unwrap_or_default();
            found.extend(problems.into_iter().map(|problem| problem.under(place)));
        }
    }
    Ok(found)
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
            (None, None) => match (&asked.request.approvers, &asked.request.chain) {
                (None, Some(chain)) => format!("the approval chain {chain}"),
                (approvers, _) => json!(approvers).to_string(),
            },
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
