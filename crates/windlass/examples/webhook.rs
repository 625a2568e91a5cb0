//! Signs a webhook as the sender does, and prints it as JSON: something to try a receiver with.
//!
//!     cargo run -p windlass --features webhooks --example webhook -- whsec_… ['{"any": "body"}']

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;
use windlass::AnyError;
use windlass::webhooks::{ID_HEADER, SIGNATURE_HEADER, Secret, TIMESTAMP_HEADER, sign};

/// Several secrets are separated by commas, the newest first.
#[expect(clippy::disallowed_methods, reason = "receivers compare with the time of day")]
fn main() -> windlass::Result<()> {
    let mut args = std::env::args().skip(1);
    let secrets = args.next().ok_or_else(|| AnyError::msg("name a secret: whsec_…"))?;
    let secrets: Vec<Secret> =
        secrets.split(',').map(str::parse).collect::<Result<_, windlass::Error>>()?;
    let body = args.next().unwrap_or_else(|| r#"{"type":"ping","data":{"n":1,"ä":"ö"}}"#.into());
    let id = "msg_example";
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() as i64;
    let signature = sign(&secrets, id, seconds, body.as_bytes())?;
    let headers = json!({
        ID_HEADER: id, TIMESTAMP_HEADER: seconds.to_string(), SIGNATURE_HEADER: signature,
    });
    println!("{}", json!({ "headers": headers, "body": body }));
    Ok(())
}
