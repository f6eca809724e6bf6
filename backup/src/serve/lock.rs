//! A port that only those may use who show a certificate of the right authority. The files are read at each handshake, so what
//! is renewed needs no restart: the own certificate, as etcd does, and also whom it trusts, which etcd reads once. It knows
//! nothing of what is served.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::{Acceptor, NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::{self, PemObject as _};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

/// The one provider of cryptography.
static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| Arc::new(aws_lc_rs::default_provider()));

/// What is shown to callers, and whom they have to be from: files in PEM.
#[derive(Debug)]
pub struct Lock {
    /// The own certificate, and those between it and its authority.
    certificate: PathBuf,
    /// Its private key.
    key: PathBuf,
    /// The authorities that may have signed what callers show.
    callers: PathBuf,
    /// That the files are of no use was told, and has not changed since.
    told: AtomicBool,
}

/// Why a caller is not let in.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// A file can't be read.
    #[error("failed to read {}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
    /// A file is no PEM, or not of what it should be.
    #[error("failed to read the PEM in {}: {source}", path.display())]
    Pem {
        /// Which.
        path: PathBuf,
        /// Why it can't be read.
        source: pem::Error,
    },
    /// Nobody could be let in.
    #[error("failed to take the authorities in {}: {source}", path.display())]
    Callers {
        /// The file.
        path: PathBuf,
        /// Why.
        source: VerifierBuilderError,
    },
    /// The own certificate and its key don't go together, or an authority is none.
    #[error("failed to use the certificates: {0}")]
    Tls(#[from] rustls::Error),
    /// The caller shows nothing that is trusted, or does not speak TLS.
    #[error("failed to let a caller in: {0}")]
    Caller(#[source] io::Error),
}

impl Lock {
    /// With these files, as they are whenever somebody calls.
    pub const fn new(certificate: PathBuf, key: PathBuf, callers: PathBuf) -> Self {
        Self { certificate, key, callers, told: AtomicBool::new(false) }
    }

    /// Lets a caller in who shows the right thing.
    pub async fn opens(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>, LockError> {
        // Nothing is read for who does not even speak TLS.
        let met = LazyConfigAcceptor::new(Acceptor::default(), stream).await.map_err(LockError::Caller)?;
        let config = self.config()?;
        self.told.store(false, Ordering::Relaxed);
        met.into_stream(Arc::new(config)).await.map_err(LockError::Caller)
    }

    /// Writes into the log what failed: once, if it is not the caller.
    pub fn tell(&self, fault: &LockError) {
        match fault {
            LockError::Caller(_) => tracing::debug!("{fault}"),
            LockError::File { .. } | LockError::Pem { .. } | LockError::Callers { .. } | LockError::Tls(_) => {
                if !self.told.swap(true, Ordering::Relaxed) {
                    tracing::warn!("nobody is answered until this is mended: {fault}");
                }
            }
        }
    }

    fn config(&self) -> Result<ServerConfig, LockError> {
        let Self { certificate, key, callers, told: _ } = self;
        let mut roots = RootCertStore::empty();
        for authority in certificates(callers)? {
            roots.add(authority)?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), PROVIDER.clone())
            .build()
            .map_err(|source| LockError::Callers { path: callers.clone(), source })?;
        let private = PrivateKeyDer::from_pem_slice(&read(key)?)
            .map_err(|source| LockError::Pem { path: key.clone(), source })?;
        let mut config = ServerConfig::builder_with_provider(PROVIDER.clone())
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(certificates(certificate)?, private)?;
        // Whoever calls is looked at: nobody comes in by what was shown at an earlier time.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

fn certificates(path: &PathBuf) -> Result<Vec<CertificateDer<'static>>, LockError> {
    let read = CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<_, _>>();
    read.map_err(|source| LockError::Pem { path: path.clone(), source })
}

fn read(path: &PathBuf) -> Result<Vec<u8>, LockError> {
    fs::read(path).map_err(|source| LockError::File { path: path.clone(), source })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
    use rustls::ClientConfig;
    use rustls_pki_types::ServerName;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsConnector;

    use super::*;

    struct Authority {
        pem: String,
        issuer: Issuer<'static, KeyPair>,
    }

    struct Pair {
        certificate: String,
        key: String,
    }

    impl Authority {
        fn new() -> Self {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().unwrap();
            Self { pem: params.self_signed(&key).unwrap().pem(), issuer: Issuer::new(params, key) }
        }

        fn signs(&self, change: impl FnOnce(&mut CertificateParams)) -> Pair {
            let mut params = CertificateParams::new(["member".to_owned()]).unwrap();
            change(&mut params);
            let key = KeyPair::generate().unwrap();
            Pair { certificate: params.signed_by(&key, &self.issuer).unwrap().pem(), key: key.serialize_pem() }
        }

        /// A lock whose files are in this folder.
        fn lock(&self, folder: &Path) -> Lock {
            let Pair { certificate, key } = self.signs(|_| ());
            let file = |name: &str, text: &str| {
                let path = folder.join(name);
                fs::write(&path, text).unwrap();
                path
            };
            Lock::new(file("server.crt", &certificate), file("server.key", &key), file("ca.crt", &self.pem))
        }

        /// A caller who trusts this authority, and shows this.
        fn caller(&self, shown: Option<Pair>) -> TlsConnector {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()).unwrap();
            let builder = ClientConfig::builder_with_provider(PROVIDER.clone())
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots);
            let config = match shown {
                None => builder.with_no_client_auth(),
                Some(Pair { certificate, key }) => builder
                    .with_client_auth_cert(
                        vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
                        PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
                    )
                    .unwrap(),
            };
            TlsConnector::from(Arc::new(config))
        }
    }

    /// Whether the caller is let in, and gets a byte: of what it is refused it only learns when it reads.
    async fn meet(lock: &Lock, caller: &TlsConnector) -> (Result<(), LockError>, io::Result<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let host = async {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = lock.opens(stream).await?;
            stream.write_u8(7).await.map_err(LockError::Caller)?;
            stream.flush().await.map_err(LockError::Caller)
        };
        let guest = async {
            let stream = TcpStream::connect(address).await?;
            let name = ServerName::try_from("member").map_err(io::Error::other)?;
            caller.connect(name, stream).await?.read_u8().await
        };
        tokio::join!(host, guest)
    }

    #[tokio::test]
    async fn only_who_shows_a_certificate_of_the_authority_in_its_time_is_let_in() {
        let folder = tempfile::tempdir().unwrap();
        let (own, other) = (Authority::new(), Authority::new());
        let lock = own.lock(folder.path());
        let (opened, got) = meet(&lock, &own.caller(Some(own.signs(|_| ())))).await;
        opened.unwrap();
        assert_eq!(got.unwrap(), 7);
        let late = own.signs(|params| params.not_after = date_time_ymd(2020, 1, 1));
        let strangers = [("none", None), ("another's", Some(other.signs(|_| ()))), ("one run out", Some(late))];
        for (what, shown) in strangers {
            let (opened, got) = meet(&lock, &own.caller(shown)).await;
            assert!(matches!(opened, Err(LockError::Caller(_))), "{what}: {opened:?}");
            assert!(got.is_err(), "{what}: {got:?}");
        }
        let plain = async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut caller = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            caller.write_all(b"GET /status HTTP/1.1\r\n\r\n").await.unwrap();
            lock.opens(listener.accept().await.unwrap().0).await
        };
        assert!(matches!(plain.await, Err(LockError::Caller(_))));
    }

    #[tokio::test]
    async fn what_is_renewed_is_shown_to_the_next_caller() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (Authority::new(), Authority::new());
        let lock = old.lock(folder.path());
        meet(&lock, &old.caller(Some(old.signs(|_| ())))).await.0.unwrap();
        let _ = new.lock(folder.path());
        meet(&lock, &new.caller(Some(new.signs(|_| ())))).await.0.unwrap();
        meet(&lock, &old.caller(Some(old.signs(|_| ())))).await.0.unwrap_err();
    }

    #[tokio::test]
    async fn files_that_are_of_no_use_let_nobody_in_and_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let own = Authority::new();
        let lock = own.lock(folder.path());
        let caller = own.caller(Some(own.signs(|_| ())));
        let keep = |name: &str| (folder.path().join(name), fs::read(folder.path().join(name)).unwrap());
        for (name, content) in [
            ("server.crt", None),
            ("server.key", Some("")),
            ("server.key", Some(own.signs(|_| ()).key.as_str())),
            ("ca.crt", Some("")),
            ("ca.crt", Some("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n")),
        ] {
            let (path, before) = keep(name);
            match content {
                None => fs::remove_file(&path).unwrap(),
                Some(text) => fs::write(&path, text).unwrap(),
            }
            let fault = meet(&lock, &caller).await.0.unwrap_err();
            match &fault {
                LockError::File { path: named, .. }
                | LockError::Pem { path: named, .. }
                | LockError::Callers { path: named, .. } => assert_eq!(*named, path, "{fault}"),
                LockError::Tls(_) => assert_eq!(name, "server.key", "{fault}"),
                LockError::Caller(_) => panic!("{name}: {fault}"),
            }
            lock.tell(&fault);
            assert!(lock.told.load(Ordering::Relaxed));
            fs::write(&path, before).unwrap();
            meet(&lock, &caller).await.0.unwrap();
            assert!(!lock.told.load(Ordering::Relaxed), "what fails later is told again");
        }
    }
}
