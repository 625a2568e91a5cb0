//! Shared test helpers: running the binary, and servers to run it against.

use std::io::BufReader;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The time limit of any wait in a test.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// The binary, without the WINDLASS_ variables of this process.
pub(crate) fn windlass() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        // `windlass dev` would use a key that it finds.
        if ["WINDLASS_", "ANTHROPIC_", "OPENAI_"].iter().any(|start| text.starts_with(start)) {
            command.env_remove(name);
        }
    }
    command
}

/// A client for requests of the tests. reqwest leaves the choice of a TLS provider to the program.
pub(crate) fn http_client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}

/// The exit code and output of a command.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl CommandOutput {
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}\n{}", self.stdout, self.stderr);
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs a command to completion.
pub(crate) fn run(mut command: Command) -> CommandOutput {
    let output = command.stdin(Stdio::null()).output().expect("the binary starts");
    CommandOutput {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).expect("it prints UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("it prints UTF-8"),
    }
}

/// Runs the binary with arguments.
pub(crate) fn run_cli(args: &[&str]) -> CommandOutput {
    let mut command = windlass();
    command.args(args);
    run(command)
}

/// A server process. It is killed on drop.
pub(crate) struct Server {
    child: Child,
    /// The base URL of its API.
    pub(crate) url: String,
    /// The lines that it printed until it was ready.
    pub(crate) banner: Vec<String>,
}

impl Server {
    /// Starts `windlass server` with the samples on a free port.
    pub(crate) fn start(store: &str) -> Self {
        Self::start_at(store, "127.0.0.1:0")
    }

    /// Like [`Self::start`], on a given address.
    pub(crate) fn start_at(store: &str, bind: &str) -> Self {
        let mut command = windlass();
        command.args(["server", "--auth", "off", "--samples", "--bind", bind, "--store", store]);
        command.args(["--log", "error"]);
        Self::spawn(command)
    }

    /// Starts a server command, and reads its address from the output.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        // `dev` prints the address to standard output, `server` to standard error.
        let (to, lines) = std::sync::mpsc::channel();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let also = to.clone();
        std::thread::spawn(move || forward(BufReader::new(stdout), &to));
        std::thread::spawn(move || forward(BufReader::new(stderr), &also));
        let mut banner = Vec::new();
        let url = loop {
            let line = lines.recv_timeout(TEST_TIMEOUT).expect("the server prints its address");
            let url = line.split_whitespace().find(|word| word.starts_with("http://"));
            let url = url.map(|url| url.trim_end_matches(',').to_owned());
            banner.push(line);
            if let Some(url) = url.filter(|url| url.ends_with("/api")) {
                break url;
            }
        };
        // The rest of the banner follows immediately.
        while let Ok(line) = lines.recv_timeout(Duration::from_millis(300)) {
            banner.push(line);
        }
        Self { child, url, banner }
    }

    /// The address that it listens on.
    pub(crate) fn bind(&self) -> String {
        self.url.trim_start_matches("http://").trim_end_matches("/api").to_owned()
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &pid]).status();
        assert!(sent.expect("kill starts").success());
    }

    /// Waits until the process has exited.
    pub(crate) fn wait(mut self) -> Option<i32> {
        self.child.wait().expect("it ends").code()
    }

    /// Starts a management command in the background.
    pub(crate) fn spawn_command(&self, args: &[&str]) -> BackgroundCommand {
        BackgroundCommand::start(self.command(args))
    }

    /// Creates a management command for this server.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = windlass();
        command.args(args).env("WINDLASS_URL", &self.url);
        command
    }

    /// Runs a management command against this server.
    pub(crate) fn run(&self, args: &[&str]) -> CommandOutput {
        run(self.command(args))
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    /// Sends SIGTERM, and waits until the process has exited.
    pub(crate) fn terminate(self) -> Option<i32> {
        self.signal("TERM");
        self.wait()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command in the background. It is killed on drop.
pub(crate) struct BackgroundCommand {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
    seen: Vec<String>,
}

impl BackgroundCommand {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let (to, lines) = std::sync::mpsc::channel();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let also = to.clone();
        std::thread::spawn(move || forward(BufReader::new(stdout), &to));
        std::thread::spawn(move || forward(BufReader::new(stderr), &also));
        Self { child, lines, seen: Vec::new() }
    }

    /// Waits for a line that contains this text.
    #[track_caller]
    pub(crate) fn wait_for_line(&mut self, text: &str) {
        loop {
            let line = self.lines.recv_timeout(TEST_TIMEOUT);
            let line =
                line.unwrap_or_else(|_| panic!("no line contains {text:?}: {:#?}", self.seen));
            let found = line.contains(text);
            self.seen.push(line);
            if found {
                return;
            }
        }
    }

    /// Waits for the exit. Returns the exit code and all lines.
    pub(crate) fn wait(mut self) -> (Option<i32>, Vec<String>) {
        while let Ok(line) = self.lines.recv_timeout(TEST_TIMEOUT) {
            self.seen.push(line);
        }
        let code = self.child.wait().expect("it ends").code();
        (code, std::mem::take(&mut self.seen))
    }
}

impl Drop for BackgroundCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn forward(lines: impl std::io::BufRead, to: &std::sync::mpsc::Sender<String>) {
    for line in lines.lines().map_while(Result::ok) {
        if to.send(line).is_err() {
            return;
        }
    }
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is() {
        assert!(started.elapsed() < TEST_TIMEOUT, "timeout while waiting until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The address of a SQLite store in a folder.
pub(crate) fn sqlite_in(folder: &Path, name: &str) -> String {
    format!("sqlite:{}", folder.join(name).display())
}

/// Creates an empty database on the test PostgreSQL.
pub(crate) fn postgres() -> Database {
    let admin = std::env::var("WINDLASS_TEST_PG")
        .expect("WINDLASS_TEST_PG is not set; run the tests with: cargo xtask pg -- cargo test …");
    Database::create(admin)
}

/// A database for one test. It is dropped with the value.
pub(crate) struct Database {
    admin: String,
    name: String,
    pub(crate) url: String,
}

impl Database {
    fn create(admin: String) -> Self {
        let name = format!("cli_{}_{}", std::process::id(), counter());
        execute(&admin, &format!("CREATE DATABASE {name}"));
        Self { url: with_database(&admin, &name), admin, name }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        execute(&self.admin, &format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name));
    }
}

pub(crate) fn execute(url: &str, sql: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (client, connection) =
            tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
        let running = tokio::spawn(connection);
        client.batch_execute(sql).await.unwrap();
        drop(client);
        running.await.unwrap().unwrap();
    });
}

/// The number that a statement selects.
pub(crate) fn count(url: &str, sql: &str) -> i64 {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (client, connection) =
            tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
        let running = tokio::spawn(connection);
        let count = client.query_one(sql, &[]).await.unwrap().get(0);
        drop(client);
        running.await.unwrap().unwrap();
        count
    })
}

fn counter() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

// The address with another database in it: what stands between the host and the parameters.
fn with_database(admin: &str, name: &str) -> String {
    let (main, params) = match admin.split_once('?') {
        Some((main, params)) => (main, format!("?{params}")),
        None => (admin, String::new()),
    };
    let host = main.find("://").map_or(0, |at| at + 3);
    let path = main[host..].find('/').map_or(main.len(), |at| host + at);
    format!("{}/{name}{params}", &main[..path])
}
