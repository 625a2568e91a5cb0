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
