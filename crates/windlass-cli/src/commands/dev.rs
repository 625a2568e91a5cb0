//! `windlass dev`: a development server with sample workflows.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpListener;
use windlass::contracts::Contracts;
use windlass::kernel::{RunId, WorkflowName};
use windlass::{Engine, ErrorCode};
use windlass_server::auth::Auth;
use windlass_server::{Options, ServeOptions};

use super::contracts::serve as documents;
use super::store::open_failure;
use super::{parse_subject, relays, serve};
use crate::args::{DevArgs, Format};
use crate::exit::{Failure, Outcome};
use crate::output::{Out, note};
use crate::redact::without_password;
use crate::samples::{self, Llm};
use crate::settings::{Tables, local_relay, read_tables};

const STORE: &str = "sqlite:.windlass/windlass.db";
const PORT: u16 = 7878;
/// The number of ports to try, from the default port on.
const PORTS_MAX: u16 = 100;
/// Short, because a developer who presses Ctrl-C does not want to wait.
const DRAIN: Duration = Duration::from_secs(2);

pub(super) async fn run(args: DevArgs) -> Outcome {
    let subject = args.subject.as_deref().map(|text| parse_subject("--as", text)).transpose()?;
    let tables = tables(&args)?;
    let llm = Llm::choose(args.scripted_llm.as_ref().map(Option::as_deref))?;
    let listener = listen(args.port).await?;
    let address = listener.local_addr()?;
    let store = match (args.ephemeral, args.store) {
        (true, _) => "memory:".to_owned(),
        (false, Some(store)) => store,
        (false, None) => STORE.to_owned(),
    };
    let telemetry = windlass_server::telemetry::init("warn", false)?;
    let engine = Engine::builder()
        .worker_name("windlass dev")
        .version(env!("CARGO_PKG_VERSION"))
        .open(&store)
        .await
        .map_err(|error| open_failure(&store, error))?;
    samples::register(&engine, &llm)?;
    relays::register(&engine, &tables)?;
    let contracts = documents::open(&engine, &tables).await?;
    samples::documents::register(&contracts).await?;
    let mut options = Options {
        auth: Auth::LoopbackPerson(subject),
        metrics_open: true,
        dashboard: true,
        mcp_at_root: true,
        ..Options::default()
    };
    options.routes.push(windlass_server::contracts::routes(&contracts));
    let unused = Unused {
        order: unused_order_id(&engine).await?,
        invoice: unused_invoice_id(&contracts).await?,
    };
    banner(address, &store, &unused, &llm)?;
    let serving = ServeOptions { shutdown_timeout: DRAIN, ..ServeOptions::default() };
    let outcome = serve::until_stopped(&engine, options, listener, serving).await;
    telemetry.stop();
    if let Llm::Scripted(scripted) = llm {
        let report = scripted.report();
        note(&format!(
            "The scripted provider answered with {} messages, which would have cost {}.",
            report.messages, report.money
        ));
    }
    outcome
}

fn tables(args: &DevArgs) -> Result<Tables, Failure> {
    let mut tables = match &args.config {
        Some(path) => read_tables(path)?,
        None => Tables::default(),
    };
    let secret = std::env::var("WINDLASS_RELAY_SECRET").ok();
    for text in &args.relays {
        tables.add(local_relay(text, secret.as_deref())?)?;
    }
    Ok(tables)
}

async fn listen(port: Option<u16>) -> Result<TcpListener, Failure> {
    let on = |port: u16| TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    if let Some(port) = port {
        return on(port)
            .await
            .map_err(|error| Failure::error(format!("failed to listen on port {port}: {error}")));
    }
    for port in PORT..PORT + PORTS_MAX {
        match on(port).await {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
            Err(error) => {
                return Err(Failure::error(format!("failed to listen on port {port}: {error}")));
            }
        }
    }
    let last = PORT + PORTS_MAX - 1;
    Err(Failure::error(format!("all ports from {PORT} to {last} are in use"))
        .with_hint("choose another port with --port"))
}

/// The maximum number of ids to try.
const ORDERS_MAX: u32 = 1_000;

