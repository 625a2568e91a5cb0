//! The sample documents of `windlass dev`: invoices that somebody else approves.

use windlass::contracts::Contracts;
use windlass::contracts::language::approvers::{Directory, Person};
use windlass::contracts::language::templates;
use windlass::kernel::Subject;

/// The document type of the sample, and the template that it comes from.
pub(crate) const TYPE: &str = "invoice";
const TEMPLATE: &str = "invoice_approval";

/// Publishes the contract of the template and the people who approve, unless the store has them already.
pub(crate) async fn register(contracts: &Contracts) -> Result<(), windlass::Error> {
    if contracts.types().await?.iter().all(|head| head.entity_type != TYPE) {
        let by = Subject::parse("windlass-dev")?;
        for template in templates::all().into_iter().filter(|one| one.name == TEMPLATE) {
            contracts.publish_type(&template.contract, &by).await?;
        }
    }
    if contracts.directory().await?.people.is_empty() {
        contracts.put_directory(&people()).await?;
    }
    Ok(())
}

fn people() -> Directory {
    let person = |roles: &[&str], manager: Option<&str>| Person {
        roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        manager: manager.map(str::to_owned),
        ..Person::default()
    };
    let people = [
        ("rita", person(&[], Some("fay"))),
        ("bob", person(&["budget_owner"], Some("cleo"))),
        ("fay", person(&["finance_manager"], Some("cleo"))),
        ("fred", person(&["finance_manager"], Some("cleo"))),
        ("cleo", person(&["cfo"], None)),
    ];
    let people = people.into_iter().map(|(id, person)| (id.to_owned(), person)).collect();
    Directory { people, delegations: Vec::new() }
}

/// The content of an invoice that needs an approval.
pub(crate) fn example(id: &str) -> serde_json::Value {
    serde_json::json!({
        "id": id, "total": 90_000, "currency": "EUR", "requester": "rita", "vendor_class": "new",
        "budget_owner": "bob",
    })
}
