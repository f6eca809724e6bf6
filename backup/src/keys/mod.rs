//! The keys of encrypted backups, as files hold them: to whom is encrypted, and who can read it. It encrypts nothing, and no
//! message of it holds a line of these files: a private key may stand where none belongs.

mod identities;
mod recipients;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use identities::Identities;
pub use recipients::{Fingerprint, FingerprintFault, Recipients};

/// Which of the two kinds of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Public keys: to whom is encrypted.
    Recipients,
    /// Private keys: who can read it.
    Identity,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Recipients => "recipients",
            Self::Identity => "identity",
        })
    }
}

/// Fingerprints for a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprints(pub Vec<Fingerprint>);

impl fmt::Display for Fingerprints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<_> = self.0.iter().map(Fingerprint::as_str).collect();
        f.write_str(&all.join(", "))
    }
}

/// Why keys are of no use.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// A file can't be read.
    #[error(
        "failed to read the {role} of encrypted backups from {} (in Kubernetes the key {role} of the Secret in the store's \
         encryption.secretName): {source}",
        path.display()
    )]
    Read {
        /// What it should hold.
        role: Role,
        /// Which.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
    /// There is no key in it.
    #[error("failed to read the {role} of encrypted backups: {} holds no key; age-keygen makes one", path.display())]
    Empty {
        /// What it should hold.
        role: Role,
        /// Which.
        path: PathBuf,
    },
    /// More than a header has room for.
    #[error("failed to read the recipients of encrypted backups: {} holds more than {most}; remove some", path.display())]
    TooMany {
        /// Which.
        path: PathBuf,
        /// How many there may be.
        most: usize,
    },
    /// A line is no public key.
    #[error(
        "failed to read the recipients of encrypted backups: line {line} of {} is no X25519 public key of age; write one a \
         line, as age-keygen shows it: age1...",
        path.display()
    )]
    Recipient {
        /// Where.
        path: PathBuf,
        /// Counted from one.
        line: usize,
    },
    /// A line is a private key.
    #[error(
        "failed to read the recipients of encrypted backups: line {line} of {} is a private key, which writing does not need; \
         write the public key (age-keygen -y shows it), and keep the private one as the identity",
        path.display()
    )]
    PrivateRecipient {
        /// Where.
        path: PathBuf,
        /// Counted from one.
        line: usize,
    },
    /// A line is no private key.
    #[error(
        "failed to read the identity of encrypted backups: line {line} of {} is no X25519 private key of age; use the file that \
         age-keygen writes: AGE-SECRET-KEY-1...",
        path.display()
    )]
    Identity {
        /// Where.
        path: PathBuf,
        /// Counted from one.
        line: usize,
    },
    /// Something is encrypted, and no identity was given.
    #[error(
        "{what} is encrypted to {to}, and no identity was given; give --identity-file, or in Kubernetes name a Secret with the \
         key identity in the store's encryption.secretName"
    )]
    NoIdentity {
        /// What.
        what: String,
        /// To whom.
        to: Fingerprints,
    },
    /// Something is encrypted to others.
    #[error(
        "{what} is encrypted to {to}, and {given} only; give --identity-file, or in Kubernetes the key identity of the Secret in \
         the store's encryption.secretName, the private key of one of {to}"
    )]
    OtherIdentity {
        /// What.
        what: String,
        /// To whom.
        to: Fingerprints,
        /// What was given.
        given: Box<Given>,
    },
}

/// An identity that was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// Where.
    pub path: PathBuf,
    /// Whose it is.
    pub of: Fingerprints,
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the identity in {} reads what is encrypted to {}", self.path.display(), self.of)
    }
}

/// Where the keys are. They are read when they are needed: the kubelet renews a mounted Secret in place, and an archive runs
/// for months.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyFiles {
    /// To whom is encrypted what is written. Without it, it is not encrypted.
    pub recipients: Option<PathBuf>,
    /// Who reads what is encrypted. Without it, only what is not encrypted can be read.
    pub identity: Option<PathBuf>,
}

impl KeyFiles {
    /// To whom what is written is encrypted; `None`: to nobody, for no file was named. One that is missing is an error:
    /// nothing is written in the clear because a Secret is not there.
    pub fn recipients(&self) -> Result<Option<Recipients>, KeysError> {
        self.recipients.as_deref().map(Recipients::read).transpose()
    }

    /// Who reads what was encrypted to these: the identity, if one of them is its own.
    pub fn identities_for(&self, to: &[Fingerprint], what: &str) -> Result<Identities, KeysError> {
        let wanted = || (what.to_owned(), Fingerprints(to.to_vec()));
        let Some(path) = &self.identity else {
            let (what, to) = wanted();
            return Err(KeysError::NoIdentity { what, to });
        };
        let identities = Identities::read(path)?;
        let have = identities.recipients().fingerprints();
        if have.iter().any(|own| to.contains(own)) {
            return Ok(identities);
        }
        let (what, to) = wanted();
        let given = Box::new(Given { path: path.clone(), of: Fingerprints(have) });
        Err(KeysError::OtherIdentity { what, to, given })
    }
}

/// The lines of such a file that are not empty and no comment, with their numbers from one.
fn lines(role: Role, path: &Path) -> Result<Vec<(usize, String)>, KeysError> {
    let text = fs::read_to_string(path).map_err(|source| KeysError::Read { role, path: path.to_owned(), source })?;
    let lines = text.lines().map(str::trim).enumerate().map(|(index, line)| (index + 1, line.to_owned()));
    let lines: Vec<_> = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).collect();
    if lines.is_empty() { Err(KeysError::Empty { role, path: path.to_owned() }) } else { Ok(lines) }
}

#[cfg(test)]
mod tests;
