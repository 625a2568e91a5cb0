//! Tools of MCP servers as tools of agents, over standard input and output or over HTTP.

mod connection;
mod http;
mod stdio;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};
use windlass_kernel::{Error, ErrorCode, ErrorKind, IntoDuration, Sha256Digest};
use windlass_models::AnyError;
use windlass_models::agents::{DynamicTool, TOOL_TIMEOUT, ToolOutput, ToolSource};

use connection::{Connection, Failed};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const RECHECK_EVERY: Duration = Duration::from_secs(60);
const ANSWER_BYTES_MAX: usize = 4 << 20;
const TOOLS_MAX: usize = 256;
/// The maximum length of the name of a tool. Providers of models allow no more.
const NAME_CHARS_MAX: usize = 64;
/// How much of an error of a server is shown.
const MESSAGE_CHARS_MAX: usize = 500;

/// An MCP server whose tools an agent calls.
///
/// ```no_run
/// use windlass::agents::{Agent, AgentLoop, McpOptions, McpServer};
///
/// # async fn example() -> Result<(), windlass::Error> {
/// let docs = McpServer::http("docs", "https://docs.example/mcp", McpOptions::default().key("secret"));
/// let files = McpServer::stdio("files", "mcp-files", ["--read-only"], McpOptions::default());
/// let agent = Agent::new("helper", "help")
///     .agent_loop(AgentLoop::new("help", "anthropic", "claude-haiku-4-5"))
///     .tool_source(&docs?.connect().await?)
///     .tool_source(&files?.connect().await?);
/// # drop(agent);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct McpServer(Arc<Server>);

/// The options of an MCP server.
#[derive(Clone)]
pub struct McpOptions {
    prefix: String,
    only: Option<BTreeSet<String>>,
    key: Option<String>,
    headers: Vec<(String, String)>,
    env: Vec<(String, String)>,
    folder: Option<PathBuf>,
    timeout: Duration,
    connect_timeout: Duration,
    recheck_every: Duration,
    answer_bytes_max: usize,
    tools_max: usize,
    refused: Option<String>,
}

impl Default for McpOptions {
    fn default() -> Self {
        Self {
            prefix: String::new(),
            only: None,
            key: None,
            headers: Vec::new(),
            env: Vec::new(),
            folder: None,
            timeout: TOOL_TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
            recheck_every: RECHECK_EVERY,
            answer_bytes_max: ANSWER_BYTES_MAX,
            tools_max: TOOLS_MAX,
            refused: None,
        }
    }
}

/// Shows neither keys nor headers nor variables.
impl fmt::Debug for McpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpOptions")
            .field("prefix", &self.prefix)
            .field("only", &self.only)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl McpOptions {
    /// Puts a text before the names of all tools, so that two servers may have tools of the same name.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Uses only these tools of the server, by the server's own names. Default: all.
    #[must_use]
    pub fn only<I: Into<String>>(mut self, tools: impl IntoIterator<Item = I>) -> Self {
        self.only = Some(tools.into_iter().map(Into::into).collect());
        self
    }

    /// Sends `Authorization: Bearer …` with every request. Only over HTTP.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sends one more header with every request. Only over HTTP.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets a variable of the environment of the program. Only for a program: it gets `PATH`, `HOME` and these
    /// variables, and no others of this process.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Starts the program in this folder. Default: that of this process.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// How long a call of a tool may take. Default two minutes.
    #[must_use]
    pub fn timeout(mut self, timeout: impl IntoDuration) -> Self {
        let found = self.read("timeout", timeout);
        self.timeout = found.unwrap_or(self.timeout);
        self
    }

    /// How long connecting and listing the tools may take. Default 30 seconds.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: impl IntoDuration) -> Self {
        let found = self.read("connect_timeout", timeout);
        self.connect_timeout = found.unwrap_or(self.connect_timeout);
        self
    }

    /// How old the list of tools may be when a tool is called: an older one is read again and compared. Default
    /// one minute.
    #[must_use]
    pub fn recheck_every(mut self, every: impl IntoDuration) -> Self {
        let found = self.read("recheck_every", every);
        self.recheck_every = found.unwrap_or(self.recheck_every);
        self
    }

    /// How large an answer of the server may be. Default 4 MiB.
    #[must_use]
    pub fn answer_bytes_max(mut self, bytes: usize) -> Self {
        self.answer_bytes_max = bytes;
        self
    }

    /// How many tools the server may have. Default 256.
    #[must_use]
    pub fn tools_max(mut self, tools: usize) -> Self {
        self.tools_max = tools;
        self
    }

    fn read(&mut self, what: &str, duration: impl IntoDuration) -> Option<Duration> {
        match duration.into_duration() {
            Ok(duration) => Some(duration),
            Err(error) => {
                self.refused.get_or_insert(format!("{what} of an MCP server: {error}"));
                None
            }
        }
    }
}

#[derive(Debug)]
struct Server {
    name: String,
    options: McpOptions,
    connection: Connection,
}

