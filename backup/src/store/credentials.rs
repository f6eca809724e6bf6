//! Credentials: from a folder that holds one file for each value, as a mounted Secret does. Without a folder the store's
//! own ambient ways apply. Values never appear in messages.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::{AwsCredential, AwsCredentialProvider};

use super::address::Provider;

/// A file with one or more PEM certificates: whom to trust beside the system's authorities.
pub(super) const CA: &str = "ca.crt";
pub(super) const ACCESS_KEY_ID: &str = "access-key-id";
pub(super) const SECRET_ACCESS_KEY: &str = "secret-access-key";
pub(super) const SESSION_TOKEN: &str = "session-token";
pub(super) const ACCOUNT_KEY: &str = "account-key";
pub(super) const SAS_TOKEN: &str = "sas-token";
pub(super) const TENANT_ID: &str = "tenant-id";
pub(super) const CLIENT_ID: &str = "client-id";
pub(super) const CLIENT_SECRET: &str = "client-secret";
pub(super) const SERVICE_ACCOUNT: &str = "service-account.json";

/// A Secret's values are at most 1 MiB together.
const LARGEST: u64 = 1 << 20;

/// Why the credentials are refused.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The folder or a file in it can't be read.
    #[error("failed to read the store's credentials at {}: {source}", path.display())]
    Read {
        /// What was read.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
    /// A file that means nothing here.
    #[error("failed to read the store's credentials: unknown file {name:?} in {}; known are: {known}", folder.display())]
    Unknown {
        /// Its name.
        name: String,
        /// The folder.
        folder: PathBuf,
        /// The list.
        known: String,
    },
    /// Files that don't make a whole.
    #[error("failed to read the store's credentials: {} needs {wanted}", folder.display())]
    Incomplete {
        /// The folder.
        folder: PathBuf,
        /// What would do.
        wanted: &'static str,
    },
}

/// Where a mounted Secret is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialsFolder(pub PathBuf);

impl CredentialsFolder {
    /// All values by their names. A name that this provider has no use for is refused: it is more likely a typo.
    pub(super) fn read(&self, provider: &Provider) -> Result<BTreeMap<&'static str, String>, CredentialsError> {
        let known = names(provider);
        let mut values = BTreeMap::new();
        let fault = |path: &Path, source| CredentialsError::Read { path: path.to_owned(), source };
        for entry in fs::read_dir(&self.0).map_err(|source| fault(&self.0, source))? {
            let entry = entry.map_err(|source| fault(&self.0, source))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // The kubelet's own: `..data` and the folder that it points to.
            if name.starts_with("..") {
                continue;
            }
            let Some(known) = known.iter().find(|known| **known == name) else {
                return Err(CredentialsError::Unknown { name, folder: self.0.clone(), known: known.join(", ") });
            };
            values.insert(*known, value(&entry.path()).map_err(|source| fault(&entry.path(), source))?);
        }
        Ok(values)
    }

    pub(super) fn incomplete(&self, wanted: &'static str) -> CredentialsError {
        CredentialsError::Incomplete { folder: self.0.clone(), wanted }
    }
}

fn names(provider: &Provider) -> &'static [&'static str] {
    match provider {
        Provider::S3 { .. } => &[ACCESS_KEY_ID, SECRET_ACCESS_KEY, SESSION_TOKEN, CA],
        Provider::Gcs { .. } => &[SERVICE_ACCOUNT, CA],
        Provider::Azure { .. } => &[ACCOUNT_KEY, SAS_TOKEN, TENANT_ID, CLIENT_ID, CLIENT_SECRET, CA],
        Provider::Volume { .. } => &[],
    }
}

/// A file's text, without the line end that editors and `echo` leave.
fn value(path: &Path) -> io::Result<String> {
    if fs::metadata(path)?.len() > LARGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "larger than a Secret can be"));
    }
    Ok(fs::read_to_string(path)?.trim_end_matches(['\r', '\n']).to_owned())
}

/// S3 keys read anew for each request, since the kubelet renews a mounted Secret in place and an archiver runs for months.
#[derive(Debug)]
pub(super) struct KeysInFolder(pub CredentialsFolder);

impl KeysInFolder {
    pub fn load(&self) -> Result<AwsCredential, CredentialsError> {
        let mut values = self.0.read(&Provider::S3 { bucket: String::new() })?;
        let missing = || self.0.incomplete("the files access-key-id and secret-access-key");
        Ok(AwsCredential {
            key_id: values.remove(ACCESS_KEY_ID).ok_or_else(missing)?,
            secret_key: values.remove(SECRET_ACCESS_KEY).ok_or_else(missing)?,
            token: values.remove(SESSION_TOKEN),
        })
    }
}

#[async_trait]
impl CredentialProvider for KeysInFolder {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.load()
            .map(Arc::new)
            .map_err(|error| object_store::Error::Generic { store: "credentials", source: Box::new(error) })
    }
}

/// S3 keys of a role, for which a pod's token is exchanged (web identity). What fails at that is not the store's doing, and
/// the library's words name neither the role nor what was tried.
#[derive(Debug)]
pub(super) struct KeysOfRole {
    pub exchange: AwsCredentialProvider,
    pub role: String,
}

/// How it is told that no keys were handed out.
pub(super) const NOT_EXCHANGED: &str = "failed to exchange the token";

/// No keys were handed out. The token is in no message of the library's.
#[derive(Debug, thiserror::Error)]
#[error("{NOT_EXCHANGED} in AWS_WEB_IDENTITY_TOKEN_FILE for keys of the role {role}: {source}")]
struct NotExchanged {
    role: String,
    source: object_store::Error,
}

#[async_trait]
impl CredentialProvider for KeysOfRole {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.exchange.get_credential().await.map_err(|source| object_store::Error::Generic {
            store: "web identity",
            source: Box::new(NotExchanged { role: self.role.clone(), source }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> (tempfile::TempDir, CredentialsFolder) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let credentials = CredentialsFolder(folder.path().to_owned());
        (folder, credentials)
    }

    #[tokio::test]
    async fn a_renewed_secret_is_seen_by_the_next_request() {
        let (guard, credentials) = folder(&[(ACCESS_KEY_ID, "old\n"), (SECRET_ACCESS_KEY, "s\r\n")]);
        fs::create_dir(guard.path().join("..2026_01_01")).unwrap();
        let keys = KeysInFolder(credentials);
        let first = keys.get_credential().await.unwrap();
        assert_eq!((first.key_id.as_str(), first.secret_key.as_str()), ("old", "s"));
        fs::write(guard.path().join(ACCESS_KEY_ID), "new").unwrap();
        assert_eq!(keys.get_credential().await.unwrap().key_id, "new");
    }

    #[test]
    fn unknown_and_missing_files_are_named_and_values_are_not() {
        let (_guard, credentials) = folder(&[("access_key_id", "hush")]);
        let s3 = Provider::S3 { bucket: "b".into() };
        let error = credentials.read(&s3).unwrap_err().to_string();
        assert!(error.contains("access_key_id") && error.contains("access-key-id") && !error.contains("hush"));
        let (_guard, credentials) = folder(&[(ACCESS_KEY_ID, "hush")]);
        let error = KeysInFolder(credentials).load().unwrap_err().to_string();
        assert!(error.contains("secret-access-key") && !error.contains("hush"), "{error}");
    }
}
