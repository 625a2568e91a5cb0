//! Checks expressions, templates and decision tables of a contract against its schemas.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde_json::{Value, json};
use windlass_kernel::Sha256Digest;
use windlass_kernel::canonical::to_canonical;

use crate::codes::{
    CONTRACT_DUPLICATE, CONTRACT_LIFECYCLE, CONTRACT_SCHEMA, CONTRACT_UNKNOWN, NODE_CONFIG,
    WORKFLOW_EVALUATION,
};
use crate::compile::{Error, Origin};
use crate::diagnostic::{Diagnostic, pointer_join};
use crate::dsl::{self, Expression, Schemas, Scope, Template, Type};
use crate::ids;
use crate::rules::{Budget, DecisionTable};
use crate::types::{
    ApproverSpec, DueAction, ExpressionText, LifecycleContract, Need, Node, NodeConfig,
    TemplateText,
};

/// The schemas and the decision tables that a definition can use.
#[derive(Debug)]
pub(crate) struct Language {
    schemas: Schemas,
    context: Value,
    rules: BTreeMap<String, DecisionTable>,
    digest: Sha256Digest,
}

impl Language {
    /// Checks the schemas, the rules and the fields that the contract names.
    pub(crate) fn new(
        contract: &LifecycleContract,
        own: &BTreeMap<String, DecisionTable>,
    ) -> Result<Self, Error> {
        let mut found = Vec::new();
        let schemas = &contract.schemas;
        let named = [
            ("document", &schemas.document),
            ("context", &schemas.context),
            ("org", &schemas.org),
            ("actor", &schemas.actor),
        ];
        for (name, schema) in named {
            let at = format!("/schemas/{name}");
            if let Err(error) = jsonschema::meta::validate(schema) {
                let message = format!("the schema of the {name} is not a JSON schema: {error}");
                found.push(
                    Diagnostic::new(CONTRACT_SCHEMA, message)
                        .at(format!("{at}{}", error.instance_path()))
                        .help("write a schema of draft 2020-12"),
                );
            }
        }
        let bytes = to_canonical(&Value::Array(
            named.iter().map(|(_, schema)| without_order(schema)).collect(),
        ));
        let digest = bytes.map(|bytes| Sha256Digest::of(&bytes)).map_err(|error| Error {
            origin: Origin::Contract,
            problems: vec![
                Diagnostic::new(CONTRACT_SCHEMA, error.to_string())
                    .at("/schemas")
                    .help("write the numbers of the schemas with fewer digits"),
            ],
        })?;
        let typed = Schemas::new(schemas.document.clone())
            .actor(schemas.actor.clone())
            .org(schemas.org.clone())
            .context(schemas.context.clone());
        if let Err(mut problem) = typed.check() {
            // The namespace of the document is `entity`, its schema is `document`.
            let own = problem.place.pointer.take().unwrap_or_default();
            let own =
                own.strip_prefix("/entity").map(|rest| format!("/document{rest}")).unwrap_or(own);
            found.push(problem.at(format!("/schemas{own}")));
        }
        let mut budget = Budget::new();
        for (name, table) in &contract.rules {
            found.extend(check_table(table, &typed, &mut budget, &pointer_join("/rules", name)));
        }
        let language = Self {
            schemas: typed,
            context: schemas.context.clone(),
            rules: contract.rules.clone(),
            digest,
        };
        if found.is_empty() {
            language.check_contract(contract, &mut found);
        }
        if !found.is_empty() {
            return Err(Error { origin: Origin::Contract, problems: found });
        }
        language.with_own_rules(own)
    }

