//! Who is let in over TLS and who is not: a server in this process that demands a client's certificate, as etcd does, and
//! writes down how each handshake ended.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod pki;

use std::{net::SocketAddr, sync::Arc};

use quorate_etcd::{Access, Credentials, Endpoint, Pool};
use rcgen::{ExtendedKeyUsagePurpose, date_time_ymd};
use rustls::{RootCertStore, ServerConfig, crypto::aws_lc_rs, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_rustls::TlsAcceptor;

use self::pki::{Authority, HOST, Leaf, credentials, pem};

/// A server on a port of its own: where it is, and how each handshake with it ended.
async fn server(leaf: &Leaf, trusted: &Authority) -> (SocketAddr, mpsc::UnboundedReceiver<Result<(), String>>) {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.certificate.as_bytes()).unwrap()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
    let chain = vec![CertificateDer::from_pem_slice(leaf.certificate.as_bytes()).unwrap()];
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap())
        .unwrap();
    assert!(!config.ticketer.enabled(), "every connection is a whole handshake");
    let (acceptor, listener) = (TlsAcceptor::from(Arc::new(config)), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let addr = listener.local_addr().unwrap();
    let (ended, endings) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let ending = acceptor.accept(tcp).await.map(drop).map_err(|error| error.to_string());
            let _ = ended.send(ending);
        }
    });
    (addr, endings)
}

/// Calls once, over a new connection; how the server saw the handshake end.
async fn knock(
    addr: SocketAddr,
    host: &str,
    credentials: &Credentials,
    endings: &mut mpsc::UnboundedReceiver<Result<(), String>>,
) -> Result<(), String> {
    let endpoint = Endpoint { addr, host: host.to_owned() };
    let member = Pool::default().member(&Access::tls(credentials.clone()), &endpoint).unwrap();
    // The server hangs up after the handshake, so that the call itself always fails.
    assert!(member.status().await.unwrap_err().outcome_unknown());
    endings.recv().await.unwrap()
}

fn says(ending: Result<(), String>, word: &str) {
    let said = ending.unwrap_err();
    assert!(said.contains(word), "{said}");
}

#[tokio::test]
async fn only_who_shows_a_certificate_of_the_clusters_own_authority_is_let_in() {
    let (own, foreign) = (Authority::new("one"), Authority::new("another"));
    let (addr, mut endings) = server(&own.signs(|_| ()), &own).await;
    let good = credentials(&own.signs(|_| ()), &own);
    assert_eq!(knock(addr, HOST, &good, &mut endings).await, Ok(()));
    let stranger = credentials(&foreign.signs(|_| ()), &own);
    says(knock(addr, HOST, &stranger, &mut endings).await, "UnknownIssuer");
    let late = own.signs(|params| params.not_after = date_time_ymd(2020, 1, 1));
    let late = credentials(&late, &own);
    says(knock(addr, HOST, &late, &mut endings).await, "expired");
    let server_only = own.signs(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]);
    let server_only = credentials(&server_only, &own);
    says(knock(addr, HOST, &server_only, &mut endings).await, "client authentication");
}

#[tokio::test]
async fn a_member_that_is_another_or_that_nobody_vouches_for_is_not_spoken_to() {
    let (own, foreign) = (Authority::new("one"), Authority::new("another"));
    let (addr, mut endings) = server(&own.signs(|_| ()), &own).await;
    let good = credentials(&own.signs(|_| ()), &own);
    says(knock(addr, "db-1.db.ns.svc", &good, &mut endings).await, "BadCertificate");
    let trusts_another = credentials(&own.signs(|_| ()), &foreign);
    says(knock(addr, HOST, &trusts_another, &mut endings).await, "UnknownCA");
}

#[tokio::test]
async fn exchanged_credentials_are_shown_at_the_next_connection() {
    let (old, new) = (Authority::new("one"), Authority::new("another"));
    let (addr, mut endings) = server(&new.signs(|_| ()), &new).await;
    let credentials = credentials(&old.signs(|_| ()), &old);
    assert!(knock(addr, HOST, &credentials, &mut endings).await.is_err());
    credentials.replace(pem(&new.signs(|_| ()), &new)).unwrap();
    assert_eq!(knock(addr, HOST, &credentials, &mut endings).await, Ok(()));
}