impl McpServer {
    /// A server behind a URL. Plain `http` is only for loopback.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidUrl`], [`ErrorCode::InvalidHeader`] or [`ErrorCode::InvalidOption`].
    pub fn http(name: impl Into<String>, url: &str, options: McpOptions) -> Result<Self, Error> {
        let name = name.into();
        let transport = http::Http::new(&name, url, &options)?;
        Self::new(name, options, transport.into())
    }

    /// A server that is a program. It starts with the first request and ends with this process.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidOption`] if an option is not valid.
    pub fn stdio<I: Into<String>>(
        name: impl Into<String>,
        program: impl Into<String>,
        arguments: impl IntoIterator<Item = I>,
        options: McpOptions,
    ) -> Result<Self, Error> {
        let arguments = arguments.into_iter().map(Into::into).collect();
        let transport = stdio::Stdio::new(program.into(), arguments, &options);
        Self::new(name.into(), options, transport.into())
    }

    fn new(
        name: String,
        options: McpOptions,
        transport: connection::Transport,
    ) -> Result<Self, Error> {
        let refused = match &options.refused {
            Some(refused) => Some(refused.clone()),
            None if name.is_empty() => Some("the name of an MCP server is empty".to_owned()),
            None => None,
        };
        if let Some(message) = refused {
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message));
        }
        let connection = Connection::new(transport);
        Ok(Self(Arc::new(Server { name, options, connection })))
    }

    /// Lists the tools of the server. The tools of the source call this server; a run that called other ones
    /// before fails with [`ErrorCode::McpToolsChanged`].
    ///
    /// # Errors
    ///
    /// [`ErrorCode::McpUnavailable`] if the server cannot be reached or gives no answer in time,
    /// [`ErrorCode::McpProtocol`] if its answer cannot be used.
    pub async fn connect(&self) -> Result<ToolSource, Error> {
        self.0.source(&self.0.list().await?)
    }
}

/// A tool as the server lists it.
#[derive(Clone)]
struct Listed {
    name: String,
    description: String,
    schema: Value,
}

impl Server {
    async fn list(self: &Arc<Self>) -> Result<Vec<Listed>, Error> {
        let listing = self.connection.list_tools(self.options.tools_max);
        let listed = self.in_time(self.options.connect_timeout, listing).await?;
        let is_used =
            |tool: &Listed| self.options.only.as_ref().is_none_or(|only| only.contains(&tool.name));
        let missing = self
            .options
            .only
            .iter()
            .flatten()
            .find(|name| !listed.iter().any(|tool| tool.name == **name));
        if let Some(name) = missing {
            return Err(self.protocol(format!("it has no tool {name:?}, which `only` names")));
        }
        Ok(listed.into_iter().filter(is_used).collect())
    }

    fn source(self: &Arc<Self>, listed: &[Listed]) -> Result<ToolSource, Error> {
        // Every tool compares with the digest of all, which is known when all are made.
        let known = Arc::new(OnceLock::new());
        let mut names = BTreeSet::new();
        let mut tools = Vec::with_capacity(listed.len());
        for tool in listed {
            let name = self.public_name(&tool.name)?;
            if !names.insert(name.clone()) {
                return Err(self.protocol(format!("two of its tools have the name {name:?}")));
            }
            let (server, wire, known) = (Arc::clone(self), tool.name.clone(), Arc::clone(&known));
            let call = move |_, input| {
                let (server, wire, known) = (Arc::clone(&server), wire.clone(), Arc::clone(&known));
                async move { server.call(&wire, input, known.get()).await.map_err(AnyError::from) }
            };
            // The call ends with an error of its own before the agent gives it up.
            let timeout = self.options.timeout + self.options.connect_timeout * 2;
            let (description, schema) = (tool.description.clone(), tool.schema.clone());
            tools.push(DynamicTool::new(name, description, schema, call).timeout(timeout));
        }
        let source = ToolSource::new(self.name.clone(), tools);
        let _ = known.set(source.digest());
        Ok(source)
    }

