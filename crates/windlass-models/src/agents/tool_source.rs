//! Tools that are described by data, and the places outside the program that have them.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use windlass_kernel::canonical::value_to_canonical;
use windlass_kernel::{BoxFuture, Sha256Digest};

use super::tool::{TOOL_TIMEOUT, ToolContext, ToolOutput};
use crate::any_error::AnyError;

type Call =
    dyn Fn(ToolContext, Value) -> BoxFuture<'static, Result<ToolOutput, AnyError>> + Send + Sync;

/// A tool whose name, description and schema are known only when the program runs.
#[derive(Clone)]
pub struct DynamicTool {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) schema: Value,
    pub(crate) timeout: Duration,
    pub(crate) call: Arc<Call>,
}

impl DynamicTool {
    /// A tool. `schema` is the JSON schema of its input, an object.
    pub fn new<F, Fut>(
        name: impl Into<String>,
        description: impl Into<String>,
        schema: Value,
        call: F,
    ) -> Self
    where
        F: Fn(ToolContext, Value) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<ToolOutput, AnyError>> + Send + 'static,
    {
        Self {
            name: name.into(),
            description: description.into(),
            schema,
            timeout: TOOL_TIMEOUT,
            call: Arc::new(move |context, input| Box::pin(call(context, input))),
        }
    }

    /// How long a call may take. Default two minutes.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for DynamicTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamicTool").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Tools of one place outside the program, for example of an MCP server. A run records the digest of the tools
/// with which it began, and fails with [`windlass_kernel::ErrorCode::McpToolsChanged`] when it would call tools
/// of a source that has others. A retry of the run uses the new ones.
#[derive(Clone, Debug)]
pub struct ToolSource {
    name: String,
    digest: Sha256Digest,
    tools: Vec<DynamicTool>,
}

impl ToolSource {
    /// A source with its tools. The order of the tools does not matter.
    pub fn new(name: impl Into<String>, mut tools: Vec<DynamicTool>) -> Self {
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        let described: Value = tools
            .iter()
            .map(|tool| {
                serde_json::json!({
                    "name": tool.name, "description": tool.description, "schema": tool.schema,
                })
            })
            .collect();
        // A number that JSON cannot write does not come out of a parser.
        let bytes = value_to_canonical(&described).unwrap_or_else(|_| described.to_string().into());
        Self { name: name.into(), digest: Sha256Digest::of(&bytes), tools }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The digest of all names, descriptions and schemas.
    pub fn digest(&self) -> Sha256Digest {
        self.digest
    }

    /// The tools, by name.
    pub fn tools(&self) -> &[DynamicTool] {
        &self.tools
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(name: &str, description: &str, schema: Value) -> DynamicTool {
        DynamicTool::new(name, description, schema, |_, input| async { Ok(ToolOutput::new(input)) })
    }

    #[test]
    fn the_digest_is_that_of_the_descriptions() {
        let a = || tool("a", "A", json!({ "x": 1, "y": 2 }));
        let b = || tool("b", "B", json!({}));
        let digest = |tools| ToolSource::new("s", tools).digest();
        let known = digest(vec![a(), b()]);
        assert_eq!(known, digest(vec![b(), a()]));
        assert_eq!(known, digest(vec![tool("a", "A", json!({ "y": 2, "x": 1 })), b()]));
        assert_eq!(known, digest(vec![a().timeout(Duration::ZERO), b()]));
        for other in [
            vec![a()],
            vec![tool("a", "?", json!({ "x": 1, "y": 2 })), b()],
            vec![tool("a", "A", json!({ "x": 2, "y": 2 })), b()],
            vec![tool("c", "A", json!({ "x": 1, "y": 2 })), b()],
        ] {
            assert_ne!(known, digest(other.clone()), "{other:?}");
        }
    }
}
