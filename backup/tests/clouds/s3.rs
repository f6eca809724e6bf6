//! What a bucket's owner does with the account's keys: creates one in which objects can be locked, and locks one. Signed as
//! Amazon documents it (`sig-v4-header-based-auth`); nothing of this is in the product.

use std::net::SocketAddr;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use data_encoding::{BASE64, HEXLOWER};
use jiff::{SignedDuration, Timestamp};

use super::is_answered;

/// Whoever has these keys.
pub struct Owner {
    pub server: SocketAddr,
    pub region: &'static str,
    pub access: &'static str,
    pub secret: &'static str,
}

impl Owner {
    /// Creates a bucket whose objects can be locked.
    pub fn create_bucket(&self, bucket: &str) {
        self.put(&format!("/{bucket}"), "", ("x-amz-bucket-object-lock-enabled", "true"), "");
    }

    /// Locks an object for an hour. Until then nobody deletes it, and no owner can take the lock away.
    pub fn lock(&self, bucket: &str, key: &str) {
        let until = (Timestamp::now() + SignedDuration::from_hours(1)).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let body = format!("<Retention><Mode>COMPLIANCE</Mode><RetainUntilDate>{until}</RetainUntilDate></Retention>");
        let checksum = BASE64.encode(digest(&SHA256, body.as_bytes()).as_ref());
        self.put(&format!("/{bucket}/{key}"), "retention", ("x-amz-checksum-sha256", &checksum), &body);
    }

    /// A request with a header of its own, whose name comes before `x-amz-co`: what is signed has them in order.
    fn put(&self, path: &str, question: &str, header: (&str, &str), body: &str) {
        let date = Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
        let (host, content) = (self.server.to_string(), hash(body));
        let headers = [
            ("host", host.as_str()),
            header,
            ("x-amz-content-sha256", content.as_str()),
            ("x-amz-date", date.as_str()),
        ];
        let names = headers.map(|(name, _)| name).join(";");
        let lines = headers.map(|(name, value)| format!("{name}:{value}"));
        // What is asked is signed with its value, which is none, and sent without.
        let (signed, asked) = if question.is_empty() {
            (String::new(), path.to_owned())
        } else {
            (format!("{question}="), format!("{path}?{question}"))
        };
        let request = format!("PUT\n{path}\n{signed}\n{}\n\n{names}\n{content}", lines.join("\n"));
        let scope = format!("{}/{}/s3/aws4_request", &date[..8], self.region);
        let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hash(&request));
        let secret = format!("AWS4{}", self.secret).into_bytes();
        let key = scope.split('/').fold(secret, |key, part| sign(&key, part));
        let signature = HEXLOWER.encode(&sign(&key, &text));
        let request = format!(
            "PUT {asked} HTTP/1.1\r\n{}\r\nconnection: close\r\ncontent-length: {}\r\nauthorization: AWS4-HMAC-SHA256 \
             Credential={}/{scope}, SignedHeaders={names}, Signature={signature}\r\n\r\n{body}",
            lines.join("\r\n"),
            body.len(),
            self.access,
        );
        is_answered(self.server, &request, 200);
    }
}

fn hash(text: &str) -> String {
    HEXLOWER.encode(digest(&SHA256, text.as_bytes()).as_ref())
}

fn sign(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}
