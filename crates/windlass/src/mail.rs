//! Mail by SMTP for nodes of documents. A commit enqueues a mail as an effect, and any process that serves mail
//! sends it at least once. Repeated attempts have the same `Message-ID`.

use std::sync::Arc;
use std::time::Duration;

use lettre::message::Mailbox;
use lettre::message::header::ContentType;
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Tls, TlsParameters};
use lettre::{AsyncSmtpTransport, AsyncTransport as _, Message, Tokio1Executor};
use windlass_engine::{TaskContext, TaskFailure, TaskHandler, TaskResult};
use windlass_kernel::{Body, BoxFuture, Error, ErrorCode, ErrorKind};
use windlass_models::contracts::{MAIL_EFFECT, MailInput};

/// An attempt of an effect ends after a minute; the answer must be known before.
const TIMEOUT_MAX: Duration = Duration::from_secs(50);

/// How the connection to the server is encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SmtpTls {
    /// The connection begins in plain text and must change to TLS (`STARTTLS`), usually on port 587.
    #[default]
    StartTls,
    /// The connection begins with TLS, usually on port 465.
    Implicit,
    /// No encryption, for a server on the same machine.
    Off,
}

impl SmtpTls {
    const fn port(self) -> u16 {
        match self {
            Self::StartTls => 587,
            Self::Implicit => 465,
            Self::Off => 25,
        }
    }
}

/// The SMTP server and the sender.
#[derive(Clone, Debug)]
pub struct SmtpOptions {
    /// The host name of the server.
    pub host: String,
    /// The port. Default 587, 465 or 25, as [`SmtpOptions::tls`] says.
    pub port: Option<u16>,
    /// The encryption.
    pub tls: SmtpTls,
    /// User and password, if the server asks for them.
    pub login: Option<(String, String)>,
    /// The sender, such as `Invoices <invoices@example.org>`.
    pub from: String,
    /// How long the server may take. Default 15 s, at most 50 s.
    pub timeout: Duration,
}

impl SmtpOptions {
    /// A server with TLS and without a login.
    ///
    /// ```
    /// use windlass::mail::{SmtpOptions, SmtpTls};
    ///
    /// let mut options = SmtpOptions::new("mail.example.org", "Invoices <invoices@example.org>");
    /// options.tls = SmtpTls::Implicit;
    /// options.login = Some(("invoices".into(), "secret".into()));
    /// ```
    pub fn new(host: impl Into<String>, from: impl Into<String>) -> Self {
        Self {
            host: host.into(),
            port: None,
            tls: SmtpTls::default(),
            login: None,
            from: from.into(),
            timeout: Duration::from_secs(15),
        }
    }
}

/// Sends mails. Cheap to clone.
#[derive(Clone)]
pub struct Mailer {
    transport: AsyncSmtpTransport<Tokio1Executor>,
    from: Mailbox,
}

impl Mailer {
    /// A sender. It sends nothing by itself: see [`Mailer::serve`].
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// use windlass::contracts::Contracts;
    /// use windlass::mail::{Mailer, SmtpOptions};
    ///
    /// Mailer::new(SmtpOptions::new("mail.example.org", "invoices@example.org"))?.serve(&engine)?;
    /// let contracts = Contracts::builder().mail().open(&engine).await?;
    /// # drop(contracts);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidOption`] if the sender is no address, the timeout is out of range, or TLS cannot be set
    /// up for the host.
    pub fn new(options: SmtpOptions) -> Result<Self, Error> {
        let wrong =
            |message: String| Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message);
        let SmtpOptions { host, port, tls, login, from, timeout } = options;
        if timeout.is_zero() || timeout > TIMEOUT_MAX {
            return Err(wrong(format!("mail times out after {timeout:?}; use up to 50 s")));
        }
        let from: Mailbox =
            from.parse().map_err(|error| wrong(format!("the sender {from:?}: {error}")))?;
        let parameters = || {
            TlsParameters::new(host.clone())
                .map_err(|error| wrong(format!("TLS for the mail server {host:?}: {error}")))
        };
        let encryption = match tls {
            SmtpTls::StartTls => Tls::Required(parameters()?),
            SmtpTls::Implicit => Tls::Wrapper(parameters()?),
            SmtpTls::Off => Tls::None,
        };
        let mut builder = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(&host)
            .port(port.unwrap_or(tls.port()))
            .tls(encryption)
            .timeout(Some(timeout));
        if let Some((user, password)) = login {
            builder = builder.credentials(Credentials::new(user, password));
        }
        Ok(Self { transport: builder.build(), from })
    }

    /// Sends the mails of an engine's documents.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// use windlass::mail::{Mailer, SmtpOptions};
    ///
    /// let mailer = Mailer::new(SmtpOptions::new("mail.example.org", "invoices@example.org"))?;
    /// mailer.serve(&engine)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ActivityExists`] if this process sends mail already.
    pub fn serve(&self, engine: &crate::Engine) -> Result<(), Error> {
        engine.serve_effects(MAIL_EFFECT, Arc::new(self.clone()))
    }

    async fn send(&self, input: MailInput) -> Result<(), TaskFailure> {
        let invalid = |message: String| TaskFailure::new("MAIL_INVALID", message, false);
        let to: Mailbox =
            input.to.parse().map_err(|error| invalid(format!("{:?}: {error}", input.to)))?;
        let message = Message::builder()
            .from(self.from.clone())
            .to(to)
            .subject(input.subject)
            .message_id(Some(format!("<{}@windlass>", input.idempotency_key)))
            .header(ContentType::TEXT_PLAIN)
            .body(input.body)
            .map_err(|error| invalid(error.to_string()))?;
        let sent = self.transport.send(message).await;
        sent.map(drop).map_err(|error| {
            TaskFailure::new("MAIL_FAILED", error.to_string(), !error.is_permanent())
        })
    }
}

impl TaskHandler for Mailer {
    fn run(&self, _: TaskContext, input: Body) -> BoxFuture<'static, TaskResult> {
        let this = self.clone();
        Box::pin(async move {
            let input: MailInput = input.read().map_err(|error| {
                TaskFailure::new(error.code().as_str(), error.to_string(), false)
            })?;
            this.send(input).await?;
            Ok(Body::json("null"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_cannot_work_are_refused() {
        let code = |options| Mailer::new(options).map(drop).unwrap_err().code();
        let good = || SmtpOptions::new("127.0.0.1", "a@example.org");
        assert!(Mailer::new(good()).is_ok());
        let no_sender = SmtpOptions::new("127.0.0.1", "nobody");
        assert_eq!(code(no_sender), ErrorCode::InvalidOption);
        let slow = SmtpOptions { timeout: Duration::from_secs(51), ..good() };
        assert_eq!(code(slow), ErrorCode::InvalidOption);
    }
}
