//! Checks the configuration of each custom node.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr as _;

use jiff::{Timestamp, tz::TimeZone};
use windlass_kernel::parse_duration;
use windlass_kernel::subject::{ROLE_BYTES_MAX, SUBJECT_ID_BYTES_MAX};

use crate::approvers::ASKED_MAX;
use crate::codes::NODE_CONFIG;
use crate::diagnostic::{Diagnostic, pointer_join};
use crate::ids;
use crate::language::Language;
use crate::types::{
    ApprovalConfig, ApproverSpec, DueAction, JoinConfig, JoinMode, MutationSpecRef, Node,
    NodeConfig, NotificationConfig, Quorum, TimerConfig, WaitEventConfig, WebhookConfig,
};

/// The longest key of an event after its placeholders are filled, in bytes.
const EVENT_KEY_BYTES_MAX: usize = 200;
const URL_BYTES_MAX: usize = 2_000;
const LABEL_CHARS_MAX: usize = 200;
const LIST_MAX: usize = 100;

pub(super) fn check(language: &Language, node: &Node, at: &str, found: &mut Vec<Diagnostic>) {
    let mut check = Check { language, at: format!("{at}/config"), found };
    let label = node.label.as_deref().unwrap_or_default();
    if label.chars().count() > LABEL_CHARS_MAX || label.chars().any(char::is_control) {
        let message = format!("the label of node {:?} is not short plain text", node.id);
        let help = format!("write at most {LABEL_CHARS_MAX} printable characters");
        check
            .found
            .push(Diagnostic::new(NODE_CONFIG, message).at(format!("{at}/label")).help(help));
    }
    match &node.config {
        NodeConfig::Action(action) => {
            check.mutation(&action.mutation, "/mutation");
            if let Some(compensate) = &action.compensate {
                check.mutation(compensate, "/compensate");
            }
            check.writes(action.writes.iter());
        }
        NodeConfig::Approval(approval) => check.approval(approval),
        NodeConfig::ParallelJoin(join) => check.join(join),
        NodeConfig::WaitTimer(timer) => check.timer(timer),
        NodeConfig::WaitEvent(event) => check.event(event),
        NodeConfig::WebhookOut(webhook) => check.webhook(webhook),
        NodeConfig::Notification(notification) => check.notification(notification),
        NodeConfig::Script(script) => {
            for (variable, expression) in &script.writes {
                let at = pointer_join("/writes", variable);
                let place = format!("{}{at}", check.at);
                let problem = language.check_assignment(variable, expression, &place);
                check.found.extend(problem);
            }
            if script.writes.is_empty() {
                check.wrong("/writes", "the script writes nothing".to_owned(), "remove the node");
            }
        }
        NodeConfig::Rule(rule) => check.rule(&rule.rule, "/rule"),
        _ => {}
    }
}

/// The sum of weights; it cannot overflow, because the size of a definition is limited.
fn sum(weights: &BTreeMap<String, u32>) -> u64 {
    weights.values().copied().map(u64::from).sum()
}

struct Check<'a> {
    language: &'a Language,
    at: String,
    found: &'a mut Vec<Diagnostic>,
}

