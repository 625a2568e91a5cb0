//! Signs and verifies JSON web tokens with ring, on behalf of `jsonwebtoken`.
//!
//! The two providers of that crate are a C library that takes minutes to build (aws-lc) and a set of
//! crates with an open advisory on RSA (RUSTSEC-2023-0071). rustls uses ring already.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::signature::{self as signing, Signer, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::signature::{
    self, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, RsaEncoding, RsaKeyPair,
    RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use ring::{hmac, rand::SystemRandom};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes ring the provider of this process, unless the program has installed another one. The server
/// only verifies; signatures can be made too, because the provider is for the whole process.
pub(super) fn install() {
    let _ = PROVIDER.install_default();
}

struct Checked<K> {
    algorithm: Algorithm,
    key: K,
}

enum PublicKey {
    Secret(hmac::Key),
    Bytes(UnparsedPublicKey<Vec<u8>>),
    RsaComponents(&'static RsaParameters, RsaPublicKeyComponents<Vec<u8>>),
}

enum PrivateKey {
    Secret(hmac::Key),
    Rsa(&'static dyn RsaEncoding, Box<RsaKeyPair>),
    Ecdsa(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if key.family() != algorithm.family() {
        return Err(ErrorKind::InvalidKeyFormat.into());
    }
    let key = match (hmac_algorithm(*algorithm), rsa_parameters(*algorithm), key.kind()) {
        (Some(hash), ..) => PublicKey::Secret(hmac::Key::new(hash, key.try_get_as_bytes()?)),
        (None, Some(rsa), DecodingKeyKind::RsaModulusExponent { n, e }) => {
            PublicKey::RsaComponents(rsa, RsaPublicKeyComponents { n: n.clone(), e: e.clone() })
        }
        (None, rsa, _) => {
            let public: &'static dyn VerificationAlgorithm = match (rsa, algorithm) {
                (Some(rsa), _) => rsa,
                (None, Algorithm::ES256) => &signature::ECDSA_P256_SHA256_FIXED,
                (None, Algorithm::ES384) => &signature::ECDSA_P384_SHA384_FIXED,
                (None, Algorithm::EdDSA) => &signature::ED25519,
                _ => return Err(ErrorKind::InvalidAlgorithm.into()),
            };
            PublicKey::Bytes(UnparsedPublicKey::new(public, key.try_get_as_bytes()?.to_vec()))
        }
    };
    Ok(Box::new(Checked { algorithm: *algorithm, key }))
}

fn signer(algorithm: &Algorithm, key: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    if key.family() != algorithm.family() {
        return Err(ErrorKind::InvalidKeyFormat.into());
    }
    let bytes = key.as_bytes();
    let ecdsa = |curve: &'static EcdsaSigningAlgorithm| {
        let pair = EcdsaKeyPair::from_pkcs8(curve, bytes, &SystemRandom::new());
        pair.map(PrivateKey::Ecdsa).map_err(|_| ErrorKind::InvalidEcdsaKey)
    };
    let rsa = |padding: &'static dyn RsaEncoding| {
        let pair = RsaKeyPair::from_der(bytes);
        let pair = pair.map_err(|error| ErrorKind::InvalidRsaKey(error.to_string()))?;
        Ok::<_, ErrorKind>(PrivateKey::Rsa(padding, Box::new(pair)))
    };
    let key = match algorithm {
        Algorithm::RS256 => rsa(&signature::RSA_PKCS1_SHA256)?,
        Algorithm::RS384 => rsa(&signature::RSA_PKCS1_SHA384)?,
        Algorithm::RS512 => rsa(&signature::RSA_PKCS1_SHA512)?,
        Algorithm::PS256 => rsa(&signature::RSA_PSS_SHA256)?,
        Algorithm::PS384 => rsa(&signature::RSA_PSS_SHA384)?,
        Algorithm::PS512 => rsa(&signature::RSA_PSS_SHA512)?,
        Algorithm::ES256 => ecdsa(&signature::ECDSA_P256_SHA256_FIXED_SIGNING)?,
        Algorithm::ES384 => ecdsa(&signature::ECDSA_P384_SHA384_FIXED_SIGNING)?,
        Algorithm::EdDSA => {
            let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(bytes);
            PrivateKey::Ed25519(pair.map_err(|_| ErrorKind::InvalidEddsaKey)?)
        }
        _ => match hmac_algorithm(*algorithm) {
            Some(hash) => PrivateKey::Secret(hmac::Key::new(hash, bytes)),
            None => return Err(ErrorKind::InvalidAlgorithm.into()),
        },
    };
    Ok(Box::new(Checked { algorithm: *algorithm, key }))
}

