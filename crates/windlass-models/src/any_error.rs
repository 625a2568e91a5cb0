//! The error of user code: any error, with the name of its type.

use std::error::Error as StdError;
use std::fmt;

type Boxed = Box<dyn StdError + Send + Sync>;

/// Any error of a workflow, a step or an activity.
///
/// `?` converts every type that implements [`std::error::Error`] and is `Send + Sync + 'static`.
/// `AnyError` keeps the value and the name of its type: retry rules such as
/// `.non_retryable(["Declined"])` match the name, and [`AnyError::downcast_ref`] gives the value back.
///
/// `AnyError` does not implement [`std::error::Error`] itself, for the same reason as `anyhow::Error`: with
/// that, `?` could not convert every error into it.
///
/// ```
/// use windlass_models::AnyError;
///
/// fn parse(text: &str) -> Result<u32, AnyError> {
///     Ok(text.parse()?)
/// }
///
/// let error = parse("many").unwrap_err();
/// assert_eq!(error.name(), "ParseIntError");
/// assert!(error.is::<std::num::ParseIntError>());
/// assert_eq!(AnyError::msg("no stock").to_string(), "no stock");
/// ```
pub struct AnyError {
    name: &'static str,
    source: Boxed,
}

impl AnyError {
    /// An error that is only a text. Its name is `Error`.
    ///
    /// ```
    /// # use windlass::AnyError;
    /// assert_eq!(AnyError::msg("no stock").to_string(), "no stock");
    /// ```
    pub fn msg(text: impl Into<String>) -> Self {
        Self { name: "Error", source: text.into().into() }
    }

    /// The error with the name of its type; the same as `AnyError::from`.
    ///
    /// ```
    /// # use windlass::AnyError;
    /// let error = AnyError::new("x".parse::<u32>().unwrap_err());
    /// assert_eq!(error.name(), "ParseIntError");
    /// ```
    pub fn new<E: StdError + Send + Sync + 'static>(error: E) -> Self {
        Self { name: short_name(std::any::type_name::<E>()), source: Box::new(error) }
    }

    /// The name of the error's type without its path and its parameters, such as `ParseIntError`.
    ///
    /// ```
    /// # use windlass::AnyError;
    /// assert_eq!(AnyError::from(std::fmt::Error).name(), "Error");
    /// ```
    pub fn name(&self) -> &str {
        self.name
    }

    /// Whether the error is of type `E`.
    ///
    /// ```
    /// # use windlass::AnyError;
    /// let error = AnyError::new("x".parse::<u32>().unwrap_err());
    /// assert!(error.is::<std::num::ParseIntError>());
    /// ```
    pub fn is<E: StdError + 'static>(&self) -> bool {
        self.source.is::<E>()
    }

    /// The error, if it is of type `E`.
    ///
    /// ```
    /// # use windlass::AnyError;
    /// let error = AnyError::new("x".parse::<u32>().unwrap_err());
    /// assert!(error.downcast_ref::<std::num::ParseIntError>().is_some());
    /// ```
    pub fn downcast_ref<E: StdError + 'static>(&self) -> Option<&E> {
        self.source.downcast_ref()
    }

    /// The error by value, if it is of type `E`.
    ///
    /// ```
    /// # use windlass::AnyError;
    /// let error = AnyError::new("x".parse::<u32>().unwrap_err());
    /// assert!(error.downcast::<std::num::ParseIntError>().is_ok());
    /// ```
    ///
    /// # Errors
    ///
    /// The unchanged `AnyError`, if it is of another type.
    pub fn downcast<E: StdError + 'static>(self) -> Result<E, Self> {
        let name = self.name;
        match self.source.downcast() {
            Ok(error) => Ok(*error),
            Err(source) => Err(Self { name, source }),
        }
    }

    /// The error as a trait object, to read its sources.
    ///
    /// ```
    /// # use windlass::AnyError;
    /// assert!(AnyError::msg("no stock").as_error().source().is_none());
    /// ```
    pub fn as_error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.source
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for AnyError {
    fn from(error: E) -> Self {
        Self::new(error)
    }
}

impl From<AnyError> for Boxed {
    fn from(error: AnyError) -> Self {
        error.source
    }
}

impl From<AnyError> for Box<dyn StdError> {
    fn from(error: AnyError) -> Self {
        error.source
    }
}

impl fmt::Display for AnyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

/// The text of the error and of its sources, because `fn main() -> Result<()>` prints it.
impl fmt::Debug for AnyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text_with_sources(&*self.source))
    }
}

/// The text of an error and of its sources, each once.
pub(crate) fn text_with_sources(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

// `app::pay::Declined<T>` is `Declined` to people; boxes have no name of their own.
fn short_name(full: &'static str) -> &'static str {
    let outer = full.split('<').next().unwrap_or(full);
    match outer.rsplit("::").next().unwrap_or(outer).trim_start_matches('&') {
        "Box" | "String" | "str" | "" => "Error",
        name => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Declined;

    impl fmt::Display for Declined {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("card declined")
        }
    }

    impl StdError for Declined {}

    #[test]
    fn keeps_the_name_and_the_value() {
        let error = AnyError::from(Declined);
        assert_eq!((error.name(), error.to_string().as_str()), ("Declined", "card declined"));
        assert!(error.is::<Declined>() && !error.is::<fmt::Error>());
        assert!(error.downcast::<fmt::Error>().unwrap_err().downcast::<Declined>().is_ok());
    }

    #[test]
    fn names_are_short() {
        for (full, expect) in [
            ("app::pay::Declined", "Declined"),
            ("app::Wrapped<app::pay::Declined>", "Wrapped"),
            ("alloc::boxed::Box<dyn core::error::Error>", "Error"),
            ("&str", "Error"),
        ] {
            assert_eq!(short_name(full), expect, "{full}");
        }
    }
}
