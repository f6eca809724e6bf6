//! Seals data objects: encrypts what goes to the store, as one file of age (age-encryption.org/v1), so that `age -d | zstd -d`
//! reads it. It needs public keys only, and reads nothing back.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use age::stream::StreamWriter;
use age::x25519::Recipient;
use age::{DecryptError, EncryptError, Encryptor};
use serde::{Deserialize, Serialize};

use super::hash::EventHash;
use super::manifest::Data;
use crate::keys::{Fingerprint, Identities, KeyFiles, KeysError, Recipients};

/// How a data object is encrypted, as its manifest says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Age {
    /// Who can read it.
    pub recipients: Vec<Fingerprint>,
    /// The size of the object as it is stored, in bytes.
    pub bytes: u64,
}

/// Why something can't be encrypted or read.
#[derive(Debug, thiserror::Error)]
pub enum SealFault {
    /// age does not take these recipients.
    #[error("failed to encrypt: {0}")]
    Encrypt(#[source] Box<EncryptError>),
    /// What is encrypted can't be put aside.
    #[error("failed to encrypt: {0}")]
    Write(#[source] io::Error),
    /// The header is damaged, or of other keys.
    #[error("failed to read the header of an age file: {0}")]
    Header(#[from] DecryptError),
    /// A part is damaged, or is not there.
    #[error("failed to decrypt: {0}")]
    Read(#[source] io::Error),
    /// It goes on behind its end.
    #[error("failed to decrypt: there is more than the manifest says")]
    TooLong,
}

/// How what is written is sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seal {
    /// It is not: whoever can read the store can read it.
    Open,
    /// Encrypted to these.
    Age {
        /// Whom the manifest names.
        recipients: Recipients,
        /// The writer itself, for as long as it lives.
        writer: Option<Recipient>,
    },
}

impl Seal {
    /// As the files with the keys say now.
    pub fn of(keys: &KeyFiles) -> Result<Self, KeysError> {
        Ok(match keys.recipients()? {
            Some(recipients) => Self::Age { recipients, writer: None },
            None => Self::Open,
        })
    }

    /// The same, which a writer can also read itself: it has to look into what it has stored, and knows public keys only.
    /// Its own key is in no file, no manifest and no other object, and gone when the writer is.
    pub fn readable_by(self, own: &Identities) -> Self {
        match self {
            Self::Open => Self::Open,
            Self::Age { recipients, writer: _ } => {
                Self::Age { recipients, writer: own.recipients().keys().first().cloned() }
            }
        }
    }

    /// How `lastEvents` is made in a manifest of such data.
    pub fn event_hash(&self) -> EventHash {
        match self {
            Self::Open => EventHash::Plain,
            Self::Age { recipients, writer: _ } => EventHash::Keyed(recipients.hash_key()),
        }
    }

    /// Whether this data was sealed in the same way: to the same recipients, or not at all.
    pub fn is_of(&self, data: &Data) -> bool {
        match (self, &data.age) {
            (Self::Open, None) => true,
            (Self::Age { recipients, writer: _ }, Some(age)) => recipients.fingerprints() == age.recipients,
            (Self::Open, Some(_)) | (Self::Age { .. }, None) => false,
        }
    }

    /// For one data object.
    pub(super) fn sealer(&self) -> Result<Option<Sealer>, SealFault> {
        match self {
            Self::Open => Ok(None),
            Self::Age { recipients, writer } => Sealer::new(recipients, writer.as_ref()).map(Some),
        }
    }
}

/// Encrypts one data object.
pub(super) struct Sealer {
    recipients: Vec<Fingerprint>,
    stream: StreamWriter<Sink>,
    sealed: Sink,
}

impl Sealer {
    fn new(recipients: &Recipients, writer: Option<&Recipient>) -> Result<Self, SealFault> {
        let keys = recipients.keys().iter().chain(writer).map(|key| key as &dyn age::Recipient);
        let sealed = Sink::default();
        let encryptor = Encryptor::with_recipients(keys).map_err(|fault| SealFault::Encrypt(Box::new(fault)))?;
        let stream = encryptor.wrap_output(sealed.clone()).map_err(SealFault::Write)?;
        Ok(Self { recipients: recipients.fingerprints(), stream, sealed })
    }

    /// Takes the next bytes, and gives what is encrypted by now.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<u8>, SealFault> {
        self.stream.write_all(bytes).map_err(SealFault::Write)?;
        Ok(self.sealed.take())
    }

    /// The rest, by which a reader knows that it was all; and whom it was encrypted to.
    pub fn finish(self) -> Result<(Vec<u8>, Vec<Fingerprint>), SealFault> {
        self.stream.finish().map_err(SealFault::Write)?;
        Ok((self.sealed.take(), self.recipients))
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("recipients", &self.recipients).finish_non_exhaustive()
    }
}

/// Where age writes to. It keeps that writer to itself until the end, so what came is taken from the other side.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Sink {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
