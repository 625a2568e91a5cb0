//! What the tests share: running the binary, and servers that it runs against.

use std::io::BufReader;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than anything takes on a slow machine; a test that waits so long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The binary, with nothing of this process's environment that it would read.
pub(crate) fn windlass() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("WINDLASS_") {
            command.env_remove(name);
        }
    }
    command
}

/// What a command said and how it ended.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}\n{}", self.out, self.err);
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs a command to its end.
pub(crate) fn run(mut command: Command) -> Said {
    let output = command.stdin(Stdio::null()).output().expect("the binary starts");
    Said {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).expect("it prints UTF-8"),
        err: String::from_utf8(output.stderr).expect("it prints UTF-8"),
    }
}

/// Runs the binary with arguments.
pub(crate) fn say(args: &[&str]) -> Said {
    let mut command = windlass();
    command.args(args);
    run(command)
}

/// A server process. It is killed when the test ends, however it ends.
pub(crate) struct Server {
    child: Child,
    /// The base URL of its API.
    pub(crate) url: String,
    /// What it printed until it was ready.
    pub(crate) banner: Vec<String>,
}

impl Server {
    /// Starts `windlass server` on a store with the samples, on a port of its own.
    pub(crate) fn start(store: &str) -> Self {
        Self::start_at(store, "127.0.0.1:0")
    }

    /// As [`Self::start`], where one was before.
    pub(crate) fn start_at(store: &str, bind: &str) -> Self {
        let mut command = windlass();
        command.args(["server", "--samples", "--bind", bind, "--store", store]);
        command.args(["--log", "error"]);
        Self::spawn(command)
    }

    /// Starts a command that serves, and reads where.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        // The one prints its addresses for people, the other notes them beside its log.
        let (to, lines) = std::sync::mpsc::channel();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let also = to.clone();
        std::thread::spawn(move || forward(BufReader::new(stdout), &to));
        std::thread::spawn(move || forward(BufReader::new(stderr), &also));
        let mut banner = Vec::new();
        let url = loop {
            let line = lines.recv_timeout(PATIENCE).expect("the server says where it is");
            let url = line.split_whitespace().find(|word| word.starts_with("http://"));
            let url = url.map(|url| url.trim_end_matches(',').to_owned());
            banner.push(line);
            if let Some(url) = url.filter(|url| url.ends_with("/api")) {
                break url;
            }
        };
        // The rest of the banner comes at once.
        while let Ok(line) = lines.recv_timeout(Duration::from_millis(300)) {
            banner.push(line);
        }
        Self { child, url, banner }
    }

    /// Where it listens.
    pub(crate) fn bind(&self) -> String {
        self.url.trim_start_matches("http://").trim_end_matches("/api").to_owned()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &pid]).status();
        assert!(sent.expect("kill starts").success());
    }

    /// Waits until it has ended by itself.
    pub(crate) fn ended(mut self) -> Option<i32> {
        self.child.wait().expect("it ends").code()
    }

    /// Starts a management command against this server, and leaves it running.
    pub(crate) fn begin(&self, args: &[&str]) -> Running {
        Running::start(self.command(args))
    }

    /// A management command against this server.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = windlass();
        command.args(args).env("WINDLASS_URL", &self.url);
        command
    }

    /// Runs a management command against this server.
    pub(crate) fn say(&self, args: &[&str]) -> Said {
        run(self.command(args))
    }

    /// Ends it as the kernel would: without a word.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    /// Asks it to stop, and waits until it has.
    pub(crate) fn terminate(self) -> Option<i32> {
        self.signal("TERM");
        self.ended()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that runs beside the test. It is killed when the test ends, however it ends.
pub(crate) struct Running {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
    seen: Vec<String>,
}

impl Running {
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

    /// Waits until it prints a line with this text.
    #[track_caller]
    pub(crate) fn until(&mut self, text: &str) {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("{text:?} never came: {:#?}", self.seen));
            let found = line.contains(text);
            self.seen.push(line);
            if found {
                return;
            }
        }
    }

    /// Waits until it ends: its exit code, and every line that it printed.
    pub(crate) fn end(mut self) -> (Option<i32>, Vec<String>) {
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            self.seen.push(line);
        }
        let code = self.child.wait().expect("it ends").code();
        (code, std::mem::take(&mut self.seen))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
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

/// Waits until something is so.
#[track_caller]
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is() {
        assert!(started.elapsed() < PATIENCE, "still not: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The address of a SQLite store in a folder.
pub(crate) fn sqlite_in(folder: &Path, name: &str) -> String {
    format!("sqlite:{}", folder.join(name).display())
}

/// The address of an empty database on the throw-away PostgreSQL of the tests.
pub(crate) fn postgres() -> Database {
    let admin = std::env::var("WINDLASS_TEST_PG")
        .expect("WINDLASS_TEST_PG is not set; run the tests with: cargo xtask pg -- cargo test …");
    Database::make(admin)
}

/// A database of one test; it goes when the test does.
pub(crate) struct Database {
    admin: String,
    name: String,
    pub(crate) url: String,
}

impl Database {
    fn make(admin: String) -> Self {
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
