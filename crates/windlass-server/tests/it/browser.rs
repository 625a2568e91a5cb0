//! The dashboard in a browser: every view with data of all models, the keyboard, and the end of a session.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use windlass::kernel::Namespace;
use windlass_server::auth::{Auth, KeyStore, Keys, NewKey, Scope};
use windlass_server::{Options, ServeOptions};

use crate::auth::options_with_keys;
use crate::harness::{http_client, with_timeout};
use crate::webdriver::{Browser, CONTROL, ENTER, ESCAPE};
use crate::world::{Values, World, fay, seed, seed_people};

/// Each view, and a text that it shows when its data is there.
const VIEWS: &[(&str, &str)] = &[
    ("", "Workflows"),
    ("runs", "hello-1"),
    ("runs?status=%5B%22waiting%22%5D", "order-1"),
    ("runs/order/order-1", "approval"),
    ("runs/hello/hello-1?step=compose", "Hello, Ada!"),
    ("runs/hello/hello-xss?tab=data", "<img src=x"),
    ("runs/hello/hello-1?tab=ledger", "workflow.completed"),
    ("runs/hello/hello-xss?tab=logs", "greeting <img src=x"),
    ("runs/fan-out/fan-1?tab=graph", "square-#"),
    ("runs/family/family-1?tab=graph", "greet"),
    ("runs/parcel/parcel-2?tab=graph", "scale"),
    ("runs/shout/shout-1", "shout-1"),
    ("runs/ask/ask-1?tab=agent", "You said:"),
    ("runs/ask/ask-1?tab=data", "You said:"),
    ("runs/expense/expense-1", "Open in the inbox"),
    ("runs/doc:invoice/i-2?tab=graph", "State submitted"),
    ("inbox", "train tickets"),
    ("batches", "ask/ask-1"),
    ("batches?by=model", "anthropic claude-haiku-4-5"),
    ("documents?type=invoice&id=i-2", "Audit"),
    ("documents?type=invoice&id=i-3", "decided"),
    ("documents?type=invoice&id=i-c0", "<img src=x"),
    ("documents?type=invoice&id=i-c3", "<svg onload"),
    ("definitions?type=invoice", "Budget owner"),
    ("definitions?type=invoice&part=changes", "by the definition"),
    ("definitions?type=invoice&part=editor", "The draft compiles"),
    ("definitions?type=invoice&part=versions", "Version 1"),
    ("definitions?type=invoice&part=simulate", "Scenario"),
    ("definitions?type=invoice&part=expressions", "Try an expression"),
    ("health", "invoice"),
    ("workers", "Drain"),
    ("dead-letters", "the scale is broken"),
    ("dead-letters?run=", "<svg onload"),
    ("schedules", "nightly"),
    ("webhooks", "endpoint"),
    ("records?collection=carts&id=cart-1", "12345678901234567890.1"),
    ("runs?workflow=broken", "broken-10"),
    ("runs/broken/broken-0", "<img src=x"),
    ("runs/broken/broken-3", "<svg onload"),
    ("runs/broken/broken-8?tab=data", "javascript:window"),
    ("runs/hello/hello-c3?tab=logs", "<svg onload"),
    ("runs/hello/hello-c9?tab=data", "constructor.constructor"),
    ("runs/parcel/parcel-c3", "<svg onload"),
    ("settings", "API keys"),
    ("settings", "<svg onload"),
    ("?span=day", "last 24 hours"),
    ("nothing/here", "There is no such page"),
];

struct Site {
    world: World,
    origin: String,
    stop: oneshot::Sender<()>,
    served: JoinHandle<std::io::Result<()>>,
}

