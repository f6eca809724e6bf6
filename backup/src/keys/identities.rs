//! Identities: the private keys of those who read a backup. They are shown nowhere.

use std::fmt;
use std::path::Path;

use age::x25519::Identity;

use super::{KeysError, Recipients, Role, lines};

/// Some private keys. More than one, where what was written before a change of keys is still to be read.
#[derive(Clone)]
pub struct Identities(Vec<Identity>);

impl Identities {
    /// A new one that nobody else has and no file: for who has to read what it wrote itself.
    pub fn generate() -> Self {
        Self(vec![Identity::generate()])
    }

    /// The file that age-keygen writes, or several of them in one.
    pub(super) fn read(path: &Path) -> Result<Self, KeysError> {
        let fault = |line| KeysError::Identity { path: path.to_owned(), line };
        let lines = lines(Role::Identity, path)?.into_iter();
        let keys: Result<_, _> = lines.map(|(line, text)| text.parse().map_err(|_| fault(line))).collect();
        Ok(Self(keys?))
    }

    /// For age.
    pub fn keys(&self) -> impl Iterator<Item = &dyn age::Identity> {
        self.0.iter().map(|key| key as &dyn age::Identity)
    }

    /// Whose they are.
    pub fn recipients(&self) -> Recipients {
        Recipients::new(self.0.iter().map(Identity::to_public).collect())
    }
}

impl fmt::Debug for Identities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "identities of {:?}", self.recipients())
    }
}
