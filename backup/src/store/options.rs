//! What can be set about a store: a closed list for each provider, so that a typo is refused instead of ignored. Secrets
//! are none of it: they come from a folder.

use std::collections::BTreeMap;

use url::Url;

use super::address::Provider;

/// An option's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StoreOption {
    /// `endpoint`: the URL of a store that is not the cloud's own. Plain `http://` is taken at its word.
    Endpoint,
    /// `region`: the region of an S3 bucket.
    Region,
    /// `addressing`: `path` (the default) or `virtual-hosted`, where the endpoint names the bucket.
    Addressing,
    /// `payload`: `signed`, or `unsigned`, which leaves the content's integrity to TLS and is three times as fast.
    Payload,
    /// `kms-key`: the key by which S3 encrypts what is written (`aws:kms`). Without it S3 uses a key of its own.
    KmsKey,
}

const S3: &[StoreOption] =
    &[StoreOption::Endpoint, StoreOption::Region, StoreOption::Addressing, StoreOption::Payload, StoreOption::KmsKey];
const ENDPOINT_ONLY: &[StoreOption] = &[StoreOption::Endpoint];

impl StoreOption {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Endpoint => "endpoint",
            Self::Region => "region",
            Self::Addressing => "addressing",
            Self::Payload => "payload",
            Self::KmsKey => "kms-key",
        }
    }

    /// Those that mean something to a provider.
    pub fn of(provider: &Provider) -> &'static [Self] {
        match provider {
            Provider::S3 { .. } => S3,
            Provider::Gcs { .. } | Provider::Azure { .. } => ENDPOINT_ONLY,
            Provider::Volume { .. } => &[],
        }
    }
}

/// Why options are refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// No such option for this provider.
    #[error("unknown option {name:?} of this store; known are: {known}")]
    Unknown {
        /// What was given.
        name: String,
        /// The list.
        known: String,
    },
    /// The value can't be meant.
    #[error("option {option}: {value:?} is not {wanted}")]
    Value {
        /// The option.
        option: &'static str,
        /// What was given.
        value: String,
        /// What would do.
        wanted: &'static str,
    },
}

/// How an S3 bucket is named in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Addressing {
    Path,
    VirtualHosted,
}

/// Whether a request's signature covers its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Payload {
    Signed,
    Unsigned,
}

/// The options of one store, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Options {
    pub endpoint: Option<Url>,
    pub region: Option<String>,
    pub addressing: Addressing,
    pub payload: Payload,
    pub kms_key: Option<String>,
}

impl Options {
    pub fn read(provider: &Provider, given: &BTreeMap<String, String>) -> Result<Self, OptionsError> {
        let mut values = BTreeMap::new();
        let known = StoreOption::of(provider);
        for (name, value) in given {
            let option = known.iter().find(|option| option.name() == name).ok_or_else(|| OptionsError::Unknown {
                name: name.clone(),
                known: if known.is_empty() {
                    "none".to_owned()
                } else {
                    known.iter().map(|option| option.name()).collect::<Vec<_>>().join(", ")
                },
            })?;
            values.insert(*option, value.as_str());
        }
        let endpoint = values.get(&StoreOption::Endpoint).copied().map(endpoint).transpose()?;
        // Signing hashes every byte by SHA-256. Over TLS that protects nothing that isn't protected already.
        let plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.scheme() == "http");
        Ok(Self {
            region: values.get(&StoreOption::Region).map(|region| (*region).to_owned()),
            addressing: choice(&values, StoreOption::Addressing, "path or virtual-hosted", |value| match value {
                "path" => Some(Addressing::Path),
                "virtual-hosted" => Some(Addressing::VirtualHosted),
                _ => None,
            })?
            .unwrap_or(Addressing::Path),
            payload: choice(&values, StoreOption::Payload, "signed or unsigned", |value| match value {
                "signed" => Some(Payload::Signed),
                "unsigned" => Some(Payload::Unsigned),
                _ => None,
            })?
            .unwrap_or(if plain { Payload::Signed } else { Payload::Unsigned }),
            kms_key: values.get(&StoreOption::KmsKey).map(|key| (*key).to_owned()),
            endpoint,
        })
    }
}

fn endpoint(text: &str) -> Result<Url, OptionsError> {
    Url::parse(text)
        .ok()
        .filter(|url| ["http", "https"].contains(&url.scheme()) && url.has_host() && url.query().is_none())
        .ok_or_else(|| OptionsError::Value {
            option: StoreOption::Endpoint.name(),
            value: text.to_owned(),
            wanted: "a URL of http or https",
        })
}

fn choice<T>(
    values: &BTreeMap<StoreOption, &str>,
    option: StoreOption,
    wanted: &'static str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, OptionsError> {
    let Some(value) = values.get(&option) else { return Ok(None) };
    match read(value) {
        Some(choice) => Ok(Some(choice)),
        None => Err(OptionsError::Value { option: option.name(), value: (*value).to_owned(), wanted }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s3(given: &[(&str, &str)]) -> Result<Options, OptionsError> {
        let given = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Options::read(&Provider::S3 { bucket: "b".into() }, &given)
    }

    #[test]
    fn a_typo_and_another_providers_option_are_refused_with_what_is_known() {
        let error = s3(&[("endpont", "https://s3")]).unwrap_err().to_string();
        assert!(error.contains("endpont") && error.contains("endpoint, region"), "{error}");
        let region = BTreeMap::from([("region".to_owned(), "x".to_owned())]);
        let azure = Provider::Azure { account: "a".into(), container: "c".into() };
        assert!(matches!(Options::read(&azure, &region), Err(OptionsError::Unknown { .. })));
        // Names that the library below would take for credentials.
        for name in ["token", "access_key_id", "aws_secret_access_key"] {
            assert!(s3(&[(name, "x")]).is_err(), "{name}");
        }
    }

    #[test]
    fn values_are_held_against_what_they_may_be() {
        assert!(s3(&[("addressing", "virtual")]).is_err());
        assert!(s3(&[("endpoint", "s3.example.com")]).is_err());
        assert!(s3(&[("endpoint", "ftp://s3.example.com")]).is_err());
        assert_eq!(s3(&[("kms-key", "alias/etcd")]).unwrap().kms_key.as_deref(), Some("alias/etcd"));
    }

    #[test]
    fn content_is_signed_where_tls_does_not_protect_it() {
        assert_eq!(s3(&[]).unwrap().payload, Payload::Unsigned);
        assert_eq!(s3(&[("endpoint", "https://s3.example.com")]).unwrap().payload, Payload::Unsigned);
        assert_eq!(s3(&[("endpoint", "http://127.0.0.1:9000")]).unwrap().payload, Payload::Signed);
        let asked = s3(&[("endpoint", "http://127.0.0.1:9000"), ("payload", "unsigned")]).unwrap();
        assert_eq!(asked.payload, Payload::Unsigned);
    }
}
