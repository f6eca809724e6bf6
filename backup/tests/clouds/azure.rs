//! What an account's owner does with its key: creates a container, and hands out a token that may do less. As Azure
//! documents it (`authorize-with-shared-key`, `create-service-sas`); nothing of this is in the product.

use std::net::SocketAddr;

use aws_lc_rs::hmac;
use data_encoding::BASE64;
use jiff::{SignedDuration, Timestamp};
use url::form_urlencoded::byte_serialize;

use super::{is_answered, is_answered_over_tls};

/// The version of the protocol, on which depends what is signed.
const VERSION: &str = "2021-12-02";

/// A storage account with a key of its own.
pub struct Account {
    name: &'static str,
    key: [u8; 64],
}

impl Account {
    pub fn new(name: &'static str) -> Self {
        let mut key = [0; 64];
        fastrand::fill(&mut key);
        Self { name, key }
    }

    /// As Azure shows it.
    pub fn key(&self) -> String {
        BASE64.encode(&self.key)
    }

    fn sign(&self, text: &str) -> String {
        BASE64.encode(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &self.key), text.as_bytes()).as_ref())
    }

    pub fn create_container(&self, server: SocketAddr, container: &str) {
        is_answered(server, &self.creation(server, container), 201);
    }

    /// In a server that speaks TLS, whose certificate this authority has signed.
    pub fn create_container_over_tls(&self, server: SocketAddr, authority: &str, container: &str) {
        is_answered_over_tls(server, authority, &self.creation(server, container), 201);
    }

    /// The request that creates a container.
    fn creation(&self, server: SocketAddr, container: &str) -> String {
        let name = self.name;
        let date = Timestamp::now().strftime("%a, %d %b %Y %H:%M:%S GMT");
        let headers = format!("x-ms-date:{date}\nx-ms-version:{VERSION}");
        // The verb, eleven headers that are not there, our own headers, and what it is about: the account's name is there
        // twice because azurite has it in the path.
        let text = format!("PUT{}{headers}\n/{name}/{name}/{container}\nrestype:container", "\n".repeat(12));
        let signature = self.sign(&text);
        format!(
            "PUT /{name}/{container}?restype=container HTTP/1.1\r\nhost: {server}\r\nconnection: close\r\n\
             content-length: 0\r\n{}\r\nauthorization: SharedKey {name}:{signature}\r\n\r\n",
            headers.replace('\n', "\r\n")
        )
    }

    /// A token for a container with these permissions, for an hour.
    pub fn token(&self, container: &str, permissions: &str) -> String {
        let expiry = (Timestamp::now() + SignedDuration::from_hours(1)).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let resource = format!("/blob/{}/{container}", self.name);
        // Between and behind what is said: a start, a policy, addresses, protocols; a snapshot, an encryption, five headers.
        let text = format!("{permissions}\n\n{expiry}\n{resource}\n\n\n\n{VERSION}\nc\n\n\n\n\n\n\n");
        let signature = self.sign(&text);
        let signature: String = byte_serialize(signature.as_bytes()).collect();
        format!("sv={VERSION}&sr=c&sp={permissions}&se={expiry}&sig={signature}")
    }
}
