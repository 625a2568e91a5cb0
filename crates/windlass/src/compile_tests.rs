//! Both styles of step bodies compile, and common mistakes do not. docs/decisions/0023-public-api.md has the
//! messages of the compiler.

/// A closure ends in `Ok(value)` and uses `?` on any error; a function keeps its own error type.
///
/// ```
/// use windlass::{Ctx, Engine, Result};
///
/// async fn pay(id: &str) -> Result<u32, std::num::ParseIntError> {
///     id.parse()
/// }
///
/// async fn order(ctx: Ctx, id: String) -> Result<u32> {
///     let number = ctx.step("parse", async || Ok(id.parse::<u32>()?)).await?;
///     let paid = ctx.call("pay", || pay(&id)).fatal_if(|_: &std::num::ParseIntError| true).await?;
///     Ok(number + paid)
/// }
///
/// fn register(engine: &Engine) -> Result<()> {
///     engine.workflow("order", order)?;
///     engine.workflow("double", async |_, n: u32| Ok(n * 2))?;
///     engine.workflow("closure", async |ctx, n: u32| {
///         Ok(ctx.step("add", async || Ok(n + 1)).await?)
///     })?;
///     engine.activity("triple", async |_, n: u32| Ok(n * 3))?;
///     Ok(())
/// }
/// ```
struct Styles;

/// A function with its own error type needs `ctx.call`.
///
/// ```compile_fail
/// # use windlass::{Ctx, Result};
/// async fn pay() -> Result<u32, std::num::ParseIntError> {
///     "1".parse()
/// }
///
/// async fn order(ctx: Ctx) -> Result<u32> {
///     Ok(ctx.step("pay", || pay()).await?)
/// }
/// ```
struct OwnErrorInStep;

/// A closure in `ctx.call` needs a type for its error.
///
/// ```compile_fail
/// # use windlass::{Ctx, Result};
/// async fn order(ctx: Ctx) -> Result<u32> {
///     Ok(ctx.call("pay", async || Ok(1)).await?)
/// }
/// ```
struct ClosureInCall;

/// An input is an owned type.
///
/// ```compile_fail
/// # use windlass::{Ctx, Engine, Result};
/// async fn greet(_: Ctx, name: &str) -> Result<String> {
///     Ok(name.to_owned())
/// }
///
/// fn register(engine: &Engine) {
///     engine.workflow("greet", greet).unwrap();
/// }
/// ```
struct BorrowedInput;

/// An output is an owned type.
///
/// ```compile_fail
/// # use windlass::{Ctx, Engine, Result};
/// fn register(engine: &Engine) {
///     engine.workflow("greet", async |_, (): ()| Ok("hello")).unwrap();
/// }
/// ```
struct BorrowedOutput;

/// The result of a step is an owned type: `Ok("hello".to_owned())`.
///
/// ```compile_fail
/// # use windlass::{Ctx, Result};
/// async fn greet(ctx: Ctx) -> Result<()> {
///     ctx.step("greet", async || Ok("hello")).await?;
///     Ok(())
/// }
/// ```
struct BorrowedStepResult;

/// The result of a step implements `serde::Serialize` and `serde::Deserialize`.
///
/// ```compile_fail
/// # use windlass::{Ctx, Result};
/// struct Receipt;
///
/// async fn order(ctx: Ctx) -> Result<()> {
///     ctx.step("pay", async || Ok(Receipt)).await?;
///     Ok(())
/// }
/// ```
struct StepResultWithoutSerde;

/// A closure names the type of its input: `async |ctx, n: u32|`.
///
/// ```compile_fail
/// # use windlass::Engine;
/// fn register(engine: &Engine) {
///     engine.workflow("same", async |_, n| Ok(n)).unwrap();
/// }
/// ```
struct ClosureWithoutInputType;

/// A workflow takes a context and an input.
///
/// ```compile_fail
/// # use windlass::{Engine, Result};
/// async fn greet(name: String) -> Result<String> {
///     Ok(name)
/// }
///
/// fn register(engine: &Engine) {
///     engine.workflow("greet", greet).unwrap();
/// }
/// ```
struct WorkflowWithoutContext;

/// A workflow takes the context by value.
///
/// ```compile_fail
/// # use windlass::{Ctx, Engine, Result};
/// async fn greet(_: &Ctx, name: String) -> Result<String> {
///     Ok(name)
/// }
///
/// fn register(engine: &Engine) {
///     engine.workflow("greet", greet).unwrap();
/// }
/// ```
struct ContextByReference;

/// The result of a step may be inferred from its use, and generic code can run steps.
///
/// ```
/// # use windlass::{Ctx, Result};
/// # use serde::{Serialize, de::DeserializeOwned};
/// async fn order(ctx: Ctx, text: String) -> Result<u32> {
///     let number: u32 = ctx.step("parse", async || Ok(text.parse()?)).await?;
///     remember(&ctx, number).await
/// }
///
/// async fn remember<T>(ctx: &Ctx, value: T) -> Result<T>
/// where
///     T: Serialize + DeserializeOwned + Clone + Send + Sync + 'static,
/// {
///     Ok(ctx.step("remember", async || Ok(value.clone())).await?)
/// }
/// ```
struct InferredStepResult;

/// The future of a step body is `Send`.
///
/// ```compile_fail
/// # use windlass::{Ctx, Result};
/// # use std::rc::Rc;
/// async fn order(ctx: Ctx) -> Result<()> {
///     let body = async || {
///         let shared = Rc::new(1);
///         tokio::task::yield_now().await;
///         drop(shared);
///         Ok(())
///     };
///     Ok(ctx.step("local", body).await?)
/// }
/// ```
struct BodyThatIsNotSend;

/// A text is an error with `AnyError::msg`.
///
/// ```compile_fail
/// # use windlass::{Ctx, Result};
/// async fn order(_: Ctx) -> Result<()> {
///     Err("no stock".into())
/// }
/// ```
struct TextAsError;