impl Check<'_> {
    fn wrong(&mut self, field: &str, message: String, help: &str) {
        let place = format!("{}{field}", self.at);
        self.found.push(Diagnostic::new(NODE_CONFIG, message).at(place).help(help));
    }

    fn duration(&mut self, text: &str, field: &str) {
        if let Err(error) = parse_duration(text) {
            self.wrong(field, error.to_string(), "write a duration such as \"24 hours\"");
        }
    }

    fn rule(&mut self, name: &str, field: &str) {
        if !self.language.has_rule(name) {
            let known = self.language.rule_names();
            let help = match known.is_empty() {
                true => "add it to `rules` of the definition".to_owned(),
                false => format!("use one of: {known}"),
            };
            self.wrong(field, format!("there is no decision table {name:?}"), &help);
        } else if self.language.outcomes(name).is_empty() {
            let message = format!("the decision table {name:?} has no text output `outcome`");
            self.wrong(field, message, "add the output, or use another table");
        }
    }

    fn mutation(&mut self, mutation: &MutationSpecRef, field: &str) {
        if !ids::is_dotted_name(&mutation.action_type) {
            self.wrong(
                &format!("{field}/actionType"),
                format!("{:?} is not the type of an action", mutation.action_type),
                "write names with dots between them, such as invoice.post",
            );
        }
        let under = format!("{field}/payloadTemplate");
        self.payload(&mutation.payload_template, &under);
    }

    fn payload(
        &mut self,
        payload: &std::collections::BTreeMap<String, crate::types::ExpressionText>,
        field: &str,
    ) {
        for (name, expression) in payload {
            let place = format!("{}{}", self.at, pointer_join(field, name));
            self.found.extend(self.language.check_value(expression, &place));
        }
    }

    fn writes<'a>(&mut self, writes: impl Iterator<Item = (&'a String, &'a String)>) {
        for (variable, path) in writes {
            let field = pointer_join("/writes", variable);
            if !self.language.has_context_variable(variable) {
                self.wrong(
                    &field,
                    format!("the context schema has no field {variable:?}"),
                    "declare it in `schemas.context` of the contract",
                );
            }
            if path.is_empty() || !path.split('.').all(|step| !step.is_empty()) {
                let message = format!("{path:?} is not a path");
                self.wrong(&field, message, "write field names with dots between them");
            }
        }
    }

    fn approval(&mut self, approval: &ApprovalConfig) {
        match (&approval.approvers, &approval.chain) {
            (Some(approvers), None) => self.approvers(approvers, "/approvers"),
            (None, Some(chain)) if ids::is_name(chain) => {}
            (None, Some(chain)) => self.wrong(
                "/chain",
                format!("{chain:?} is not the name of a chain"),
                "write lowercase letters, digits and _",
            ),
            _ => self.wrong(
                "",
                "an approval has either `approvers` or `chain`".to_owned(),
                "write one of them",
            ),
        }
        match &approval.quorum {
            Quorum::Count { count: 0 } | Quorum::Weighted { needed: 0, .. } => self.wrong(
                "/quorum",
                "a quorum of 0 needs no approval".to_owned(),
                "write at least 1",
            ),
            Quorum::Percent { percent } if !(1..=100).contains(percent) => self.wrong(
                "/quorum/percent",
                format!("{percent} is not a percentage"),
                "write a number from 1 to 100",
            ),
            Quorum::Weighted { weights, needed } if sum(weights) < u64::from(*needed) => {
                let message =
                    format!("all weights together are {}, and {needed} are needed", sum(weights));
                self.wrong("/quorum", message, "lower `needed`, or raise the weights");
            }
            Quorum::Weighted { weights, .. } if weights.len() > LIST_MAX => {
                let message = format!("{} weights, the limit is {LIST_MAX}", weights.len());
                self.wrong("/quorum/weights", message, "name fewer people, or use a role");
            }
            Quorum::Count { count } if self.fewer_than(approval, *count) => {
                let message = format!("{count} people must approve, and fewer are asked");
                self.wrong("/quorum/count", message, "lower the count, or name more people");
            }
            Quorum::Any {}
            | Quorum::All {}
            | Quorum::Count { .. }
            | Quorum::Percent { .. }
            | Quorum::Weighted { .. } => {}
        }
        if let Some(due) = &approval.due {
            self.duration(&due.after, "/due/after");
            if let DueAction::Escalate(approvers) = &due.then {
                self.approvers(approvers, "/due/then/escalate");
            }
        }
    }

    /// Whether a list of people is shorter than the quorum. Other strategies find their people later.
    fn fewer_than(&self, approval: &ApprovalConfig, count: u32) -> bool {
        let escalates =
            approval.due.as_ref().is_some_and(|due| matches!(due.then, DueAction::Escalate(_)));
        match &approval.approvers {
            Some(ApproverSpec::Direct { users }) if !escalates => {
                users.iter().collect::<BTreeSet<_>>().len() < count as usize
            }
            Some(ApproverSpec::OrgChart { .. }) if !escalates => count > 1,
            _ => count as usize > ASKED_MAX,
        }
    }

    /// Checks the name of a role as the kernel does; another one would match nobody.
    fn role(&mut self, role: &str, field: &str) {
        let wrong = |c: char| c.is_control() || c.is_whitespace() || c == ',';
        if role.is_empty() || role.len() > ROLE_BYTES_MAX || role.contains(wrong) {
            let help = format!("write 1 to {ROLE_BYTES_MAX} bytes without spaces and commas");
            self.wrong(field, format!("{role:?} is not the name of a role"), &help);
        }
    }

    fn people(&mut self, users: &[String], field: &str) {
        if users.is_empty() || users.len() > LIST_MAX {
            let message = format!("{} people are named, the limit is 1 to {LIST_MAX}", users.len());
            return self.wrong(field, message, "name the people, or use a role");
        }
        for (index, user) in users.iter().enumerate() {
            if user.is_empty()
                || user.len() > SUBJECT_ID_BYTES_MAX
                || user.contains(char::is_control)
            {
                let help = format!("write 1 to {SUBJECT_ID_BYTES_MAX} printable bytes");
                let message = format!("{user:?} is not the id of a person");
                self.wrong(&format!("{field}/{index}"), message, &help);
            }
        }
    }

    fn approvers(&mut self, approvers: &ApproverSpec, field: &str) {
        match approvers {
            ApproverSpec::Direct { users } => self.people(users, &format!("{field}/users")),
            ApproverSpec::Role { role, .. } => self.role(role, &format!("{field}/role")),
            ApproverSpec::OrgChart { of, levels } => {
                if !(1..=10).contains(levels) {
                    let message = format!("{levels} levels are not between 1 and 10");
                    self.wrong(&format!("{field}/levels"), message, "write a number from 1 to 10");
                }
                if let Some(of) = of {
                    let place = format!("{}{field}/of", self.at);
                    self.found.extend(self.language.check_people(of, &place));
                }
            }
            ApproverSpec::Rule { rule } => self.rule(rule, &format!("{field}/rule")),
            ApproverSpec::Expression { expression } => {
                let place = format!("{}{field}/expression", self.at);
                self.found.extend(self.language.check_people(expression, &place));
            }
        }
    }

    fn join(&mut self, join: &JoinConfig) {
        if let Some(accept) = &join.accept {
            let place = format!("{}/accept", self.at);
            self.found.extend(self.language.check_condition(accept, &place));
            if join.mode == JoinMode::All {
                let message = "an ALL join accepts every branch".to_owned();
                self.wrong("/accept", message, "remove `accept`, or set the mode to `any`");
            }
        }
    }

    fn timer(&mut self, timer: &TimerConfig) {
        match timer {
            TimerConfig::For(duration) => self.duration(duration, "/for"),
            TimerConfig::Until(expression) => {
                let place = format!("{}/until", self.at);
                self.found.extend(self.language.check_time(expression, &place));
            }
            TimerConfig::Cron(cron) => match croner::Cron::from_str(cron) {
                Err(error) => {
                    let message = format!("{cron:?} is not a cron expression: {error}");
                    self.wrong("/cron", message, "write five fields, such as \"0 0 1 * *\"");
                }
                // Any time will do as the begin: the calendar repeats.
                Ok(cron) => {
                    let begin = Timestamp::UNIX_EPOCH.to_zoned(TimeZone::UTC);
                    if cron.find_next_occurrence(&begin, false).is_err() {
                        let message = format!("{:?} never comes", cron.as_str());
                        self.wrong("/cron", message, "check the day and the month");
                    }
                }
            },
        }
    }

    fn event(&mut self, event: &WaitEventConfig) {
        let place = format!("{}/eventKey", self.at);
        self.found.extend(self.language.check_template(&event.event_key, &place));
        if event.event_key.as_str().is_empty()
            || event.event_key.as_str().len() > EVENT_KEY_BYTES_MAX
        {
            let message = format!(
                "the event key has {} bytes, the limit is 1 to {EVENT_KEY_BYTES_MAX}",
                event.event_key.as_str().len()
            );
            self.wrong("/eventKey", message, "shorten it");
        }
        if let Some(timeout) = &event.timeout {
            self.duration(timeout, "/timeout");
        }
        self.writes(event.writes.iter());
    }

    fn webhook(&mut self, webhook: &WebhookConfig) {
        let url = webhook.url.as_str();
        let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        let plain = url.bytes().all(|byte| byte.is_ascii_graphic());
        if host.is_none_or(str::is_empty) || !plain || url.len() > URL_BYTES_MAX {
            let help = format!("write an http or https URL of at most {URL_BYTES_MAX} bytes");
            self.wrong("/url", format!("{url:?} is not a URL of a webhook"), &help);
        }
        self.payload(&webhook.payload_template, "/payloadTemplate");
    }

    fn notification(&mut self, notification: &NotificationConfig) {
        self.approvers(&notification.to, "/to");
        for (field, template) in
            [("/subject", Some(&notification.subject)), ("/body", notification.body.as_ref())]
        {
            if let Some(template) = template {
                let place = format!("{}{field}", self.at);
                self.found.extend(self.language.check_template(template, &place));
            }
        }
    }
}
