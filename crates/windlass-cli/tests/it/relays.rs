//! The binary serves a relay whose steps run in Python: from a config file, across a kill between
//! two steps, and from a flag of the development server.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::json;

use crate::support::{
    Server, TEST_TIMEOUT, http_client, postgres, run, sqlite_in, wait_until, windlass,
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const RUNNER: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../windlass/examples/python/relay_runner.py");

/// The process of the example, with the line that it prints for each request.
struct Runner {
    child: Child,
    url: String,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Runner {
    fn start() -> Self {
        Self::of(Path::new(RUNNER), "0")
    }

    fn of(script: &Path, port: &str) -> Self {
        let mut child = Command::new("python3")
            .arg(script)
            .arg(port)
            .env("RELAY_SECRET", SECRET)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is installed (`cargo xtask test` installs it)");
        let mut printed = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = printed.next().expect("the runner prints its URL").unwrap();
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in printed.map_while(Result::ok) {
                seen.lock().unwrap().push(line);
            }
        });
        Self { child, url, lines }
    }

    /// The number of requests for each step.
    fn steps(&self) -> Vec<usize> {
        let lines = self.lines.lock().unwrap();
        let of = |step: &str| lines.iter().filter(|line| step_of(line) == Some(step)).count();
        vec![of("0"), of("1"), of("2")]
    }
}

// A line starts with the request id, whose last part is the step.
fn step_of(line: &str) -> Option<&str> {
    line.split(' ').next()?.rsplit('-').next()
}

impl Drop for Runner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(folder: &Path, store: &str, url: &str, secret: &str) -> Server {
    let file = format!(
        "[[relays]]\nname = \"greet\"\nurl = \"{url}\"\nsecret = \"env:RELAY_SECRET\"\n\
         allow = [\"127.0.0.1\"]\ntimeout = \"20 seconds\"\nmax_attempts = 5\nconcurrency = 8\n\
         [webhooks]\nsecret = [\"{OTHER}\", \"env:RELAY_SECRET\"]\nplain_http = true\n\
         allow = [\"127.0.0.1\"]\n"
    );
    let path = folder.join("relays.toml");
    std::fs::write(&path, file).unwrap();
    let mut command = windlass();
    command.args([
        "server",
        "--auth",
        "off",
        "--bind",
        "127.0.0.1:0",
        "--store",
        store,
        "--log",
        "error",
    ]);
    command.arg("--config").arg(path).env("RELAY_SECRET", secret);
    // An unreachable proxy proves that relays ignore proxy variables.
    for variable in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        command.env(variable, "http://127.0.0.1:9/");
    }
    Server::spawn(command)
}

fn create(server: &Server, id: &str) {
    let params = "{\"name\": \" ann \"}";
    server.run(&["runs", "create", "greet", "--id", id, "--params", params]).expect(0);
}

fn details(server: &Server, id: &str) -> serde_json::Value {
    let run = format!("greet/{id}");
    server.run(&["runs", "get", &run, "-o", "json"]).expect(0).json()["details"].clone()
}

fn until_status(server: &Server, id: &str, status: &str) -> serde_json::Value {
    wait_until(status, || details(server, id)["status"] == status);
    details(server, id)
}

#[test]
fn a_kill_between_two_steps_repeats_none_of_them_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_in(folder.path(), "app.db");
    a_kill_between_two_steps_repeats_none_of_them(folder.path(), &store);
}

#[test]
fn a_kill_between_two_steps_repeats_none_of_them_postgres() {
    let folder = tempfile::tempdir().unwrap();
    let database = postgres();
    a_kill_between_two_steps_repeats_none_of_them(folder.path(), &database.url);
}

fn a_kill_between_two_steps_repeats_none_of_them(folder: &Path, store: &str) {
    let runner = Runner::start();
    let server = serve(folder, store, &runner.url, SECRET);
    create(&server, "r-1");
    // The last step is delayed; the earlier steps are durable by then.
    until_status(&server, "r-1", "waiting");
    server.kill();
    let server = serve(folder, store, &runner.url, SECRET);
    let ended = until_status(&server, "r-1", "complete");
    assert_eq!(ended["output"], "Hello, Ann!");
    let steps = runner.steps();
    assert_eq!(steps[..2], [1, 1]);
    // On a slow machine the kill may interrupt the last step, which then runs twice.
    assert!(steps[2] >= 1, "{steps:?}");
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn a_step_is_retried_after_the_runner_dies() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("runner.py");
    let head = "def run_step(step):\n";
    let deadly =
        format!("{head}    if step[\"step\"] == 1 and step[\"attempt\"] == 1: os._exit(1)\n");
    let text = std::fs::read_to_string(RUNNER).unwrap();
    assert!(text.contains(head));
    std::fs::write(&script, text.replace(head, &deadly)).unwrap();
    let mut runner = Runner::of(&script, "0");
    let server = serve(folder.path(), "memory:", &runner.url, SECRET);
    create(&server, "r-1");
    assert_eq!(runner.child.wait().unwrap().code(), Some(1));
    assert_eq!(runner.steps()[0], 1);
    let port = runner.url.trim_end_matches('/').rsplit(':').next().unwrap().to_owned();
    let again = Runner::of(&script, &port);
    assert_eq!(until_status(&server, "r-1", "complete")["output"], "Hello, Ann!");
    assert_eq!(again.steps(), [0, 1, 1]);
    // An unexpected exception is reported, and the step is retried up to the limit of the relay.
    let params = "{\"name\": 5}";
    server.run(&["runs", "create", "greet", "--id", "odd", "--params", params]).expect(0);
    let found = || server.run(&["runs", "get", "greet/odd", "-o", "json"]).expect(0).json();
    let step = || found()["meta"]["currentStep"].clone();
    wait_until("the step is retried", || step()["attempts"].as_u64() >= Some(2));
    assert!(step()["error"].to_string().contains("AttributeError"), "{}", step());
}

