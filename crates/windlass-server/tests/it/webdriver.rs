//! A client of WebDriver (W3C), for Debian's chromedriver: pages, scripts, keys, the console.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{WAIT_MAX, http_client};

const HINT: &str = "install Chromium and its driver, as `cargo xtask test` does: apt-get install chromium \
                    chromium-driver";

/// A running chromedriver. It ends with the value.
struct Driver {
    process: Child,
    url: String,
}

impl Driver {
    fn start() -> Self {
        let mut command = Command::new("chromedriver");
        command.arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap_or_else(|error| panic!("{error}: {HINT}"));
        let output = BufReader::new(process.stdout.take().expect("the output is piped"));
        let port = output.lines().map_while(Result::ok).find_map(|line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse::<u16>().ok()
        });
        let port = port.expect("chromedriver names its port");
        Self { process, url: format!("http://127.0.0.1:{port}") }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A browser with one window.
pub(crate) struct Browser {
    http: reqwest::Client,
    session: String,
    _driver: Driver,
}

/// Keys of a keyboard that are no characters.
pub(crate) const ENTER: char = '\u{e007}';
pub(crate) const ESCAPE: char = '\u{e00c}';
pub(crate) const CONTROL: char = '\u{e009}';

impl Browser {
    pub(crate) async fn open(width: u32, height: u32) -> Self {
        let driver = tokio::task::spawn_blocking(Driver::start).await.expect("the driver starts");
        let http = http_client();
        let args = [
            "--headless=new".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--force-prefers-reduced-motion".to_owned(),
            format!("--window-size={width},{height}"),
        ];
        let capabilities = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": { "args": args },
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let request = http.post(format!("{}/session", driver.url)).json(&capabilities);
        let answer: Value = request.send().await.unwrap().json().await.unwrap();
        let id = answer["value"]["sessionId"].as_str();
        let id = id.unwrap_or_else(|| panic!("no browser: {answer}; {HINT}"));
        let session = format!("{}/session/{id}", driver.url);
        Self { http, session, _driver: driver }
    }

    async fn post(&self, command: &str, body: Value) -> Value {
        let request = self.http.post(format!("{}/{command}", self.session)).json(&body);
        let mut answer: Value = request.send().await.unwrap().json().await.unwrap();
        assert!(answer["value"]["error"].is_null(), "{command} {body}: {answer}");
        answer["value"].take()
    }

    pub(crate) async fn goto(&self, url: &str) {
        self.post("url", json!({ "url": url })).await;
    }

    /// The value of a script's `return`.
    pub(crate) async fn eval(&self, script: &str) -> Value {
        self.post("execute/sync", json!({ "script": script, "args": [] })).await
    }

    /// Waits until a script returns true.
    pub(crate) async fn until(&self, what: &str, script: &str) {
        let deadline = Instant::now() + WAIT_MAX;
        while self.eval(script).await != json!(true) {
            if Instant::now() > deadline {
                let text = self.eval("return document.body.innerText").await;
                panic!("timeout while waiting until {what}; the page has the text {text}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the page shows a text.
    pub(crate) async fn until_text(&self, text: &str) {
        let script = format!("return document.body.textContent.includes({})", json!(text));
        self.until(&format!("the page shows {text:?}"), &script).await;
    }

    /// Waits until the page has a heading of the first level.
    pub(crate) async fn until_heading(&self, text: &str) {
        let script = format!(
            "return [...document.querySelectorAll('h1')].some(one => one.textContent === {})",
            json!(text)
        );
        self.until(&format!("the page has the heading {text:?}"), &script).await;
    }

    /// Presses keys, one after the other.
    pub(crate) async fn press(&self, keys: &str) {
        let actions: Vec<Value> = keys
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key })))
            .collect();
        self.keyboard(actions).await;
    }

    /// Presses a key while another one is held.
    pub(crate) async fn chord(&self, held: char, key: char) {
        let down = |key: char| json!({ "type": "keyDown", "value": key });
        let up = |key: char| json!({ "type": "keyUp", "value": key });
        self.keyboard(vec![down(held), down(key), up(key), up(held)]).await;
    }

    async fn keyboard(&self, actions: Vec<Value>) {
        let source = json!({ "type": "key", "id": "keyboard", "actions": actions });
        self.post("actions", json!({ "actions": [source] })).await;
    }

    /// The errors of the console since the last call: uncaught errors, refused resources, failed requests.
    pub(crate) async fn errors(&self) -> Vec<String> {
        let entries = self.post("se/log", json!({ "type": "browser" })).await;
        let entries = entries.as_array().cloned().unwrap_or_default();
        let severe = entries.iter().filter(|entry| entry["level"] == "SEVERE");
        severe.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    pub(crate) async fn close(self) {
        let _ = self.http.delete(&self.session).send().await;
    }
}