    fn check_contract(&self, contract: &LifecycleContract, found: &mut Vec<Diagnostic>) {
        for (index, obligation) in contract.obligations.iter().enumerate() {
            let at = format!("/obligations/{index}");
            if matches!(obligation.needs, Need::Approvals { count: 0, .. }) {
                found.push(
                    Diagnostic::new(CONTRACT_LIFECYCLE, "an obligation of 0 approvals is none")
                        .at(format!("{at}/needs/count"))
                        .help("write at least 1"),
                );
            }
            let Some(waiver) = &obligation.unless else { continue };
            match self.rules.get(&waiver.rule) {
                None => {
                    let message = format!("there is no decision table {:?}", waiver.rule);
                    found.push(
                        Diagnostic::new(CONTRACT_UNKNOWN, message)
                            .at(format!("{at}/unless/rule"))
                            .help(format!("use one of: {}", self.rule_names())),
                    );
                }
                Some(table) if !outcomes(table).contains(&waiver.outcome) => {
                    let message =
                        format!("{:?} never has the outcome {:?}", waiver.rule, waiver.outcome);
                    let known = outcomes(table).into_iter().collect::<Vec<_>>().join(", ");
                    found.push(
                        Diagnostic::new(CONTRACT_UNKNOWN, message)
                            .at(format!("{at}/unless/outcome"))
                            .help(format!("use one of: {known}")),
                    );
                }
                Some(table) => found.extend(unsafe_input(contract, table, &waiver.rule, &at)),
            }
        }
        for (index, field) in contract.immaterial_fields.iter().enumerate() {
            let path = ExpressionText(format!("entity.{field}"));
            found.extend(self.check_value(&path, &format!("/immaterialFields/{index}")));
        }
    }

    fn with_own_rules(mut self, own: &BTreeMap<String, DecisionTable>) -> Result<Self, Error> {
        let (mut found, mut budget) = (Vec::new(), Budget::new());
        for (name, table) in own {
            let at = pointer_join("/rules", name);
            if !ids::is_name(name) {
                found.push(ids::not_a_name(name, at.clone()));
            }
            if self.rules.contains_key(name) {
                let message = format!("the contract has a decision table {name:?}");
                found.push(
                    Diagnostic::new(CONTRACT_DUPLICATE, message).at(&at).help("use another name"),
                );
            }
            found.extend(check_table(table, &self.schemas, &mut budget, &at));
        }
        if !found.is_empty() {
            return Err(Error { origin: Origin::Definition, problems: found });
        }
        self.rules.extend(own.iter().map(|(name, table)| (name.clone(), table.clone())));
        Ok(self)
    }

    pub(crate) fn schema_digest(&self) -> Sha256Digest {
        self.digest
    }