#[test]
fn the_result_is_sent_to_the_callback_url() {
    let folder = tempfile::tempdir().unwrap();
    let runner = Runner::start();
    let server = serve(folder.path(), "memory:", &runner.url, SECRET);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let callback = format!("http://{}/told", listener.local_addr().unwrap());
    let report = std::thread::spawn(move || receive(&listener));
    let create = |headers: serde_json::Value| {
        let path = format!("{}/workflows/greet/instances", server.url);
        let body = json!({ "id": "r-1", "params": { "name": "cy" }, "headers": headers });
        runtime().block_on(async {
            let client = http_client();
            let answer = client.post(path).json(&body).send().await.unwrap();
            (answer.status().as_u16(), answer.json::<serde_json::Value>().await.unwrap())
        })
    };
    let (status, body) = create(json!({ "callback_url": "http://10.0.0.1/" }));
    assert_eq!((status, &body["code"]), (400, &json!("ADDRESS_REFUSED")), "{body}");
    let header = format!("callback_url={callback}");
    let args =
        ["runs", "create", "greet/r-1", "--params", "{\"name\":\"cy\"}", "--run-header", &header];
    server.run(&args).expect(0);
    let (head, body) = report.join().unwrap();
    assert!(head.starts_with("POST /told HTTP/1.1\r\n"), "{head}");
    assert_eq!(head.matches(" v1,").count(), 2, "{head}");
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["type"], "run.succeeded");
    let data = &body["data"];
    assert_eq!((&data["run_id"], &data["result"]), (&json!("r-1"), &json!("Hello, Cy!")));
}

/// Accepts one request and answers 204.
fn receive(listener: &std::net::TcpListener) -> (String, String) {
    let (mut stream, _) = listener.accept().unwrap();
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = stream.read(&mut buffer).unwrap();
        bytes.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8(bytes.clone()).unwrap();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if body.len() == length.unwrap().parse::<usize>().unwrap() {
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
            return (head.to_owned(), body.to_owned());
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn a_runner_with_another_secret_rejects_the_step() {
    let folder = tempfile::tempdir().unwrap();
    let runner = Runner::start();
    let server = serve(folder.path(), "memory:", &runner.url, OTHER);
    create(&server, "r-1");
    let ended = until_status(&server, "r-1", "errored");
    let message = ended["error"]["message"].as_str().unwrap();
    assert!(message.contains("401") && message.contains("signature is wrong"), "{message}");
    assert_eq!(runner.steps(), [1, 0, 0]);
    // The failed step becomes a dead letter; a requeue retries its run.
    let letters = server.run(&["dlq", "list", "-o", "json"]).expect(0).json();
    let letter = &letters["entries"][0];
    assert!(letter.to_string().contains("greet"), "{letters}");
    let output = server.run(&["dlq", "requeue", letter["id"].as_str().unwrap()]).expect(0);
    assert!(output.stdout.contains("its run continues as"), "{output:?}");
    wait_until("the step has failed again", || runner.steps() == [2, 0, 0]);
    until_status(&server, "r-1", "errored");
}

#[test]
fn dev_accepts_a_relay_flag() {
    let runner = Runner::start();
    let dev = || {
        let mut dev = windlass();
        let relay = format!("greet={}", runner.url);
        dev.args(["dev", "--ephemeral", "--port", "0", "--relay", &relay]);
        dev
    };
    let without = run(dev()).expect(2);
    assert!(without.stderr.contains("WINDLASS_RELAY_SECRET"), "{without:?}");
    let mut dev = dev();
    dev.env("WINDLASS_RELAY_SECRET", SECRET);
    let server = Server::spawn(dev);
    let patience = format!("{} seconds", TEST_TIMEOUT.as_secs());
    let args = ["runs", "create", "greet", "--params", "{\"name\": \"bo\"}", "--wait"];
    let output = server.run(&[&args[..], &["--timeout", &patience]].concat()).expect(0);
    assert_eq!(output.stdout.trim(), "\"Hello, Bo!\"");
}

#[test]
fn an_unreachable_relay_address_is_rejected_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let with = |url: &str, args: &[&str]| {
        let text = format!(
            "[[relays]]\nname = \"r\"\nurl = \"{url}\"\nsecret = \"{SECRET}\"\n\
             allow = [\"10.0.0.0/8\"]\n"
        );
        let path = folder.path().join("relays.toml");
        std::fs::write(&path, text).unwrap();
        let mut command = windlass();
        command.args(args).arg("--config").arg(path);
        command
    };
    let server = ["server", "--auth", "off", "--bind", "127.0.0.1:0", "--store", "memory:"];
    for (url, expect) in [
        ("http://127.0.0.1:9000/", "not public"),
        ("http://169.254.169.254/", "not public"),
        ("ftp://runner.example/", "scheme"),
    ] {
        let output = run(with(url, &server)).expect(2);
        assert!(output.stderr.contains(expect) && output.stderr.contains("\"r\""), "{output:?}");
        assert!(!output.stderr.contains(&SECRET[6..]), "{output:?}");
    }
    let output = run(with("http://10.0.0.1/?token=s3cret", &["config", "show"])).expect(0);
    assert!(output.stdout.contains("r=http://10.0.0.1/"), "{output:?}");
    assert!(
        !output.stdout.contains("s3cret") && !output.stdout.contains(&SECRET[6..]),
        "{output:?}"
    );
}
