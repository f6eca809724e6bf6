//! BLAKE3 hashes, as 64 hexadecimal digits: what `b3sum` prints; and with a key, where a hash must not tell what was hashed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::names::NameFault;

/// The BLAKE3 hash of some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hash(blake3::Hash);

impl Hash {
    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(blake3::hash(bytes))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_hex())
    }
}

impl FromStr for Hash {
    type Err = NameFault;

    fn from_str(text: &str) -> Result<Self, NameFault> {
        blake3::Hash::from_hex(text).map(Self).map_err(|_| NameFault::hash(text))
    }
}

impl TryFrom<String> for Hash {
    type Error = NameFault;

    fn try_from(text: String) -> Result<Self, NameFault> {
        text.parse()
    }
}

impl From<Hash> for String {
    fn from(hash: Hash) -> Self {
        hash.to_string()
    }
}

/// How the records of a revision are hashed for a manifest's `lastEvents`. Of an encrypted backup it takes a key that the
/// store does not hold: a manifest can be read by whoever reads the store, who could otherwise try guesses at a short value
/// until one has this hash.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum EventHash {
    /// As they are.
    Plain,
    /// With this key, which is made from the recipients.
    Keyed([u8; 32]),
}

impl EventHash {
    /// Of nothing yet.
    pub fn hasher(self) -> Hasher {
        match self {
            Self::Plain => Hasher::new(),
            Self::Keyed(key) => Hasher(blake3::Hasher::new_keyed(&key)),
        }
    }

    /// Of these records.
    pub fn of(self, records: &[u8]) -> Hash {
        let mut hasher = self.hasher();
        hasher.update(records);
        hasher.finish()
    }
}

impl fmt::Debug for EventHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "Plain",
            Self::Keyed(_) => "Keyed",
        })
    }
}

/// A hash that grows with what is shown to it.
#[derive(Debug, Default)]
pub struct Hasher(blake3::Hasher);

impl Hasher {
    /// Of nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of all of them.
    pub fn finish(&self) -> Hash {
        Hash(self.0.finalize())
    }
}
