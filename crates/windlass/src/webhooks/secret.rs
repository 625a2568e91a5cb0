//! Secrets of webhooks, and the signatures made with them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::header::HeaderMap;
use standardwebhooks::Webhook as Signer;
use windlass_kernel::{Error, ErrorCode, ErrorKind};

/// The header with the id, which stays the same over all attempts.
pub const ID_HEADER: &str = "webhook-id";
/// The header with the time of the attempt, in seconds since 1970.
pub const TIMESTAMP_HEADER: &str = "webhook-timestamp";
/// The header with the signatures.
pub const SIGNATURE_HEADER: &str = "webhook-signature";

const PREFIX: &str = "whsec_";
/// How many bytes a secret has at least and at most.
const BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// A secret that a sender and a receiver share, written as `whsec_` and 24 to 64 bytes in Base64. It
/// is never shown.
#[derive(Clone)]
pub struct Secret(Arc<Signer>);

impl FromStr for Secret {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |why: String| {
            let hint = "make one with: echo whsec_$(openssl rand -base64 32)";
            let message = format!("the webhook secret {why}; {hint}");
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidSecret, message)
        };
        let encoded = text
            .strip_prefix(PREFIX)
            .ok_or_else(|| wrong(format!("does not begin with {PREFIX}")))?;
        let key =
            BASE64_STANDARD.decode(encoded).map_err(|_| wrong("is not in Base64".to_owned()))?;
        if !BYTES.contains(&key.len()) {
            let (min, max) = (BYTES.start(), BYTES.end());
            return Err(wrong(format!("has {} bytes and needs {min} to {max}", key.len())));
        }
        let signer = Signer::from_bytes(key).map_err(|_| wrong("is not usable".to_owned()))?;
        Ok(Self(Arc::new(signer)))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The value of [`SIGNATURE_HEADER`]: a signature for each secret, in their order.
///
/// ```
/// use windlass::webhooks::{Secret, sign};
///
/// let secrets: Vec<Secret> = vec!["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse()?];
/// assert!(sign(&secrets, "msg_1", 1_700_000_000, b"{}")?.starts_with("v1,"));
/// # Ok::<(), windlass::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorCode::InvalidBody`] if the body is no UTF-8 text.
pub fn sign(secrets: &[Secret], id: &str, seconds: i64, body: &[u8]) -> Result<String, Error> {
    let signed: Result<Vec<String>, _> =
        secrets.iter().map(|secret| secret.0.sign(id, seconds, body)).collect();
    let signed = signed.map_err(|source| {
        let message = "the webhook's body cannot be signed: it is no UTF-8 text";
        Error::new(ErrorKind::Invalid, ErrorCode::InvalidBody, message)
            .with_source(source.to_string())
    })?;
    Ok(signed.join(" "))
}

/// Verifies a webhook that was received: the body as it came, byte for byte, and its headers. One
/// signature with one of the secrets is enough, and the time must be within five minutes of now.
///
/// Deduplicate by [`ID_HEADER`] afterwards: a webhook is delivered at least once.
///
/// ```
/// use windlass::webhooks::{Secret, verify};
///
/// let secrets: Vec<Secret> = vec!["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse()?];
/// let nothing = Default::default();
/// assert_eq!(verify(&secrets, &nothing, b"{}").unwrap_err().code(), "SIGNATURE_REFUSED");
/// # Ok::<(), windlass::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorCode::SignatureRefused`] if no secret verifies it, or its time is too far from now.
pub fn verify(secrets: &[Secret], headers: &HeaderMap, body: &[u8]) -> Result<(), Error> {
    let mut why = "there is no secret to verify it with".to_owned();
    for secret in secrets {
        match secret.0.verify(body, headers) {
            Ok(()) => return Ok(()),
            Err(error) => why = error.to_string(),
        }
    }
    let message = format!("the webhook's signature is refused: {why}");
    Err(Error::new(ErrorKind::Refused, ErrorCode::SignatureRefused, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const TWO: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

    fn secrets(texts: &[&str]) -> Vec<Secret> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn headers(id: &str, seconds: i64, signature: &str) -> HeaderMap {
        let values = [
            (ID_HEADER, id.to_owned()),
            (TIMESTAMP_HEADER, seconds.to_string()),
            (SIGNATURE_HEADER, signature.to_owned()),
        ];
        values
            .into_iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect()
    }

    /// Vectors that libraries for Standard Webhooks in several languages test with.
    #[test]
    fn the_known_vectors_come_out() {
        for (secret, id, seconds, body, expect) in [
            (
                ONE,
                "msg_p5jXN8AQM9LWM0D4loKWxJek",
                1_614_265_330,
                r#"{"test": 2432232314}"#,
                "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
            ),
            (
                TWO,
                "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk",
                1_649_367_553,
                r#"{"email":"test@example.com","username":"test_user"}"#,
                "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=",
            ),
        ] {
            let signature = sign(&secrets(&[secret]), id, seconds, body.as_bytes()).unwrap();
            assert_eq!(signature, expect);
        }
    }

    #[test]
    fn each_secret_signs_and_each_of_them_verifies() {
        let now = crate::address::system_clock().as_millis() / 1_000;
        let body = r#"{"a":"ä"}"#.as_bytes();
        let signature = sign(&secrets(&[TWO, ONE]), "msg_1", now, body).unwrap();
        let newest = sign(&secrets(&[TWO]), "msg_1", now, body).unwrap();
        assert!(signature.starts_with(&format!("{newest} v1,")), "{signature}");
        let good = headers("msg_1", now, &signature);
        for known in [&[ONE][..], &[TWO], &[ONE, TWO]] {
            verify(&secrets(known), &good, body).unwrap();
        }
        let other = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        let refused = [
            (vec![other], good.clone(), body),
            (vec![], good.clone(), body),
            (vec![ONE], good.clone(), &br#"{"a":"b"}"#[..]),
            (vec![ONE], headers("msg_2", now, &signature), body),
            (vec![ONE], headers("msg_1", now + 1, &signature), body),
            (vec![ONE], HeaderMap::new(), body),
            (vec![ONE], headers("msg_1", now, ""), body),
            (vec![ONE], headers("msg_1", now, "v1,"), body),
            (vec![TWO], headers("msg_1", now, &newest[..20]), body),
            (vec![TWO], headers("msg_1", now, &format!("{newest}A")), body),
            (vec![TWO], headers("msg_1", now, &newest.replace("v1,", "v2,")), body),
        ];
        for (known, headers, body) in refused {
            let error = verify(&secrets(&known), &headers, body).unwrap_err();
            assert_eq!(error.code(), "SIGNATURE_REFUSED");
        }
        for (shift, passes) in [(-600, false), (600, false), (-200, true), (200, true)] {
            let then = now + shift;
            let signature = sign(&secrets(&[ONE]), "msg_1", then, body).unwrap();
            let verified = verify(&secrets(&[ONE]), &headers("msg_1", then, &signature), body);
            assert_eq!(verified.is_ok(), passes, "{shift}");
        }
    }

    #[test]
    fn a_wrong_secret_says_why_and_is_never_shown() {
        for (text, expect) in [
            ("s3cret", "does not begin with whsec_"),
            ("whsec_s3cret!", "not in Base64"),
            ("whsec_c2hvcnQ=", "has 5 bytes and needs 24 to 64"),
        ] {
            let error = text.parse::<Secret>().unwrap_err();
            assert!(error.to_string().contains(expect), "{error}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
        assert_eq!(format!("{:?}", secrets(&[ONE])), "[Secret(…)]");
    }
}