    /// The schema of the context in one order; null if nothing from outside is written into it.
    pub(crate) fn context_schema<'n>(&self, mut nodes: impl Iterator<Item = &'n Node>) -> Value {
        let writes = |node: &Node| match &node.config {
            NodeConfig::WaitEvent(config) => !config.writes.is_empty(),
            NodeConfig::Action(config) => !config.writes.is_empty(),
            _ => false,
        };
        if nodes.any(writes) { without_order(&self.context) } else { Value::Null }
    }

    pub(crate) fn has_rule(&self, name: &str) -> bool {
        self.rules.contains_key(name)
    }

    pub(crate) fn rule_names(&self) -> String {
        self.rules.keys().cloned().collect::<Vec<_>>().join(", ")
    }

    /// The outcomes of a decision table, sorted.
    pub(crate) fn outcomes(&self, rule: &str) -> BTreeSet<String> {
        self.rules.get(rule).map(outcomes).unwrap_or_default()
    }

    /// The decision tables that nodes and waivers use.
    pub(crate) fn used_rules<'n>(
        &self,
        contract: &LifecycleContract,
        nodes: impl Iterator<Item = &'n Node>,
    ) -> BTreeMap<String, DecisionTable> {
        let mut used: BTreeSet<&str> = contract
            .obligations
            .iter()
            .filter_map(|obligation| obligation.unless.as_ref())
            .map(|waiver| waiver.rule.as_str())
            .collect();
        let mut people = |approvers: &'n ApproverSpec| {
            if let ApproverSpec::Rule { rule } = approvers {
                used.insert(rule);
            }
        };
        let mut own = Vec::new();
        for node in nodes {
            match &node.config {
                NodeConfig::Rule(config) => own.push(config.rule.as_str()),
                NodeConfig::Approval(config) => {
                    config.approvers.iter().for_each(&mut people);
                    if let Some(DueAction::Escalate(to)) = config.due.as_ref().map(|due| &due.then)
                    {
                        people(to);
                    }
                }
                NodeConfig::Notification(config) => people(&config.to),
                _ => {}
            }
        }
        used.extend(own);
        let table = |name: &str| Some((name.to_owned(), self.rules.get(name)?.normalized()));
        used.into_iter().filter_map(table).collect()
    }

    /// The type of an expression.
    fn type_of(&self, text: &ExpressionText, at: &str) -> Result<Type, Diagnostic> {
        Expression::parse(text.as_str())
            .and_then(|expression| expression.check(&self.schemas))
            .map_err(|error| Diagnostic::from(error).at(at))
    }

    pub(crate) fn check_condition(&self, text: &ExpressionText, at: &str) -> Option<Diagnostic> {
        Expression::parse(text.as_str())
            .and_then(|expression| expression.check_condition(&self.schemas))
            .err()
            .map(|error| Diagnostic::from(error).at(at))
    }

    pub(crate) fn check_value(&self, text: &ExpressionText, at: &str) -> Option<Diagnostic> {
        self.type_of(text, at).err()
    }

    /// Checks an expression that gives the id of a person, or a list of ids.
    pub(crate) fn check_people(&self, text: &ExpressionText, at: &str) -> Option<Diagnostic> {
        match self.type_of(text, at) {
            Ok(Type::Text) => None,
            Ok(Type::List(item)) if *item == Type::Text => None,
            Ok(other) => Some(wrong_type(text, at, "the id of a person or a list of ids", &other)),
            Err(problem) => Some(problem),
        }
    }

    pub(crate) fn check_time(&self, text: &ExpressionText, at: &str) -> Option<Diagnostic> {
        match self.type_of(text, at) {
            Ok(Type::Time | Type::Date) => None,
            Ok(other) => Some(wrong_type(text, at, "a time or a date", &other)),
            Err(problem) => Some(problem),
        }
    }

    pub(crate) fn check_template(&self, text: &TemplateText, at: &str) -> Option<Diagnostic> {
        Template::parse(text.as_str())
            .and_then(|template| template.check(&self.schemas))
            .err()
            .map(|error| Diagnostic::from(error).at(at))
    }

    pub(crate) fn has_context_variable(&self, name: &str) -> bool {
        self.context.get("properties").is_some_and(|fields| fields.get(name).is_some())
    }

    /// Checks that a context variable exists and has the type of the expression.
    pub(crate) fn check_assignment(
        &self,
        variable: &str,
        text: &ExpressionText,
        at: &str,
    ) -> Option<Diagnostic> {
        if !self.has_context_variable(variable) {
            let message = format!("the context schema has no field {variable:?}");
            return Some(
                Diagnostic::new(NODE_CONFIG, message)
                    .at(at)
                    .help("declare it in `schemas.context` of the contract"),
            );
        }
        let given = match self.type_of(text, at) {
            Ok(given) => given,
            Err(problem) => return Some(problem),
        };
        let target = ExpressionText(format!("context.{variable}"));
        match self.type_of(&target, at) {
            Ok(declared) if declared == given || given == Type::Null => None,
            Ok(declared) => {
                Some(wrong_type(text, at, &format!("{declared}, as {variable:?} is"), &given))
            }
            Err(problem) => Some(problem),
        }
    }
}

