//! The work of each node type.

use std::collections::BTreeMap;
use std::str::FromStr as _;

use jiff::tz::TimeZone;
use serde_json::{Map, Value, json};
use windlass_kernel::parse_duration;

use super::flow::parent;
use super::machine::{Machine, Move};
use super::{Effect, StepRow, StepStatus};
use crate::codes::{WORKFLOW_EVALUATION, WORKFLOW_POLICY_DENIED};
use crate::diagnostic::Diagnostic;
use crate::dsl::Template;
use crate::language;
use crate::types::{
    AttachmentSide, CompiledEdge, ExpressionText, GateTrigger, NodeConfig, PolicyConfig,
    TemplateText, TimerConfig,
};

/// The longest key of an event, in characters.
const EVENT_KEY_CHARACTERS_MAX: usize = 200;

impl Machine<'_> {
    /// A token enters a node: writes the row, then does the work.
    pub(super) fn enter(&mut self, to: Move) {
        let Some(node) = self.artefact.nodes.get(&to.node) else { return };
        let row = self.new_row(&to, node);
        self.handle(row);
    }

    pub(super) fn handle(&mut self, row: StepRow) {
        let Some(node) = self.artefact.nodes.get(&row.node) else { return };
        match &node.config {
            NodeConfig::Start(_) => self.single(row),
            NodeConfig::End(_) => self.complete(row, &[]),
            NodeConfig::State(config) => {
                let state = config.state.clone();
                let edit_window = self.artefact.edit_windows[&row.node];
                self.effect(Effect::EnterState { state, edit_window });
                self.single(row);
            }
            NodeConfig::LifecycleGate(config) => match config.trigger {
                GateTrigger::Action => self.put(row),
                GateTrigger::Arrival | GateTrigger::Cancel => self.pass_gate(row),
            },
            NodeConfig::Attachment(config) if config.side == AttachmentSide::In => {
                self.by_conditions(row);
            }
            NodeConfig::Attachment(_) => self.single(row),
            NodeConfig::Condition(_) => self.by_conditions(row),
            NodeConfig::ParallelSplit(_) => self.split(row),
            NodeConfig::ParallelJoin(_) => self.arrive(row),
            NodeConfig::PolicyGate(config) => match self.check_policy(config) {
                Ok(()) => self.single(row),
                Err(problem) => self.fail(row, &problem),
            },
            _ => self.handle_custom(row),
        }
    }

    /// Asks the policy about an action and about its compensation, before either of them runs: when
    /// a branch is cancelled, it is too late to refuse.
    fn check_policy(&self, config: &PolicyConfig) -> Result<(), Diagnostic> {
        let guarded = self.artefact.nodes.get(&config.guards).map(|node| &node.config);
        let compensate = match guarded {
            Some(NodeConfig::Action(action)) => action.compensate.as_ref(),
            _ => None,
        };
        let own = (config.action_type.as_str(), config.run_as);
        let undo = compensate.map(|undo| (undo.action_type.as_str(), undo.run_as));
        for (action_type, run_as) in std::iter::once(own).chain(undo) {
            self.facts.policy.check(action_type, run_as).map_err(|reason| {
                let message = format!("the policy refuses {action_type:?}: {reason}");
                Diagnostic::new(WORKFLOW_POLICY_DENIED, message)
                    .help("change the policy, or let another person retry")
            })?;
        }
        Ok(())
    }

    fn handle_custom(&mut self, row: StepRow) {
        if let Err((row, problem)) = self.try_custom(row) {
            self.fail(*row, &problem);
        }
    }

    fn try_custom(&mut self, mut row: StepRow) -> Result<(), (Box<StepRow>, Diagnostic)> {
        let Some(node) = self.artefact.nodes.get(&row.node) else { return Ok(()) };
        macro_rules! attempt {
            ($result:expr) => {
                match $result {
                    Ok(value) => value,
                    Err(problem) => return Err((Box::new(row), problem)),
                }
            };
        }
        let key = row.key.clone();
        match &node.config {
            NodeConfig::Action(config) => {
                let payload = attempt!(self.payload(&config.mutation.payload_template));
                let action_type = config.mutation.action_type.clone();
                let may_change_document = self.artefact.document_actions.contains(&action_type);
                // The next steps must read the changed document, and gates must know its version.
                let waits = may_change_document || !config.writes.is_empty();
                self.effect(Effect::Mutate {
                    key,
                    action_type,
                    payload: payload.clone(),
                    run_as: config.mutation.run_as,
                    await_result: waits,
                    may_change_document,
                    compensates: None,
                });
                row.output = json!({"payload": payload});
                if waits { self.put(row) } else { self.single(row) }
            }
            NodeConfig::Approval(config) => {
                let due = config.due.as_ref().map(|due| self.after(&due.after)).transpose();
                row.resume_at = attempt!(due);
                self.effect(Effect::RequestApproval {
                    key,
                    node: row.node.clone(),
                    version: row.version,
                    config: config.clone(),
                    due_at: row.resume_at,
                });
                self.put(row);
            }
            NodeConfig::WaitTimer(config) => {
                let at = attempt!(self.due(config));
                row.resume_at = Some(at);
                self.effect(Effect::SetTimer { key, at });
                self.put(row);
            }
            NodeConfig::WaitEvent(config) => {
                let template = Template::parse(config.event_key.as_str());
                let event_key = attempt!(
                    template
                        .and_then(|one| one.render_key(&self.scope(), EVENT_KEY_CHARACTERS_MAX))
                        .map_err(|error| evaluation(config.event_key.as_str(), &error))
                );
                let timeout = config.timeout.as_ref().map(|after| self.after(after)).transpose();
                row.resume_at = attempt!(timeout);
                row.waiting_for_event_key = Some(event_key.clone());
                self.effect(Effect::AwaitEvent { key, event_key, timeout_at: row.resume_at });
                self.put(row);
            }
            NodeConfig::WebhookOut(config) => {
                let body = attempt!(self.payload(&config.payload_template));
                let waits = config.await_delivery.is_some();
                let url = config.url.clone();
                row.output = json!({"body": body});
                self.effect(Effect::Webhook { key, url, body, await_delivery: waits });
                if waits { self.put(row) } else { self.single(row) }
            }
            NodeConfig::Notification(config) => {
                let subject = attempt!(self.render(&config.subject));
                let body = config.body.as_ref().map(|body| self.render(body)).transpose();
                let body = attempt!(body);
                row.output = json!({"subject": subject});
                let (channel, to) = (config.channel, config.to.clone());
                self.effect(Effect::Notify { key, channel, to, subject, body });
                self.single(row);
            }
            NodeConfig::Script(config) => {
                let mut evidence = Vec::new();
                for (variable, text) in &config.writes {
                    let explained = attempt!(self.evaluate(text));
                    row.writes.insert(variable.clone(), explained.value().clone());
                    evidence.push(json!(explained));
                }
                row.output = json!({"expressions": evidence});
                self.single(row);
            }
            NodeConfig::Rule(config) => {
                let table = self.artefact.rules.get(&config.rule);
                let (outcome, evidence) =
                    attempt!(language::decide(&config.rule, table, &self.scope()));
                row.output = evidence;
                row.outcome = Some(outcome.clone());
                self.by_outcome(row, &outcome, "");
            }
            _ => self.single(row),
        }
        Ok(())
    }

    fn payload(
        &self,
        template: &BTreeMap<String, ExpressionText>,
    ) -> Result<Map<String, Value>, Diagnostic> {
        template
            .iter()
            .map(|(name, text)| Ok((name.clone(), self.evaluate(text)?.value().clone())))
            .collect()
    }

    fn render(&self, template: &TemplateText) -> Result<String, Diagnostic> {
        Template::parse(template.as_str())
            .and_then(|one| one.render(&self.scope()))
            .map_err(|error| evaluation(template.as_str(), &error))
    }

    fn after(&self, duration: &str) -> Result<i64, Diagnostic> {
        let help = "compile the definition again";
        let wrong = |error: String| Diagnostic::new(WORKFLOW_EVALUATION, error).help(help);
        let span = parse_duration(duration).map_err(|error| wrong(error.to_string()))?;
        let micros = i64::try_from(span.as_micros()).map_err(|error| wrong(error.to_string()))?;
        Ok(self.facts.now.as_microsecond().saturating_add(micros))
    }

    fn due(&self, timer: &TimerConfig) -> Result<i64, Diagnostic> {
        match timer {
            TimerConfig::For(duration) => self.after(duration),
            TimerConfig::Until(text) => {
                let explained = self.evaluate(text)?;
                language::time(explained.value()).ok_or_else(|| {
                    let message =
                        format!("{:?} gives no time: {}", text.as_str(), explained.value());
                    Diagnostic::new(WORKFLOW_EVALUATION, message)
                        .help("correct the field of the document, then retry")
                })
            }
            TimerConfig::Cron(cron) => {
                let help = "compile the definition again";
                let wrong = |error: String| Diagnostic::new(WORKFLOW_EVALUATION, error).help(help);
                let parsed =
                    croner::Cron::from_str(cron).map_err(|error| wrong(error.to_string()))?;
                let now = self.facts.now.to_zoned(TimeZone::UTC);
                let next = parsed
                    .find_next_occurrence(&now, false)
                    .map_err(|error| wrong(error.to_string()))?;
                Ok(next.timestamp().as_microsecond())
            }
        }
    }

    /// Ends the token and starts one for each branch.
    fn split(&mut self, mut row: StepRow) {
        let edges: Vec<&CompiledEdge> = self.edges(&row.node);
        row.status = StepStatus::Completed;
        row.done = Some(self.state.next_done);
        row.chosen_edge_ids = Some(edges.iter().map(|edge| edge.id.clone()).collect());
        for (index, edge) in edges.into_iter().enumerate() {
            let token = format!("{}.{}-{index}", row.token, row.seq);
            debug_assert_eq!(parent(&token), row.token);
            self.queue.push_back(Move {
                token,
                spawned_from: row.node.clone(),
                path_index: u32::try_from(index).unwrap_or(u32::MAX),
                node: edge.target.clone(),
            });
        }
        row.output = json!({"branches": row.chosen_edge_ids.as_ref().map_or(0, Vec::len)});
        self.put(row);
    }
}

fn evaluation(text: &str, error: &crate::dsl::Error) -> Diagnostic {
    Diagnostic::new(WORKFLOW_EVALUATION, format!("{text:?} cannot be filled in: {error}"))
        .help("correct the document or the settings that it reads, then retry")
}
