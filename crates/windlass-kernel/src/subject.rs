//! Subjects: the people that callers act for, with their roles.

use serde::{Deserialize, Serialize};

use crate::digest::Sha256Digest;
use crate::error::{Error, ErrorCode, ErrorKind};
use crate::ledger::Actor;

/// The longest id of a subject, in bytes.
pub const SUBJECT_ID_BYTES_MAX: usize = 256;

/// The most roles of a subject.
pub const ROLES_MAX: usize = 64;

/// The longest role, in bytes.
pub const ROLE_BYTES_MAX: usize = 128;

/// A person, as the caller's credential names them. The ledger stores only a digest of the id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "SubjectWire")]
pub struct Subject {
    id: String,
    roles: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubjectWire {
    id: String,
    #[serde(default)]
    roles: Vec<String>,
}

impl TryFrom<SubjectWire> for Subject {
    type Error = Error;

    fn try_from(wire: SubjectWire) -> Result<Self, Error> {
        Self::new(wire.id, wire.roles)
    }
}

impl Subject {
    /// A person and their roles. Roles are sorted, and each is kept once.
    ///
    /// ```
    /// # use windlass_kernel::Subject;
    /// let ann = Subject::new("ann@example.com", ["cfo", "lead"])?;
    /// assert!(ann.has_role("cfo") && !ann.has_role("cto"));
    /// # Ok::<(), windlass_kernel::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidSubject`] if the id or a role is empty, too long or contains control
    /// characters, if a role contains spaces or commas, or if there are too many roles.
    pub fn new<R: Into<String>>(
        id: impl Into<String>,
        roles: impl IntoIterator<Item = R>,
    ) -> Result<Self, Error> {
        let id = id.into();
        check("the id of a subject", &id, SUBJECT_ID_BYTES_MAX, char::is_control)?;
        let mut roles: Vec<String> = roles.into_iter().map(Into::into).collect();
        roles.sort_unstable();
        roles.dedup();
        if roles.len() > ROLES_MAX {
            let count = roles.len();
            return Err(invalid(format!("a subject has {count} roles; the limit is {ROLES_MAX}")));
        }
        for role in &roles {
            check_role(role)?;
        }
        Ok(Self { id, roles })
    }

    /// Whether a text can be a role.
    pub fn is_role(text: &str) -> bool {
        check_role(text).is_ok()
    }

    /// Reads `ID` or `ID:ROLE,ROLE`, as command lines write a subject.
    ///
    /// ```
    /// # use windlass_kernel::Subject;
    /// assert_eq!(Subject::parse("ann:cfo,lead")?.roles(), ["cfo", "lead"]);
    /// assert!(Subject::parse("ann:").is_err());
    /// # Ok::<(), windlass_kernel::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Subject::new`].
    pub fn parse(text: &str) -> Result<Self, Error> {
        match text.rsplit_once(':') {
            Some((id, roles)) => Self::new(id, roles.split(',')),
            None => Self::new(text, [""; 0]),
        }
    }

    /// The id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The roles, sorted.
    pub fn roles(&self) -> &[String] {
        &self.roles
    }

    /// Whether the person has a role.
    pub fn has_role(&self, role: &str) -> bool {
        self.roles.iter().any(|own| own == role)
    }

    /// A digest of the id: the same person has the same digest, whatever the roles are.
    pub fn digest(&self) -> Sha256Digest {
        Sha256Digest::of_parts(&[b"subject", self.id.as_bytes()])
    }

    /// The actor for the ledger. It contains a digest and not the id.
    pub fn actor(&self) -> Actor {
        Actor::new("user", &self.id)
    }
}

fn check_role(role: &str) -> Result<(), Error> {
    let separates = |c: char| c.is_control() || c.is_whitespace() || c == ',';
    check("a role", role, ROLE_BYTES_MAX, separates)
}

fn check(
    what: &str,
    text: &str,
    bytes_max: usize,
    is_refused: impl Fn(char) -> bool,
) -> Result<(), Error> {
    if text.is_empty() || text.len() > bytes_max {
        let bytes = text.len();
        return Err(invalid(format!("{what} has {bytes} bytes; use 1 to {bytes_max}")));
    }
    match text.chars().find(|c| is_refused(*c)) {
        Some(c) => Err(invalid(format!("{what} contains {c:?}; remove it"))),
        None => Ok(()),
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, ErrorCode::InvalidSubject, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_subjects_are_refused_and_the_reason_is_named() {
        let many: Vec<String> = (0..=ROLES_MAX).map(|n| format!("r{n}")).collect();
        for (id, roles, reason) in [
            ("", vec![], "has 0 bytes"),
            ("a\nb", vec![], "contains '\\n'"),
            ("ann", vec![String::new()], "a role has 0 bytes"),
            ("ann", vec!["a b".into()], "contains ' '"),
            ("ann", vec!["a,b".into()], "contains ','"),
            ("ann", vec!["r".repeat(ROLE_BYTES_MAX + 1)], "a role has 129 bytes"),
            ("ann", many, "has 65 roles"),
        ] {
            let error = Subject::new(id, roles).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidSubject);
            assert!(error.message().contains(reason), "{error}: {reason}");
        }
        let long = Subject::new("x".repeat(SUBJECT_ID_BYTES_MAX + 1), [""; 0]);
        assert!(long.unwrap_err().message().contains("use 1 to 256"));
    }

    #[test]
    fn texts_and_json_are_read() {
        for (text, id, roles) in [
            ("ann", "ann", &[][..]),
            ("ann:cfo", "ann", &["cfo"]),
            ("urn:ann:lead,cfo,lead", "urn:ann", &["cfo", "lead"]),
        ] {
            let subject = Subject::parse(text).unwrap();
            assert_eq!(
                (subject.id(), subject.roles()),
                (id, &roles.iter().map(|r| (*r).to_owned()).collect::<Vec<_>>()[..])
            );
            let json = serde_json::to_string(&subject).unwrap();
            assert_eq!(serde_json::from_str::<Subject>(&json).unwrap(), subject);
        }
        for bad in [r#"{"id":""}"#, r#"{"id":"a","roles":["a b"]}"#, r#"{"id":"a","role":"b"}"#] {
            assert!(serde_json::from_str::<Subject>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_digest_names_the_person_and_not_the_roles() {
        let digest = |text| Subject::parse(text).unwrap().digest();
        assert_eq!(digest("ann:cfo"), digest("ann"));
        assert_ne!(digest("ann"), digest("bob"));
    }
}
