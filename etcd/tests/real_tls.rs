//! Real etcd over TLS: it lets in who shows a certificate of its authority, and reads its own files again at each
//! handshake, so that a renewal needs no restart. It runs for each program of `programs`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod pki;
mod ports;
mod programs;

use std::{fs, net::SocketAddr, path::Path, process::Stdio, time::Duration};

use quorate_etcd::{
    Access, CallError, Credentials, Endpoint, Pool, Role, Sight, look,
    plain_http::{self, HttpError},
};
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep},
};

use self::{
    pki::{Authority, HOST, Leaf, credentials, pem},
    ports::free_address,
};

/// How long etcd may take to serve.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked at.
const PERIOD: Duration = Duration::from_millis(20);

/// A member with its files.
struct Member {
    folder: TempDir,
    client: SocketAddr,
    metrics: SocketAddr,
    process: Option<Child>,
}

impl Member {
    fn start(etcd: &Path, leaf: &Leaf, authority: &Authority) -> Self {
        let [client, peer, metrics] = [(); 3].map(|()| free_address());
        let mut member = Self { folder: tempfile::tempdir().unwrap(), client, metrics, process: None };
        fs::write(member.path("ca.crt"), &authority.certificate).unwrap();
        member.shows(leaf);
        let flag = |name: &str, file: &str| format!("--{name}={}", member.path(file));
        let mut command = Command::new(etcd);
        command
            .args(["--name=db-0", "--client-cert-auth=true", "--peer-client-cert-auth=true"])
            .args([flag("data-dir", "data"), flag("trusted-ca-file", "ca.crt"), flag("peer-trusted-ca-file", "ca.crt")])
            .args([flag("cert-file", "tls.crt"), flag("key-file", "tls.key")])
            .args([flag("peer-cert-file", "tls.crt"), flag("peer-key-file", "tls.key")])
            .args([
                format!("--listen-client-urls=https://{client}"),
                format!("--advertise-client-urls=https://{client}"),
            ])
            .args([format!("--listen-peer-urls=https://{peer}"), format!("--listen-metrics-urls=http://{metrics}")])
            .arg(format!("--initial-advertise-peer-urls=https://{peer}"))
            .arg(format!("--initial-cluster=db-0=https://{peer}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let process = command.spawn().unwrap();
        member.process = Some(process);
        member
    }

    fn path(&self, file: &str) -> String {
        self.folder.path().join(file).display().to_string()
    }

    /// Exchanges its files.
    fn shows(&self, leaf: &Leaf) {
        fs::write(self.path("tls.crt"), &leaf.certificate).unwrap();
        fs::write(self.path("tls.key"), &leaf.key).unwrap();
    }

    /// Calls it over a new connection.
    async fn call(&self, credentials: &Credentials) -> Result<(), CallError> {
        let endpoint = Endpoint { addr: self.client, host: HOST.to_owned() };
        let member = Pool::default().member(&Access::tls(credentials.clone()), &endpoint)?;
        member.member_list().await.map(drop)
    }

    /// Waits until it leads; the metrics port is in plain text.
    async fn leads(&self) {
        let begun = Instant::now();
        loop {
            match look(self.metrics).await {
                Sight::Etcd(vitals) if vitals.role == Role::Leader && vitals.live => return,
                other => assert!(begun.elapsed() < PATIENCE, "{other:?}"),
            }
            sleep(PERIOD).await;
        }
    }

    /// Waits until its client port serves, which opens a little later than it leads.
    async fn serves(&self, credentials: &Credentials) {
        let begun = Instant::now();
        while let Err(error) = self.call(credentials).await {
            assert!(begun.elapsed() < PATIENCE, "{error}");
            sleep(PERIOD).await;
        }
    }
}

async fn live(etcd: &Path) {
    let (own, foreign) = (Authority::new("own"), Authority::new("foreign"));
    let member = Member::start(etcd, &own.signs(|_| ()), &own);
    member.leads().await;
    let client = own.signs(|params| params.subject_alt_names = Vec::new());
    let good = credentials(&client, &own);
    member.serves(&good).await;
    for stranger in [foreign.signs(|_| ()), own.signs(|params| params.not_after = rcgen::date_time_ymd(2020, 1, 1))] {
        let error = member.call(&credentials(&stranger, &own)).await.unwrap_err();
        assert!(error.outcome_unknown(), "{error}");
    }
    // Over HTTP/1.1 it lets in the same ones.
    let at = |host: &str| Endpoint { addr: member.client, host: host.to_owned() };
    let answer = plain_http::get_as(&Access::tls(good.clone()), &at(HOST), "/version").await.unwrap();
    assert!(answer.status.is_success() && answer.body.starts_with(b"{\"etcdserver\""), "{answer:?}");
    let stranger = credentials(&foreign.signs(|_| ()), &own);
    for (credentials, host) in [(&stranger, HOST), (&good, "elsewhere"), (&good, "no host")] {
        let refused = plain_http::get_as(&Access::tls(credentials.clone()), &at(host), "/version").await;
        assert!(matches!(refused, Err(HttpError::Connect { .. } | HttpError::Exchange { .. })), "{host}: {refused:?}");
    }
    // What it shows from now on is signed by another authority: who trusts only that one gets through, without a restart.
    let renewed = foreign.signs(|_| ());
    member.shows(&renewed);
    assert!(member.call(&good).await.is_err(), "it shows another certificate");
    good.replace(pem(&client, &foreign)).unwrap();
    member.call(&good).await.unwrap();
}

#[tokio::test]
async fn each_line_of_etcd_reads_its_certificates_again_at_each_handshake() {
    for etcd in programs::all() {
        live(&etcd).await;
    }
}
