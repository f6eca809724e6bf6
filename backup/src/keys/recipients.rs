//! Recipients: the public keys of those who are to read a backup, and the fingerprints by which manifests call them.

use std::fmt;
use std::path::Path;

use age::x25519::Recipient;
use serde::{Deserialize, Serialize};

use super::{KeysError, Role, lines};

/// How many there may be. Each takes 97 bytes of the header of each data object, which is read whole.
const MOST: usize = 32;
/// What a private key begins with.
const PRIVATE: &str = "AGE-SECRET-KEY-";
/// The digits of a fingerprint: enough that no two keys of one owner have the same.
const DIGITS: usize = 16;

/// By what a manifest calls a public key: the first 16 digits of the BLAKE3 hash of its text (`printf %s age1... | b3sum`).
/// The key itself is not said: who has no more than the store can then try no guess on [`crate::format::EventHash`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint(String);

/// What is none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no fingerprint of a public key: it has {DIGITS} hexadecimal digits")]
pub struct FingerprintFault(String);

impl Fingerprint {
    fn of(key: &Recipient) -> Self {
        Self(blake3::hash(key.to_string().as_bytes()).to_hex().chars().take(DIGITS).collect())
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = FingerprintFault;

    fn try_from(text: String) -> Result<Self, FingerprintFault> {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() == DIGITS && text.bytes().all(digit) { Ok(Self(text)) } else { Err(FingerprintFault(text)) }
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.0
    }
}

/// Some public keys, each once, in the order of their texts.
#[derive(Clone, PartialEq, Eq)]
pub struct Recipients(Vec<Recipient>);

impl Recipients {
    pub(super) fn new(mut keys: Vec<Recipient>) -> Self {
        keys.sort_by_key(ToString::to_string);
        keys.dedup();
        Self(keys)
    }

    pub(super) fn read(path: &Path) -> Result<Self, KeysError> {
        let mut keys = Vec::new();
        for (line, text) in lines(Role::Recipients, path)? {
            let path = path.to_owned();
            keys.push(match text.parse() {
                Ok(key) => key,
                Err(_) if text.starts_with(PRIVATE) => return Err(KeysError::PrivateRecipient { path, line }),
                Err(_) => return Err(KeysError::Recipient { path, line }),
            });
        }
        let keys = Self::new(keys);
        if keys.0.len() > MOST { Err(KeysError::TooMany { path: path.to_owned(), most: MOST }) } else { Ok(keys) }
    }

    /// The keys.
    pub fn keys(&self) -> &[Recipient] {
        &self.0
    }

    /// What manifests call them, in order.
    pub fn fingerprints(&self) -> Vec<Fingerprint> {
        let mut all: Vec<_> = self.0.iter().map(Fingerprint::of).collect();
        all.sort();
        all
    }

    /// Those whose fingerprints these are; `None` if one of them is missing.
    pub fn only(&self, wanted: &[Fingerprint]) -> Option<Self> {
        let keys: Vec<_> = self.0.iter().filter(|key| wanted.contains(&Fingerprint::of(key))).cloned().collect();
        (keys.len() == wanted.len()).then_some(Self(keys))
    }

    /// A key for hashes that only who knows all of these can make.
    pub fn hash_key(&self) -> [u8; 32] {
        let texts: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        blake3::derive_key("quorate.dev 2026 lastEvents of encrypted backups", texts.join("\n").as_bytes())
    }
}

impl fmt::Debug for Recipients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.fingerprints()).finish()
    }
}