fn wrong_type(text: &ExpressionText, at: &str, wanted: &str, found: &Type) -> Diagnostic {
    Diagnostic::new(dsl::EXPRESSION_TYPE, format!("this must be {wanted}, and it is {found}"))
        .expression(text.as_str(), 0..text.as_str().len())
        .at(at)
        .help("use a field of that type")
}

/// A time as microseconds since 1970. A date begins at midnight UTC.
pub(crate) fn time(value: &Value) -> Option<i64> {
    let text = value.as_str()?;
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(time.as_microsecond());
    }
    let date: Date = text.parse().ok()?;
    Some(date.to_zoned(TimeZone::UTC).ok()?.timestamp().as_microsecond())
}

fn check_table(
    table: &DecisionTable,
    schemas: &Schemas,
    budget: &mut Budget,
    at: &str,
) -> Option<Diagnostic> {
    table.check_within(schemas, budget).err().map(|problem| problem.under(at))
}

/// The schema with its sets in one order: `required`, `enum` and `type` are arrays, but their order
/// means nothing.
fn without_order(schema: &Value) -> Value {
    fn sorted(items: &[Value]) -> Value {
        let mut items = items.to_vec();
        items.sort_by_cached_key(Value::to_string);
        Value::Array(items)
    }
    match schema {
        Value::Object(members) => members
            .iter()
            .map(|(key, member)| {
                let member = match (key.as_str(), member) {
                    ("required" | "enum" | "type", Value::Array(items)) => sorted(items),
                    ("const" | "default" | "examples", _) => member.clone(),
                    _ => without_order(member),
                };
                (key.clone(), member)
            })
            .collect(),
        Value::Array(items) => Value::Array(items.iter().map(without_order).collect()),
        other => other.clone(),
    }
}

/// A table that exempts a document from an obligation must not read what a patch can choose: a script
/// writes the context, and the place of the rule node decides whose `actor` it reads. A field that
/// nobody has to approve again must not decide either, because it can change after the exemption.
fn unsafe_input(
    contract: &LifecycleContract,
    table: &DecisionTable,
    name: &str,
    at: &str,
) -> Option<Diagnostic> {
    let immaterial = |path: &str| {
        let field = path.strip_prefix("entity.").unwrap_or_default();
        let covers = |outer: &str, inner: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        contract.immaterial_fields.iter().any(|one| covers(one, field) || covers(field, one))
    };
    table.inputs.iter().find_map(|input| {
        let path = &input.path;
        let reason = match path.split('.').next() {
            Some("context") => "every patch can write the context",
            Some("actor") => "a patch chooses whose action comes before the rule",
            _ if immaterial(path) => "a change of this field keeps the exemption",
            _ => return None,
        };
        let message = format!("the decision table {name:?} reads {path:?}, and {reason}");
        let help = "let the table of an exemption read only org and material fields of entity";
        let place = format!("{at}/unless/rule");
        Some(Diagnostic::new(CONTRACT_LIFECYCLE, message).at(place).help(help))
    })
}

/// The outcomes of a table: the texts of its output `outcome`.
fn outcomes(table: &DecisionTable) -> BTreeSet<String> {
    let texts = table.texts("outcome").unwrap_or_default();
    texts.into_iter().map(str::to_owned).collect()
}

/// Decides a table. Returns the outcome and the evidence.
pub(crate) fn decide(
    name: &str,
    table: Option<&DecisionTable>,
    scope: &Scope<'_>,
) -> Result<(String, Value), Diagnostic> {
    let wrong = |reason: String| {
        Diagnostic::new(WORKFLOW_EVALUATION, format!("the rule {name:?} cannot decide: {reason}"))
            .help("correct the document, then retry")
    };
    let table = table.ok_or_else(|| wrong("the artefact has no such table".to_owned()))?;
    let decision = table.decide(scope).map_err(|problem| wrong(problem.message))?;
    let outcome = decision.text("outcome").ok_or_else(|| wrong("it has no outcome".to_owned()))?;
    Ok((outcome.to_owned(), json!(decision)))
}
