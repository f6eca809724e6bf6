//! What a client shows the members of one cluster, and whom it trusts. It can be exchanged at any time: connections that
//! are made from then on use the new one. It reads PEM and no files.

use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use rustls::{
    ClientConfig, RootCertStore,
    client::Resumption,
    crypto::{CryptoProvider, aws_lc_rs},
};
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer,
    pem::{self, PemObject as _},
};

/// The one provider of cryptography.
static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| Arc::new(aws_lc_rs::default_provider()));

/// HTTP/2, as TLS names it: what calls of etcd are made over.
const HTTP_2: &[u8] = b"h2";
/// HTTP/1.1, as TLS names it.
const HTTP_1: &[u8] = b"http/1.1";

/// A certificate with its key and the authorities that are trusted, each as PEM.
#[derive(Clone, Copy)]
pub struct Pem<'a> {
    /// The certificate, and those between it and its authority.
    pub certificate: &'a str,
    /// Its private key.
    pub key: &'a str,
    /// The authorities that may have signed what members show.
    pub trusted: &'a str,
}

/// Why credentials are of no use.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// Something is no PEM.
    #[error("failed to read the {what}")]
    Pem {
        /// What was read.
        what: &'static str,
        /// Why it can't be.
        #[source]
        source: pem::Error,
    },
    /// There is nothing to trust.
    #[error("failed to find an authority to trust")]
    NoAuthority,
    /// They don't go together, or are of a kind that is not supported.
    #[error("failed to use the certificate and its key")]
    Tls(#[from] rustls::Error),
}

/// Credentials that can be exchanged. Clones share them.
#[derive(Clone, Debug)]
pub struct Credentials(Arc<RwLock<Arc<ClientConfig>>>);

impl Credentials {
    /// Takes them from PEM.
    pub fn new(pem: Pem<'_>) -> Result<Self, CredentialsError> {
        Ok(Self(Arc::new(RwLock::new(config(pem)?))))
    }

    /// Exchanges them, for the connections that are made from now on.
    pub fn replace(&self, pem: Pem<'_>) -> Result<(), CredentialsError> {
        let config = config(pem)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// As they are now.
    pub(crate) fn now(&self) -> Arc<ClientConfig> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same, for one who speaks HTTP/1.1.
    pub(crate) fn now_for_http_1(&self) -> Arc<ClientConfig> {
        let mut config = ClientConfig::clone(&self.now());
        config.alpn_protocols = vec![HTTP_1.to_vec()];
        Arc::new(config)
    }

    /// Whether both are the same ones, and not merely alike.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

fn config(pem: Pem<'_>) -> Result<Arc<ClientConfig>, CredentialsError> {
    let Pem { certificate, key, trusted } = pem;
    let mut roots = RootCertStore::empty();
    for authority in certificates("authorities", trusted)? {
        roots.add(authority)?;
    }
    if roots.is_empty() {
        return Err(CredentialsError::NoAuthority);
    }
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
        .map_err(|source| CredentialsError::Pem { what: "private key", source })?;
    let mut config = ClientConfig::builder_with_provider(PROVIDER.clone())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(certificates("certificate", certificate)?, key)?;
    config.alpn_protocols = vec![HTTP_2.to_vec()];
    // Ten thousand clusters are dialled by one operator, each seldom: tickets for the next time would be most of the memory.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

fn certificates(what: &'static str, pem: &str) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let read = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>();
    read.map_err(|source| CredentialsError::Pem { what, source })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Own {
        certificate: String,
        key: String,
    }

    fn own() -> Own {
        let made = rcgen::generate_simple_self_signed(["db".to_owned()]).unwrap();
        Own { certificate: made.cert.pem(), key: made.signing_key.serialize_pem() }
    }

    #[test]
    fn what_does_not_go_together_is_refused_with_what_it_is() {
        let (one, other) = (own(), own());
        let told = |certificate: &str, key: &str, trusted: &str| {
            let error = Credentials::new(Pem { certificate, key, trusted }).unwrap_err();
            std::error::Error::source(&error).map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
        };
        let Own { certificate, key } = &one;
        Credentials::new(Pem { certificate, key, trusted: certificate }).unwrap();
        assert!(told(certificate, &other.key, certificate).contains("certificate and its key"));
        assert!(told(certificate, key, "").contains("authority to trust"));
        assert!(told(certificate, "", certificate).contains("private key"));
        assert!(told(certificate, key, "-----BEGIN CERTIFICATE-----\n!\n").contains("authorities"));
    }

    #[test]
    fn what_is_exchanged_stays_the_same_credentials() {
        let (one, other) = (own(), own());
        let pem = |own: &'static Own| Pem { certificate: &own.certificate, key: &own.key, trusted: &own.certificate };
        let (one, other): (&'static Own, &'static Own) = (Box::leak(Box::new(one)), Box::leak(Box::new(other)));
        let credentials = Credentials::new(pem(one)).unwrap();
        let (clone, before) = (credentials.clone(), credentials.now());
        credentials.replace(pem(other)).unwrap();
        assert!(!Arc::ptr_eq(&before, &clone.now()), "whoever holds a clone dials with the new one");
        assert!(clone.is_same(&credentials));
        assert!(!clone.is_same(&Credentials::new(pem(other)).unwrap()));
        let broken = Pem { key: "", ..pem(one) };
        let now = credentials.now();
        credentials.replace(broken).unwrap_err();
        assert!(Arc::ptr_eq(&now, &credentials.now()), "what can't be read exchanges nothing");
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(certificate in ".{0,80}", key in ".{0,80}", trusted in ".{0,80}") {
            let _ = Credentials::new(Pem { certificate: &certificate, key: &key, trusted: &trusted });
        }
    }
}
