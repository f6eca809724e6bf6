//! Service accounts as Google has them: a file with a private key, and tokens that are signed by it. The double takes only a
//! token that has been signed by the account that it names.

use std::collections::BTreeMap;
use std::sync::Mutex;

use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, UnparsedPublicKey};
use data_encoding::BASE64URL_NOPAD;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method};
use serde_json::{Value, json};

use super::objects::Fault;
use crate::clouds::pem;

/// What an account may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    Read,
    ReadWrite,
}

/// An account with a key of its own.
pub struct Account {
    email: &'static str,
    key: KeyPair,
}

impl Account {
    pub fn new(email: &'static str) -> Self {
        Self { email, key: KeyPair::generate(KeySize::Rsa2048).unwrap() }
    }

    pub fn email(&self) -> &'static str {
        self.email
    }

    /// The file that Google hands out when a key is made.
    pub fn file(&self) -> String {
        json!({
            "type": "service_account",
            "private_key_id": "1",
            "private_key": pem("PRIVATE KEY", self.key.as_der().unwrap().as_ref()),
            "client_email": self.email,
        })
        .to_string()
    }

    /// A token as Google hands one out for this account where it runs. What is in Google's own nobody else reads: here it is what the
    /// library signs by the file, since the double reads that.
    pub fn token(&self) -> String {
        let claims = json!({"iss": self.email, "scope": "https://www.googleapis.com/auth/cloud-platform"});
        let said = [json!({"typ": "JWT", "alg": "RS256"}), claims];
        let said = said.map(|part| BASE64URL_NOPAD.encode(part.to_string().as_bytes())).join(".");
        let mut signature = vec![0; self.key.public_modulus_len()];
        self.key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), said.as_bytes(), &mut signature).unwrap();
        format!("{said}.{}", BASE64URL_NOPAD.encode(&signature))
    }
}

/// The accounts that a server knows: their public keys and what they may do.
#[derive(Default)]
pub struct Accounts(Mutex<BTreeMap<&'static str, (Vec<u8>, Right)>>);

impl Accounts {
    /// From now on it is known by this key alone.
    pub fn know(&self, account: &Account, right: Right) {
        let key = account.key.public_key().as_ref().to_vec();
        self.0.lock().unwrap().insert(account.email, (key, right));
    }

    /// Whether a request comes from one of them that may do it.
    pub fn allow(&self, method: &Method, headers: &HeaderMap) -> Result<(), Fault> {
        let token = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        match token.and_then(|token| self.right(token)) {
            None => Err(Fault::AuthenticationRequired),
            Some(Right::Read) if ![Method::GET, Method::HEAD].contains(method) => Err(Fault::AccessDenied),
            Some(Right::Read | Right::ReadWrite) => Ok(()),
        }
    }

    /// What the bearer of a token may do, if its signature is that of the account that it names.
    fn right(&self, token: &str) -> Option<Right> {
        let (signed, signature) = token.rsplit_once('.')?;
        let claims = BASE64URL_NOPAD.decode(signed.split_once('.')?.1.as_bytes()).ok()?;
        let claims: Value = serde_json::from_slice(&claims).ok()?;
        let (key, right) = self.0.lock().unwrap().get(claims["iss"].as_str()?)?.clone();
        let signature = BASE64URL_NOPAD.decode(signature.as_bytes()).ok()?;
        UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, key).verify(signed.as_bytes(), &signature).ok()?;
        claims["scope"].as_str()?.contains("https://www.googleapis.com/auth/").then_some(right)
    }
}