impl Site {
    async fn start(options: impl FnOnce(&World) -> Options) -> Self {
        let world = World::open().await.unwrap();
        let router = windlass_server::router(&world.engine, options(&world)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let until_stop = async {
            let _ = stopped.await;
        };
        let serving = ServeOptions::default();
        let served =
            tokio::spawn(windlass_server::serve_with(listener, router, serving, until_stop));
        Self { world, origin, stop, served }
    }

    async fn stop(self) {
        drop(self.stop);
        self.served.await.unwrap().unwrap();
        self.world.engine.stop(Duration::from_secs(5)).await.unwrap();
    }
}

async fn seeded() -> Site {
    let site =
        Site::start(|world| Options { auth: Auth::LoopbackAs(fay()), ..world.options() }).await;
    site.world.add_documents(Values::Hostile).await.unwrap();
    let api = format!("{}/api", site.origin);
    seed(&http_client(), &api, Values::Hostile).await;
    seed_people(&http_client(), &api, Values::Hostile).await;
    site
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_view_shows_its_data_and_no_error() {
    with_timeout(views()).await;
}

async fn views() {
    let site = seeded().await;
    let browser = Browser::open(1280, 900).await;
    let mut problems = Vec::new();
    for (path, text) in VIEWS {
        browser.goto(&format!("{}/ui/{path}", site.origin)).await;
        browser.until_text(text).await;
        // What is folded shows values too.
        browser.eval(UNFOLD).await;
        browser.until(&format!("{path} has read what is unfolded"), SETTLED).await;
        if browser.eval("return window.__xss === 1").await != json!(false) {
            problems.push(format!("{path}: a user value ran as a script"));
        }
        let over = "return document.documentElement.scrollWidth > window.innerWidth";
        if browser.eval(over).await != json!(false) {
            problems.push(format!("{path}: it is wider than the window"));
        }
        problems.extend(browser.errors().await.into_iter().map(|error| format!("{path}: {error}")));
    }
    browser.close().await;
    site.stop().await;
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Opens what is folded.
const UNFOLD: &str = "document.querySelectorAll('main .j-toggle[aria-expanded=false]')\
                      .forEach(one => one.click())";

/// Whether the view has read everything that it shows.
const SETTLED: &str = "return document.querySelector('h1') !== null \
                       && document.querySelector('.loading') === null";

/// The first words of buttons that change something.
const ACTS: &[&str] = &[
    "Add",
    "Amend",
    "Archive",
    "Cancel",
    "Change",
    "Create",
    "Decide",
    "Delegate",
    "Delete",
    "Drain",
    "Dry",
    "Edit",
    "Enable",
    "Flush",
    "Move",
    "New",
    "Pause",
    "Publish",
    "Purge",
    "Raise",
    "Rebuild",
    "Remove",
    "Requeue",
    "Reset",
    "Restart",
    "Resume",
    "Retry",
    "Revoke",
    "Roll",
    "Run",
    "Save",
    "Send",
    "Set",
    "Start",
    "Terminate",
    "Withdraw",
    "approve",
    "reject",
    "abstain",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_sees_no_act_in_any_view() {
    with_timeout(reader()).await;
}

/// What a view shows to a reader when its data is there, or that it needs another scope.
fn reader_sees<'a>(path: &str, text: &'a str) -> &'a str {
    match path.split(['?', '/']).next().unwrap_or_default() {
        "documents" => "Documents need a key with the scope",
        "definitions" => "so they need a key with the scope",
        "inbox" => "The inbox needs a key with the scope",
        "settings" => "API keys are shown to callers",
        "workers" => "Concurrency limits",
        "records" => "Sign in with a key that has the scope",
        _ => match path {
            "runs/expense/expense-1" => "approval",
            "runs/doc:invoice/i-2?tab=graph" => "needs a key with the scope",
            _ => text,
        },
    }
}

async fn reader() {
    let (store, with_keys) = options_with_keys();
    let auth = with_keys.auth;
    let site = Site::start(|world| Options { auth, ..world.options() }).await;
    let keys = keys_of(&store, &site);
    let read = key(&keys, &[Scope::Read], None).await;
    let admin = key(&keys, &[Scope::Admin], None).await;
    site.world.add_documents(Values::Hostile).await.unwrap();
    let bearer = format!("Bearer {admin}").parse().unwrap();
    let headers = [(reqwest::header::AUTHORIZATION, bearer)].into_iter().collect();
    // It also chooses the provider of TLS.
    drop(http_client());
    let http = reqwest::Client::builder().default_headers(headers).build().unwrap();
    seed(&http, &format!("{}/api", site.origin), Values::Hostile).await;
    let browser = Browser::open(1280, 900).await;
    browser.goto(&format!("{}/ui/", site.origin)).await;
    sign_in(&browser, &read).await;
    browser.until_heading("Overview").await;
    let buttons =
        "return [...document.querySelectorAll('main button')].map(one => one.textContent)";
    let mut problems = Vec::new();
    for (path, text) in VIEWS {
        browser.goto(&format!("{}/ui/{path}", site.origin)).await;
        // Acts come with the data that they are about.
        browser.until_text(reader_sees(path, text)).await;
        browser.until(&format!("{path} is shown"), SETTLED).await;
        let shown = browser.eval(buttons).await;
        for label in shown.as_array().unwrap().iter().filter_map(|label| label.as_str()) {
            let first = label.split_whitespace().next().unwrap_or_default();
            if ACTS.contains(&first) {
                problems.push(format!("{path}: {label}"));
            }
        }
    }
    browser.close().await;
    site.stop().await;
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_page_starts_a_run_with_one_click() {
    with_timeout(first_run()).await;
}

async fn first_run() {
    let site =
        Site::start(|world| Options { auth: Auth::LoopbackAs(fay()), ..world.options() }).await;
    let browser = Browser::open(1280, 900).await;
    browser.goto(&format!("{}/ui/", site.origin)).await;
    browser.until_text("No run yet").await;
    // Also a view that follows no run is live.
    let live = "return document.querySelector('.pill.p-live') !== null";
    browser.until("the stream is live", live).await;
    browser.eval("document.querySelector('.empty button').click()").await;
    let shown = "return location.pathname.startsWith('/ui/runs/hello/')";
    browser.until("the run is shown", shown).await;
    browser.until_text("3 of 3 steps").await;
    assert_eq!(browser.errors().await, Vec::<String>::new());
    browser.close().await;
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_open_what_is_far_down() {
    with_timeout(links()).await;
}

async fn links() {
    let site =
        Site::start(|world| Options { auth: Auth::LoopbackAs(fay()), ..world.options() }).await;
    let engine = &site.world.engine;
    let wide = engine.remote_workflow::<u32, usize>("fan-out").unwrap();
    wide.start(1_100).id("wide").await.unwrap().result().await.unwrap();
    for n in 0..120 {
        let url = format!("{}/api/records/carts/cart-{n:03}", site.origin);
        let body = format!("{{\"number\":\"number {n}\"}}");
        let request = http_client().put(url).header("if-none-match", "*").body(body);
        let request = request.header("content-type", "application/json");
        assert!(request.send().await.unwrap().status().is_success());
    }
    let browser = Browser::open(1280, 900).await;
    // Both are on a page that the view does not read at first.
    browser.goto(&format!("{}/ui/runs/fan-out/wide?step=square-1090", site.origin)).await;
    let opened =
        "return document.querySelector('section[aria-label=\"Step square-1090\"]') !== null";
    browser.until("the step is open", opened).await;
    browser.goto(&format!("{}/ui/runs/fan-out/wide?step=square-9999", site.origin)).await;
    browser.until_text("The run has no step square-9999").await;
    browser.goto(&format!("{}/ui/records?collection=carts&id=cart-119", site.origin)).await;
    browser.until_text("number 119").await;
    // A filter of the address is shown.
    browser.goto(&format!("{}/ui/runs?model=steps", site.origin)).await;
    browser.until_text("model steps").await;
    assert_eq!(browser.errors().await, Vec::<String>::new());
    browser.close().await;
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edits_are_kept_and_acts_have_the_filter_of_the_list() {
    with_timeout(edits()).await;
}

async fn edits() {
    let site = seeded().await;
    let browser = Browser::open(1280, 900).await;
    // An act on all runs is refused while the list has no valid filter.
    let dry_run = "return [...document.querySelectorAll('.bulk button')].map(one => one.disabled)";
    browser.goto(&format!("{}/ui/runs?label=note", site.origin)).await;
    browser.until_text("Write the label as key:value").await;
    assert_eq!(browser.eval(dry_run).await, json!([true]));
    browser.goto(&format!("{}/ui/runs?label=note%3Aa%26b", site.origin)).await;
    browser.until_text("hello-1").await;
    assert_eq!(browser.eval(dry_run).await, json!([false]));
    browser.errors().await;
    // A change that is not saved survives another view, and numbers keep their digits.
    let editor = format!("{}/ui/definitions?type=invoice&part=editor", site.origin);
    browser.goto(&editor).await;
    browser.until_text("The draft compiles").await;
    let add = "[...document.querySelectorAll('.chip')]\
               .find(one => one.textContent === '+ action').click()";
    browser.eval(add).await;
    let ready = "return document.querySelector('.flow-node textarea') !== null";
    browser.until("the nodes are shown", ready).await;
    let edit = "const field = document.querySelector('.flow-node textarea'); \
                const set = Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, 'value').set; \
                set.call(field, '{\"mutation\":{\"actionType\":\"ledger.post\",' + \
                '\"payloadTemplate\":{\"limit\":1.50}}}'); \
                field.dispatchEvent(new Event('input', { bubbles: true }))";
    browser.eval(edit).await;
    browser.until_text("Save the draft").await;
    // Another page would first ask; another view does not.
    let leave = "document.querySelector('nav[aria-label=Views] a[href$=runs]').click()";
    browser.eval(leave).await;
    browser.until_text("hello-1").await;
    browser.goto(&editor).await;
    browser.until_text("The editor continues with changes that were not saved").await;
    let kept = "return [...document.querySelectorAll('.flow-node textarea')]\
                .some(one => one.value.includes('1.50'))";
    browser.until("the change is kept", kept).await;
    let save = "[...document.querySelectorAll('button')]\
                .find(one => one.textContent === 'Save the draft').click()";
    browser.eval(save).await;
    // The server reads a number where only a text is allowed, and not an object.
    browser.until_text("floating point `1.5`").await;
    browser.eval(leave).await;
    browser.until_text("hello-1").await;
    browser.close().await;
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_can_be_done_by_keyboard() {
    with_timeout(keyboard()).await;
}

// Presses Tab until the focused element has this text or name.
async fn tab_to(browser: &Browser, text: &str) {
    let focused = format!(
        "const at = document.activeElement; const wanted = {}; return (at.ariaLabel ?? \
         at.textContent ?? '').trim().startsWith(wanted) || at.getAttribute('name') === wanted",
        json!(text)
    );
    for _ in 0..200 {
        browser.press("\u{e004}").await;
        if browser.eval(&focused).await == json!(true) {
            return;
        }
    }
    panic!("Tab does not reach {text:?}");
}

async fn keyboard() {
    let site = seeded().await;
    let browser = Browser::open(1280, 900).await;
    browser.goto(&format!("{}/ui/", site.origin)).await;
    browser.until_heading("Overview").await;
    browser.press("gs").await;
    browser.until_heading("Schedules").await;
    browser.chord(CONTROL, 'k').await;
    browser
        .until("the palette is open", "return document.querySelector('dialog[open]') !== null")
        .await;
    browser.press("hello-1").await;
    let hit = "return [...document.querySelectorAll('[role=option]')]\
               .some(one => one.textContent.includes('hello/hello-1'))";
    browser.until("the palette finds the run", hit).await;
    browser.press(&ENTER.to_string()).await;
    browser.until_heading("hello/hello-1").await;
    browser.press("?").await;
    let open = "return document.querySelector('dialog[open][aria-label=Keys]') !== null";
    browser.until("the keys are shown", open).await;
    browser.press(&ESCAPE.to_string()).await;
    browser.until("the keys are hidden", "return document.querySelector('dialog') === null").await;
    // A decision.
    browser.press("gi").await;
    browser.until_text("train tickets").await;
    tab_to(&browser, "Pay train tickets").await;
    browser.press(&ENTER.to_string()).await;
    browser.until_text("What it is about").await;
    tab_to(&browser, "comment").await;
    browser.press("fine").await;
    tab_to(&browser, "approve").await;
    browser.press(&ENTER.to_string()).await;
    browser.until_text("A decision is final").await;
    tab_to(&browser, "approve").await;
    browser.press(&ENTER.to_string()).await;
    let run =
        format!("{}/api/workflows/expense/instances/expense-2/result?waitMs=30000", site.origin);
    let result: serde_json::Value =
        http_client().get(run).send().await.unwrap().json().await.unwrap();
    assert_eq!(result["details"]["output"], "approved", "{result}");
    assert_eq!(browser.errors().await, Vec::<String>::new());
    browser.close().await;
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_ends_leads_to_the_sign_in_and_back() {
    with_timeout(session()).await;
}

fn keys_of(store: &Arc<dyn KeyStore>, site: &Site) -> Keys {
    let engine = site.world.engine.clone();
    Keys::new(Arc::clone(store), Arc::new(move || engine.core().clock().now()))
}

async fn key(keys: &Keys, scopes: &[Scope], expires_in: Option<Duration>) -> String {
    let new = NewKey {
        name: "browser".into(),
        namespace: Namespace::new("default").unwrap(),
        scopes: scopes.to_vec(),
        subject: None,
        created_by: None,
        expires_in,
    };
    keys.create(new).await.unwrap().key
}

async fn sign_in(browser: &Browser, key: &str) {
    browser.until("the sign-in is shown", "return document.getElementById('key') !== null").await;
    browser.eval("document.getElementById('key').focus()").await;
    browser.press(key).await;
    browser.press(&ENTER.to_string()).await;
}

async fn session() {
    let (store, with_keys) = options_with_keys();
    let (auth, recheck_every) = (with_keys.auth, Duration::from_millis(100));
    let site = Site::start(|world| Options { auth, recheck_every, ..world.options() }).await;
    let keys = keys_of(&store, &site);
    let started = site.world.engine.remote_workflow::<serde_json::Value, String>("hello").unwrap();
    started.start(json!("Ada")).id("hello-1").await.unwrap().result().await.unwrap();
    let read = [Scope::Read];
    let revoked = key(&keys, &read, None).await;
    let last = key(&keys, &[Scope::Read, Scope::Manage], None).await;
    let admin = key(&keys, &[Scope::Admin], None).await;
    let browser = Browser::open(1280, 900).await;
    let path = "/ui/runs/hello/hello-1?tab=ledger";
    browser.goto(&format!("{}{path}", site.origin)).await;
    let acts = "return [...document.querySelectorAll('button')].some(one => one.textContent === 'Restart')";
    let live = "return document.querySelector('.pill.p-live') !== null";
    sign_in(&browser, &revoked).await;
    browser.until_text("workflow.completed").await;
    browser.until("the stream is live", live).await;
    assert_eq!(browser.eval(acts).await, json!(false), "a reader sees no acts");
    let id = revoked.split('_').nth(1).unwrap();
    let request = http_client().delete(format!("{}/api/keys/{id}", site.origin));
    assert!(request.bearer_auth(&admin).send().await.unwrap().status().is_success());
    // This key ends by itself, while the page streams.
    let expiring = key(&keys, &read, Some(Duration::from_secs(5))).await;
    sign_in(&browser, &expiring).await;
    browser.until_text("workflow.completed").await;
    browser.until("the stream is live", live).await;
    sign_in(&browser, &last).await;
    browser.until_text("workflow.completed").await;
    browser.until("the stream is live again", live).await;
    browser.until("the acts are shown", acts).await;
    let at = browser.eval("return location.pathname + location.search").await;
    assert_eq!(at, json!(path), "the same place");
    browser.close().await;
    site.stop().await;
}
