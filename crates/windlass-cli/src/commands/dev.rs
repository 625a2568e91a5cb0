//! `windlass dev`: a server for the first five minutes, with samples and something to try.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpListener;
use windlass::Engine;
use windlass::kernel::{RunId, WorkflowName};
use windlass_server::auth::Auth;
use windlass_server::{Options, ServeOptions};

use super::store::not_opened;
use super::{relays, serve};
use crate::args::{DevArgs, Format};
use crate::exit::{Failure, Outcome};
use crate::output::{Out, note};
use crate::samples;
use crate::settings::{Tables, local_relay, read_tables};
use crate::shown::without_password;

const STORE: &str = "sqlite:.windlass/windlass.db";
const PORT: u16 = 7878;
/// How many ports after the usual one are tried.
const PORTS_MAX: u16 = 100;
/// Somebody who presses Ctrl-C at a development server does not want to wait.
const DRAIN: Duration = Duration::from_secs(2);

pub(super) async fn run(args: DevArgs) -> Outcome {
    let tables = tables(&args)?;
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
        .map_err(|error| not_opened(&store, error))?;
    samples::register(&engine)?;
    relays::register(&engine, &tables)?;
    let options = Options { auth: Auth::Loopback, metrics_open: true, ..Options::default() };
    banner(address, &store, &free_order(&engine).await?)?;
    let serving = ServeOptions { shutdown_timeout: DRAIN, ..ServeOptions::default() };
    let outcome = serve::until_stopped(&engine, options, listener, serving).await;
    telemetry.stop();
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
            .map_err(|error| Failure::error(format!("port {port} cannot be used: {error}")));
    }
    for port in PORT..PORT + PORTS_MAX {
        match on(port).await {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
            Err(error) => {
                return Err(Failure::error(format!("port {port} cannot be used: {error}")));
            }
        }
    }
    let last = PORT + PORTS_MAX - 1;
    Err(Failure::error(format!("the ports {PORT} to {last} are all in use"))
        .with_hint("choose another with --port"))
}

/// How many orders of former starts are counted.
const ORDERS_MAX: u32 = 1_000;

// The first order that can be started: those of a former start are still there.
async fn free_order(engine: &Engine) -> Result<String, Failure> {
    let workflow = WorkflowName::new("order")?;
    for n in 1..ORDERS_MAX {
        let id = format!("order-{n}");
        if engine.find_run(&workflow, &RunId::new(&*id)?).await?.is_none() {
            return Ok(id);
        }
    }
    Ok(format!("order-{ORDERS_MAX}"))
}

// The commands are complete: pasted into another terminal they work, whatever the port, and however
// this program was started.
fn banner(address: SocketAddr, store: &str, order: &str) -> Result<(), Failure> {
    let out = Out::new(Format::Text);
    let (kept, end) = match store {
        "memory:" => ("in memory, gone at the end".to_owned(), "Ctrl-C ends it."),
        store => (without_password(store), "Ctrl-C ends it; the state stays."),
    };
    let windlass = program();
    let url = match address.port() {
        PORT => String::new(),
        _ => format!(" --url http://{address}/api"),
    };
    out.line(&out.bold(&format!("windlass {}", env!("CARGO_PKG_VERSION"))))?;
    for (name, value) in [
        ("api", format!("http://{address}/api")),
        ("docs", format!("http://{address}/api/docs")),
        ("metrics", format!("http://{address}/metrics")),
        ("state", kept),
        ("samples", "hello, order, flaky, fan-out, parcel".to_owned()),
    ] {
        out.line(&format!("  {} {value}", out.dim(&format!("{name:<8}"))))?;
    }
    out.line("")?;
    out.line("Try, in another terminal:")?;
    for command in [
        format!("{windlass} runs create hello --params '\"world\"' --wait{url}"),
        format!("{windlass} runs create order/{order}{url}"),
        format!(
            "{windlass} runs send-event order/{order} --type approval --payload '{{\"approved\":true}}'{url}"
        ),
    ] {
        out.line(&format!("  {}", out.bold(&command)))?;
    }
    out.line("")?;
    note(end);
    Ok(())
}

// `windlass` where the shell would find this very program under that name, else its path.
fn program() -> String {
    let Ok(this) = std::env::current_exe() else { return "windlass".to_owned() };
    let found = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path).map(|folder| folder.join("windlass")).find(|at| at.is_file())
    });
    let same = found.and_then(|at| at.canonicalize().ok()) == this.canonicalize().ok();
    match same {
        true => "windlass".to_owned(),
        false => quoted(&this.display().to_string()),
    }
}

// As a shell takes it for one word.
fn quoted(text: &str) -> String {
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
    fn a_path_is_one_word_for_a_shell() {
        assert_eq!(quoted("/usr/bin/windlass"), "/usr/bin/windlass");
        assert_eq!(quoted("/my apps/windlass"), "'/my apps/windlass'");
        assert_eq!(quoted("/it's/windlass"), "'/it'\\''s/windlass'");
    }
}