    /// The name for models, which allow letters, digits, `_` and `-`.
    fn public_name(&self, name: &str) -> Result<String, Error> {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '_' };
        let public: String = self.options.prefix.chars().chain(name.chars()).map(plain).collect();
        if (1..=NAME_CHARS_MAX).contains(&public.len()) {
            return Ok(public);
        }
        Err(self.protocol(format!(
            "the name of its tool {:?} has {} characters with its prefix; 1 to {NAME_CHARS_MAX} are allowed",
            name.chars().take(80).collect::<String>(),
            public.len()
        )))
    }

    async fn call(
        self: &Arc<Self>,
        name: &str,
        input: Value,
        known: Option<&Sha256Digest>,
    ) -> Result<ToolOutput, Error> {
        // Twice, because the server may end between the list and the call.
        for _ in 0..2 {
            self.check_list(known).await?;
            let params = json!({ "name": name, "arguments": input });
            let calling = async {
                match self.connection.call_tool(params).await {
                    Err(Failed::Renewed) => Ok(None),
                    answered => answered.map(Some),
                }
            };
            match self.in_time_or_answer(self.options.timeout, calling).await? {
                Ok(Some(result)) => return self.output(result),
                // The model reads why the server refused the call.
                Err((code, message)) => {
                    return Ok(ToolOutput::error(format!("{message} (code {code})")));
                }
                Ok(None) => self.connection.forget_list(),
            }
        }
        Err(self.unavailable("it ends again and again"))
    }

    /// Reads the list of tools again if it is old, and compares it.
    async fn check_list(self: &Arc<Self>, known: Option<&Sha256Digest>) -> Result<(), Error> {
        if !self.connection.must_list(self.options.recheck_every) {
            return Ok(());
        }
        let found = self.source(&self.list().await?)?.digest();
        let Some(known) = known.filter(|known| **known != found) else { return Ok(()) };
        // The next call looks again.
        self.connection.forget_list();
        let message = format!(
            "the MCP server {:?} has other tools than before: their digest was {known} and is {found}; \
             start the program again to use them",
            self.name
        );
        Err(Error::new(ErrorKind::Conflict, ErrorCode::McpToolsChanged, message))
    }

    fn output(&self, mut result: Value) -> Result<ToolOutput, Error> {
        let kind = result["resultType"].as_str().unwrap_or("complete");
        if kind != "complete" {
            let message =
                format!("the result of a tool is of type {kind:?}, which is not supported");
            return Err(self.protocol(message));
        }
        let is_error = result["isError"] == true;
        let content = match result["structuredContent"].take() {
            Value::Null => Value::String(text_of(&result["content"])),
            structured => structured,
        };
        Ok(ToolOutput { content, is_error })
    }

    async fn in_time<T>(
        &self,
        timeout: Duration,
        work: impl Future<Output = Result<T, Failed>>,
    ) -> Result<T, Error> {
        let answered = self.in_time_or_answer(timeout, work).await?;
        answered.map_err(|(code, message)| {
            self.protocol(format!("it refused a request: {message} (code {code})"))
        })
    }

    /// The result, or the error that the server answered with.
    #[expect(clippy::disallowed_methods, reason = "the other side lives in the real world")]
    async fn in_time_or_answer<T>(
        &self,
        timeout: Duration,
        work: impl Future<Output = Result<T, Failed>>,
    ) -> Result<Result<T, (i64, String)>, Error> {
        match tokio::time::timeout(timeout, work).await {
            Ok(Ok(value)) => Ok(Ok(value)),
            Ok(Err(Failed::Answered { code, message })) => {
                Ok(Err((code, message.chars().take(MESSAGE_CHARS_MAX).collect())))
            }
            Ok(Err(Failed::Expired | Failed::Renewed)) => {
                Err(self.unavailable("it does not know the session"))
            }
            Ok(Err(Failed::Unavailable(why))) => Err(self.unavailable(&why)),
            Ok(Err(Failed::Protocol(why))) => Err(self.protocol(why)),
            Err(_) => Err(self.unavailable(&format!("it gave no answer within {timeout:?}"))),
        }
    }

    fn unavailable(&self, why: &str) -> Error {
        let message =
            format!("the MCP server {:?} cannot be used: {}", self.name, self.without_key(why));
        Error::new(ErrorKind::Unavailable, ErrorCode::McpUnavailable, message)
    }

    fn protocol(&self, why: impl AsRef<str>) -> Error {
        let why = self.without_key(why.as_ref());
        let message = format!("the answer of the MCP server {:?} cannot be used: {why}", self.name);
        Error::new(ErrorKind::Failed, ErrorCode::McpProtocol, message)
    }

    fn without_key(&self, text: &str) -> String {
        match self.options.key.as_deref().filter(|key| !key.is_empty()) {
            Some(key) => text.replace(key, "[key]"),
            None => text.to_owned(),
        }
    }
}

/// The content of a result as text. Models of all providers read text; other content is named.
fn text_of(content: &Value) -> String {
    let blocks = content.as_array().map_or(&[][..], Vec::as_slice);
    let texts = blocks.iter().map(|block| match block["type"].as_str() {
        Some("text") => block["text"].as_str().unwrap_or_default().to_owned(),
        Some("resource") => match block["resource"]["text"].as_str() {
            Some(text) => text.to_owned(),
            None => format!(
                "[resource {}]",
                block["resource"]["uri"].as_str().unwrap_or("without a name")
            ),
        },
        Some("resource_link") => {
            format!("[resource {}]", block["uri"].as_str().unwrap_or_default())
        }
        kind => format!(
            "[{} {}, {} characters of base64]",
            kind.unwrap_or("content"),
            block["mimeType"].as_str().unwrap_or("of unknown type"),
            block["data"].as_str().map_or(0, str::len)
        ),
    });
    texts.collect::<Vec<_>>().join("\n")
}
