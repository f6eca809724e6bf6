//! A store's address as people write it: `s3://bucket/prefix`, `gs://bucket/prefix`, `azure://account/container/prefix` or
//! `file:///folder`. Everything else about a store is an option.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use object_store::path::Path;
use url::Url;

/// Which store it is, and where in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provider {
    /// Amazon S3, or a store that speaks its protocol.
    S3 {
        /// The bucket.
        bucket: String,
    },
    /// Google Cloud Storage.
    Gcs {
        /// The bucket.
        bucket: String,
    },
    /// Azure Blob Storage.
    Azure {
        /// The storage account.
        account: String,
        /// The container in it.
        container: String,
    },
    /// A folder, such as a mounted volume. It must exist: a volume that is not mounted must not be taken for an empty one.
    Volume {
        /// The folder.
        folder: PathBuf,
    },
}

/// A parsed address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Which store.
    pub provider: Provider,
    /// The folder in it below which everything is kept. Empty for a volume, where the folder is the provider's.
    pub(super) prefix: Path,
}

/// Why a text is no address.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// It is not of the form of a URL.
    #[error("failed to read the store's address {text:?}: {source}; {FORMS}")]
    Url {
        /// What was given.
        text: String,
        /// What is wrong.
        source: url::ParseError,
    },
    /// The scheme is none of ours.
    #[error("failed to read the store's address {text:?}: unknown scheme {scheme:?}; {FORMS}")]
    Scheme {
        /// What was given.
        text: String,
        /// Its scheme.
        scheme: String,
    },
    /// A part of it is missing, or one is there that means nothing.
    #[error("failed to read the store's address {text:?}: {fault}; {FORMS}")]
    Part {
        /// What was given.
        text: String,
        /// What is wrong.
        fault: &'static str,
    },
    /// The prefix has words that a store can't take literally.
    #[error("failed to read the prefix of the store's address: {0}")]
    Prefix(#[from] object_store::path::Error),
}

const FORMS: &str = "write s3://bucket/prefix, gs://bucket/prefix, azure://account/container/prefix or file:///folder";

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let part = |fault| AddressError::Part { text: text.to_owned(), fault };
        let url = Url::parse(text).map_err(|source| AddressError::Url { text: text.to_owned(), source })?;
        if url.query().is_some() || url.fragment().is_some() {
            return Err(part("options have no place in it"));
        }
        // They would be shown in messages and process lists.
        if !url.username().is_empty() || url.password().is_some() || url.port().is_some() {
            return Err(part("credentials and ports have no place in it"));
        }
        let host = url.host_str().unwrap_or_default();
        let path = url.path().trim_matches('/');
        let (provider, prefix) = match url.scheme() {
            "file" if !host.is_empty() => return Err(part("a folder's address begins with three slashes")),
            "file" => {
                let folder = url.to_file_path().map_err(|()| part("the folder is not absolute"))?;
                (Provider::Volume { folder }, "")
            }
            "s3" | "gs" if host.is_empty() => return Err(part("the bucket is missing")),
            "s3" => (Provider::S3 { bucket: host.to_owned() }, path),
            "gs" => (Provider::Gcs { bucket: host.to_owned() }, path),
            "azure" => {
                let (container, prefix) = path.split_once('/').unwrap_or((path, ""));
                if host.is_empty() || container.is_empty() {
                    return Err(part("the account or the container is missing"));
                }
                (Provider::Azure { account: host.to_owned(), container: container.to_owned() }, prefix)
            }
            scheme => return Err(AddressError::Scheme { text: text.to_owned(), scheme: scheme.to_owned() }),
        };
        Ok(Self { provider, prefix: Path::from_url_path(prefix)? })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { provider, prefix } = self;
        match provider {
            Provider::S3 { bucket } => write!(f, "s3://{bucket}")?,
            Provider::Gcs { bucket } => write!(f, "gs://{bucket}")?,
            Provider::Azure { account, container } => write!(f, "azure://{account}/{container}")?,
            Provider::Volume { folder } => write!(f, "file://{}", folder.display())?,
        }
        if prefix.as_ref().is_empty() { Ok(()) } else { write!(f, "/{prefix}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_store_has_its_form_and_is_shown_in_it() {
        for text in ["s3://b", "s3://b/p/q", "gs://b/p", "azure://a/c", "azure://a/c/p/q", "file:///var/backups"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let address: Address = "azure://acme/etcd/prod/".parse().unwrap();
        assert_eq!(address.provider, Provider::Azure { account: "acme".into(), container: "etcd".into() });
        assert_eq!(address.prefix.as_ref(), "prod");
    }

    #[test]
    fn what_would_be_misunderstood_is_refused() {
        let wrong = [
            "",
            "bucket",
            "s3:///p",
            "s3://",
            "http://host/bucket",
            "s3://key:secret@bucket",
            "s3://bucket:9000/p",
            "s3://bucket/p?region=x",
            "azure://account",
            "azure:///container",
            "file://folder/x",
            "s3://bucket/a//b",
        ];
        for text in wrong {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
