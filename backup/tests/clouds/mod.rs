//! What the clouds have of their own and no server here does for them, in every crate that has tests of stores: what an owner of
//! an account of Azure's or of a bucket of S3 signs, and a double of Google. It knows nothing of what is tried there.

pub mod azure;
pub mod google;
pub mod s3;

use data_encoding::BASE64;

/// As files have it.
pub fn pem(label: &str, der: &[u8]) -> String {
    let text = BASE64.encode(der);
    let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}