// Finds an unused id for the order in the banner; earlier sessions may have created some.
async fn unused_order_id(engine: &Engine) -> Result<String, Failure> {
    let workflow = WorkflowName::new("order")?;
    for n in 1..ORDERS_MAX {
        let id = format!("order-{n}");
        if engine.core().find_run(&workflow, &RunId::new(&*id)?).await?.is_none() {
            return Ok(id);
        }
    }
    Ok(format!("order-{ORDERS_MAX}"))
}

async fn unused_invoice_id(contracts: &Contracts) -> Result<String, Failure> {
    for n in 1..ORDERS_MAX {
        let id = format!("i-{n}");
        match contracts.document(samples::documents::TYPE, &id).await {
            Ok(_) => {}
            Err(error) if error.code() == ErrorCode::DocumentNotFound => return Ok(id),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(format!("i-{ORDERS_MAX}"))
}

/// Ids for the commands in the banner; earlier sessions may have used others.
struct Unused {
    order: String,
    invoice: String,
}

// The printed commands work in any terminal, for any port and any location of this program.
fn banner(address: SocketAddr, store: &str, unused: &Unused, llm: &Llm) -> Result<(), Failure> {
    let Unused { order, invoice } = unused;
    let out = Out::new(Format::Text);
    let (kept, end) = match store {
        "memory:" => ("in memory, lost at exit".to_owned(), "Press Ctrl-C to stop."),
        store => (without_password(store), "Press Ctrl-C to stop; the state is kept."),
    };
    let windlass = program_name();
    let url = match address.port() {
        PORT => String::new(),
        _ => format!(" --url http://{address}/api"),
    };
    out.line(&out.bold(&format!("windlass {}", env!("CARGO_PKG_VERSION"))))?;
    for (name, value) in [
        ("ui", format!("http://{address}/")),
        ("api", format!("http://{address}/api")),
        ("docs", format!("http://{address}/api/docs")),
        ("metrics", format!("http://{address}/metrics")),
        ("state", kept),
        ("llm", llm.describe()),
        (
            "samples",
            "hello, order, flaky, fan-out, expense, parcel, ask; documents of type invoice"
                .to_owned(),
        ),
    ] {
        out.line(&format!("  {} {value}", out.dim(&format!("{name:<8}"))))?;
    }
    out.line("")?;
    out.line("Try in another terminal:")?;
    for command in [
        format!("{windlass} runs create hello --params '\"world\"' --wait{url}"),
        format!(
            "{windlass} runs create ask --params '{{\"question\":\"Who are you?\"}}' --wait{url}"
        ),
        format!("{windlass} runs create order/{order}{url}"),
        format!(
            "{windlass} runs send-event order/{order} --type approval --payload '{{\"approved\":true}}'{url}"
        ),
        format!(
            "{windlass} documents create invoice {invoice} '{}' --as rita{url}",
            samples::documents::example(invoice)
        ),
        format!("{windlass} documents act invoice {invoice} submit --as rita{url}"),
        format!("{windlass} approvals list --as fay{url}"),
    ] {
        out.line(&format!("  {}", out.bold(&command)))?;
    }
    out.line("")?;
    note(end);
    Ok(())
}

// `windlass` if the shell would find this program under that name, else its path.
fn program_name() -> String {
    let Ok(this) = std::env::current_exe() else { return "windlass".to_owned() };
    let found = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path).map(|folder| folder.join("windlass")).find(|at| at.is_file())
    });
    let same = found.and_then(|at| at.canonicalize().ok()) == this.canonicalize().ok();
    match same {
        true => "windlass".to_owned(),
        false => shell_quote(&this.display().to_string()),
    }
}

// Quotes the text as one shell word.
fn shell_quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@%=:,".contains(c);
    match text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_for_the_shell() {
        assert_eq!(shell_quote("/usr/bin/windlass"), "/usr/bin/windlass");
        assert_eq!(shell_quote("/my apps/windlass"), "'/my apps/windlass'");
        assert_eq!(shell_quote("/it's/windlass"), "'/it'\\''s/windlass'");
    }
}