fn hmac_algorithm(algorithm: Algorithm) -> Option<hmac::Algorithm> {
    match algorithm {
        Algorithm::HS256 => Some(hmac::HMAC_SHA256),
        Algorithm::HS384 => Some(hmac::HMAC_SHA384),
        Algorithm::HS512 => Some(hmac::HMAC_SHA512),
        _ => None,
    }
}

fn rsa_parameters(algorithm: Algorithm) -> Option<&'static RsaParameters> {
    match algorithm {
        Algorithm::RS256 => Some(&signature::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Some(&signature::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Some(&signature::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Some(&signature::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Some(&signature::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Some(&signature::RSA_PSS_2048_8192_SHA512),
        _ => None,
    }
}

// ring does not say why, so that nobody learns from the reason.
fn unspecified(_: ring::error::Unspecified) -> signing::Error {
    signing::Error::new()
}

impl Verifier<Vec<u8>> for Checked<PublicKey> {
    fn verify(
        &self,
        message: &[u8],
        signature: &Vec<u8>,
    ) -> std::result::Result<(), signing::Error> {
        let verified = match &self.key {
            PublicKey::Secret(key) => hmac::verify(key, message, signature),
            PublicKey::Bytes(key) => key.verify(message, signature),
            PublicKey::RsaComponents(rsa, key) => key.verify(rsa, message, signature),
        };
        verified.map_err(unspecified)
    }
}

impl Signer<Vec<u8>> for Checked<PrivateKey> {
    fn try_sign(&self, message: &[u8]) -> std::result::Result<Vec<u8>, signing::Error> {
        let random = SystemRandom::new();
        match &self.key {
            PrivateKey::Secret(key) => Ok(hmac::sign(key, message).as_ref().to_vec()),
            PrivateKey::Ed25519(pair) => Ok(pair.sign(message).as_ref().to_vec()),
            PrivateKey::Ecdsa(pair) => {
                let signed = pair.sign(&random, message).map_err(unspecified)?;
                Ok(signed.as_ref().to_vec())
            }
            PrivateKey::Rsa(padding, pair) => {
                let mut signed = vec![0; pair.public().modulus_len()];
                pair.sign(*padding, &random, message, &mut signed).map_err(unspecified)?;
                Ok(signed)
            }
        }
    }
}

impl JwtVerifier for Checked<PublicKey> {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl JwtSigner for Checked<PrivateKey> {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{Header, Validation, decode, encode};
    use serde_json::{Value, json};

    use super::*;

    /// One token for each algorithm, signed by OpenSSL with the keys beside it; good until 2100.
    const TOKENS: &str = include_str!("../../tests/it/keys/tokens.txt");

    fn keys(algorithm: Algorithm) -> (EncodingKey, DecodingKey) {
        macro_rules! pem {
            ($name:literal) => {
                include_bytes!(concat!("../../tests/it/keys/", $name))
            };
        }
        let made = match algorithm {
            Algorithm::ES256 => EncodingKey::from_ec_pem(pem!("p256.pem"))
                .and_then(|key| Ok((key, DecodingKey::from_ec_pem(pem!("p256.pub.pem"))?))),
            Algorithm::ES384 => EncodingKey::from_ec_pem(pem!("p384.pem"))
                .and_then(|key| Ok((key, DecodingKey::from_ec_pem(pem!("p384.pub.pem"))?))),
            Algorithm::EdDSA => EncodingKey::from_ed_pem(pem!("ed.pem"))
                .and_then(|key| Ok((key, DecodingKey::from_ed_pem(pem!("ed.pub.pem"))?))),
            _ => EncodingKey::from_rsa_pem(pem!("rsa.pem"))
                .and_then(|key| Ok((key, DecodingKey::from_rsa_pem(pem!("rsa.pub.pem"))?))),
        };
        made.unwrap()
    }

    fn reads(token: &str, algorithm: Algorithm, key: &DecodingKey) -> bool {
        let mut validation = Validation::new(algorithm);
        validation.set_audience(&["windlass"]);
        decode::<Value>(token, key, &validation).is_ok()
    }

    // With another first character of the signature, so that it still decodes.
    fn forged(token: &str) -> String {
        let at = token.rfind('.').unwrap() + 1;
        let other = if &token[at..=at] == "A" { "B" } else { "A" };
        format!("{}{other}{}", &token[..at], &token[at + 1..])
    }

    #[test]
    fn tokens_of_openssl_are_verified() {
        install();
        let tokens: Vec<_> = TOKENS.lines().map(|line| line.split_once(' ').unwrap()).collect();
        assert_eq!(tokens.len(), 9);
        for (name, token) in &tokens {
            let algorithm: Algorithm = name.parse().unwrap();
            let (_, public) = keys(algorithm);
            assert!(reads(token, algorithm, &public), "{name}");
            assert!(!reads(&forged(token), algorithm, &public), "{name}: forged");
            let (message, _) = token.split_at(token.rfind('.').unwrap() + 1);
            for (other, of_other) in tokens.iter().filter(|(other, _)| other != name) {
                let moved = format!("{message}{}", of_other.rsplit('.').next().unwrap());
                assert!(!reads(&moved, algorithm, &public), "{name} with the signature of {other}");
            }
        }
    }

    #[test]
    fn keys_of_another_kind_are_refused() {
        install();
        for (name, token) in TOKENS.lines().map(|line| line.split_once(' ').unwrap()) {
            let algorithm: Algorithm = name.parse().unwrap();
            let secret = DecodingKey::from_secret(b"0123456789abcdef0123456789abcdef");
            assert!(!reads(token, algorithm, &secret), "{name}");
            assert!(verifier(&algorithm, &secret).is_err(), "{name}");
        }
        let (_, rsa) = keys(Algorithm::RS256);
        assert!(verifier(&Algorithm::HS256, &rsa).is_err());
    }

    #[test]
    fn signed_tokens_verify() {
        install();
        let claims = json!({ "aud": "windlass", "exp": 4_102_444_800_u64 });
        for (name, _) in TOKENS.lines().map(|line| line.split_once(' ').unwrap()) {
            let algorithm: Algorithm = name.parse().unwrap();
            let (private, public) = keys(algorithm);
            let token = encode(&Header::new(algorithm), &claims, &private).unwrap();
            assert!(reads(&token, algorithm, &public), "{name}");
            assert!(!reads(&forged(&token), algorithm, &public), "{name}: forged");
        }
    }

    #[test]
    fn an_rsa_key_can_be_given_by_its_numbers() {
        install();
        let (name, token) = TOKENS.lines().next().unwrap().split_once(' ').unwrap();
        assert_eq!(name, "RS256");
        let pair = RsaKeyPair::from_der(keys(Algorithm::RS256).0.as_bytes()).unwrap();
        let numbers = RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
        let key = DecodingKey::from_rsa_raw_components(&numbers.n, &numbers.e);
        assert!(reads(token, Algorithm::RS256, &key));
        assert!(!reads(&forged(token), Algorithm::RS256, &key));
    }
}
