//! Who is let in at a member's ports and who is not; certificates of the user's; and plain text where that is asked for.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use etcd_client::{Client, ConnectOptions};
use quorate_crds::ConditionType;
use quorate_e2e::authority::{Authority, Order};
use quorate_e2e::faults::pods;
use quorate_e2e::scene::{
    AGENT_PORT, CLIENT_PORT, Cluster, Gateway, Keys, PATIENCE, PEER_PORT, Scene, Shown, Stage, View, Wish, Writer,
    knock, metrics, play, told, wait_for,
};
use quorate_e2e::workspace;
use serde_json::json;

use crate::archive::{self, revision};
use crate::roll;

/// Calls that read, write or give orders, as etcd knows them, etcd of old and a launcher; with what is brought, if that is
/// how the call is made. The ticket is not signed.
const CALLS: [(&str, Option<&str>); 5] = [
    ("/v3/kv/range", Some(r#"{"key":"AA==","range_end":"AA=="}"#)),
    ("/v3/kv/put", Some(r#"{"key":"aGVsbG8=","value":"d29ybGQ="}"#)),
    ("/members", None),
    ("/v2/keys", None),
    ("/ticket", Some(r#"{"pod":"any","ticket":"{}"}"#)),
];

/// How long a call in plain text may take.
const PLAIN_DEADLINE: Duration = Duration::from_secs(2);

/// A member with its address and host name.
pub async fn some_member(db: &Cluster) -> Result<(String, String, String)> {
    let doors = db.voters_doors().await?;
    let (name, door) = doors.into_iter().next().context("there is no member")?;
    Ok((name, door.address, door.host))
}

pub fn shown(keys: &Keys) -> Shown {
    keys.clone().into()
}

/// Demands that each of these is turned away by the member itself.
pub async fn are_refused(address: &str, port: u16, host: &str, strangers: &[(&str, Shown)]) -> Result<()> {
    for (what, shown) in strangers {
        let at = || format!("{what}, at port {port}");
        let how = knock(address, port, host, shown).await.with_context(at)?.refused().with_context(at)?;
        eprintln!("{} is refused: {how}", at());
    }
    Ok(())
}

/// Demands that who shows this is let in.
pub async fn is_let_in(address: &str, port: u16, host: &str, what: &str, keys: &Keys) -> Result<()> {
    let at = || format!("{what}, at port {port}");
    knock(address, port, host, &shown(keys)).await.with_context(at)?.let_in().with_context(at).map(drop)
}

/// Writes over gRPC without TLS, as a client of a cluster in plain text does.
async fn puts_in_plain_text(address: &str, port: u16) -> Result<()> {
    let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
    let options = ConnectOptions::new().with_connect_timeout(PLAIN_DEADLINE).with_timeout(PLAIN_DEADLINE);
    let put = async {
        let mut client = Client::connect([format!("http://{host}:{port}")], Some(options)).await.map_err(told)?;
        client.put("hello", "world", None).await.map_err(told).map(drop)
    };
    tokio::time::timeout(PLAIN_DEADLINE * 2, put).await.context("no answer in time")?
}

/// Demands that a port at which nobody has to show anything takes none of these calls, nor one over gRPC, and that none of
/// them writes. Nobody else may write meanwhile.
async fn takes_no_calls(db: &Cluster, address: &str, port: u16) -> Result<()> {
    let before = revision(db).await?;
    for (path, body) in CALLS {
        let (status, answer) =
            wait_for(&format!("an answer to {path} at port {port}"), PATIENCE, async || match body {
                Some(body) => metrics::post(address, port, path, body.to_owned()).await,
                None => metrics::get(address, port, path).await,
            })
            .await?;
        ensure!((400..500).contains(&status), "{path} at port {port} is answered with {status}: {answer}");
    }
    let put = puts_in_plain_text(address, port).await;
    ensure!(put.is_err(), "a put over gRPC at port {port} is taken");
    let after = revision(db).await?;
    ensure!(after == before, "by calls at port {port} the revision went from {before} to {after}");
    Ok(())
}

/// What a cluster's authority signs, out of its Secret: as only somebody could who has stolen it.
pub async fn authority(db: &Cluster, secret: &str) -> Result<Authority> {
    Authority::read(&db.secret_text(secret, "tls.crt").await?, &db.secret_text(secret, "tls.key").await?)
}

#[tokio::test]
async fn nobody_is_let_in_but_who_shows_a_certificate_of_this_cluster() -> Result<()> {
    play("tls_refused", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        scene.apply(&Gateway::credentials("s3", true)).await?.well()?;
        let db = scene.create(&archive::wish(&gateway)).await?;
        let other = scene.create(&Wish::new("other", 1)).await?;
        db.settles(3).await?;
        other.settles(1).await?;
        let own = db.keys().await?.context("db is in plain text")?;
        let foreign = other.keys().await?.context("other is in plain text")?;
        let (member, address, host) = some_member(&db).await?;
        let trusted = own.trusted.clone();
        let clients = authority(&db, "db-client-ca").await?;
        let (late, in_time) = (Order::client("late").expired(), Order::client("late"));
        // The controls: what strangers lack is nothing but what makes them strangers.
        let twin = clients.signs(&in_time)?.keys(&trusted);
        // What a member shows the others, from a pod that somebody broke into.
        let stolen = async |trusted: &str| {
            anyhow::Ok(Keys {
                trusted: trusted.to_owned(),
                certificate: db.secret_text(&member, "peer.crt").await?,
                key: db.secret_text(&member, "peer.key").await?,
            })
        };
        let strangers = [
            ("plain text", Shown::Plaintext),
            ("no certificate", Shown::Nothing { trusted: trusted.clone() }),
            ("another cluster's certificate", shown(&Keys { trusted: trusted.clone(), ..(*foreign).clone() })),
            ("a certificate that has run out", shown(&clients.signs(&late)?.keys(&trusted))),
            ("a member", shown(&stolen(&trusted).await?)),
        ];
        // The agent's port lets in whom its member's client port does.
        for port in [CLIENT_PORT, AGENT_PORT] {
            is_let_in(&address, port, &host, "the right certificate", &own).await?;
            is_let_in(&address, port, &host, "the twin of the one that has run out", &twin).await?;
            are_refused(&address, port, &host, &strangers).await?;
            is_let_in(&address, port, &host, "the right certificate, after all strangers", &own).await?;
        }
        // At the peer port: the same, and what clients show; and even a member's own, from an address that is not its.
        let peers = db.secret_text("db-peer-ca", "ca.crt").await?;
        let signer = authority(&db, "db-peer-ca").await?;
        // A certificate of that authority without a name is let in from anywhere, so it is not the port that refuses.
        let twin = signer.signs(&in_time)?.keys(&peers);
        is_let_in(&address, PEER_PORT, &host, "the twin of the one that has run out", &twin).await?;
        let foreign = Keys {
            trusted: peers.clone(),
            certificate: other.secret_text("other-0", "peer.crt").await?,
            key: other.secret_text("other-0", "peer.key").await?,
        };
        let strangers = [
            ("plain text", Shown::Plaintext),
            ("no certificate", Shown::Nothing { trusted: peers.clone() }),
            ("another cluster's member", shown(&foreign)),
            ("a client", shown(&Keys { trusted: peers.clone(), ..(*own).clone() })),
            ("a certificate that has run out", shown(&signer.signs(&late)?.keys(&peers))),
            ("a stolen certificate", shown(&stolen(&peers).await?)),
        ];
        are_refused(&address, PEER_PORT, &host, &strangers).await?;
        is_let_in(&address, PEER_PORT, &host, "that twin, after all strangers", &twin).await?;
        // The metrics listener is open to all: it tells how the member is, and nothing else. A ticket is not taken there
        // from anybody but the operator: scenes of `ticket`.
        takes_no_calls(&db, &address, metrics::PORT).await
    })
    .await
}

/// What etcdctl in the pod of the first member says, once it succeeds: it gives up by itself after some seconds.
async fn etcdctl(scene: &Scene, command: &[&str]) -> Result<String> {
    let call = [&["exec", "db-0", "-c", "etcd", "--", "etcdctl"], command].concat();
    let what = format!("etcdctl {}", command.join(" "));
    wait_for(&what, PATIENCE, async || scene.kubectl(&call).await?.well()).await
}

/// Demands that it lists the first three members, without a flag.
async fn etcdctl_lists_three(scene: &Scene) -> Result<()> {
    let listed = etcdctl(scene, &["member", "list"]).await?;
    ensure!(["db-0", "db-1", "db-2"].iter().all(|name| listed.contains(name)), "etcdctl lists\n{listed}");
    Ok(())
}

#[tokio::test]
async fn etcdctl_in_a_members_pod_needs_no_flags_and_an_application_only_its_secret() -> Result<()> {
    play("tls_etcdctl", Stage::Shared, async |scene| {
        let db = scene.create(&Wish::new("db", 1)).await?;
        db.settles(1).await?;
        for command in [&["member", "list"][..], &["put", "hello", "world"], &["endpoint", "health", "--cluster"]] {
            etcdctl(scene, command).await?;
        }
        db.reads("hello", "world").await?;
        let sample = workspace::root().join("deploy/samples/client.yaml").display().to_string();
        scene.kubectl(&["apply", "-f", &sample]).await?.well()?;
        let patience = format!("--timeout={}s", PATIENCE.as_secs());
        scene.kubectl(&["wait", "job/client", "--for=condition=Complete", &patience]).await?.well()?;
        db.reads("greeting", "hello").await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_deleted_secret_of_a_member_is_issued_anew() -> Result<()> {
    play("tls_deleted", Stage::Shared, async |scene| {
        let db = scene.create(&Wish::new("db", 1)).await?;
        db.settles(1).await?;
        let before = db.secret_text("db-0", "peer.key").await?;
        scene.kubectl(&["delete", "secret", "db-0"]).await?.well()?;
        wait_for("another Secret", PATIENCE, async || {
            ensure!(db.secret_text("db-0", "peer.key").await? != before, "it is the same");
            Ok(())
        })
        .await?;
        pods::delete_by_force(&db, &["db-0"]).await?;
        db.settles(1).await.map(drop)
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_cluster_in_plain_text_lives_as_well() -> Result<()> {
    play("tls_disabled", Stage::Shared, async |scene| {
        let db = scene.create(&Wish::new("db", 1).with("/tls/mode", json!("Disabled"))).await?;
        db.settles(1).await?;
        let writer = Writer::start(&db, "w").await?;
        db.scale(3).await?;
        db.settles(3).await?;
        let (_, address, host) = some_member(&db).await?;
        knock(&address, CLIENT_PORT, &host, &Shown::Plaintext).await?.let_in()?;
        let secrets = scene.kubectl(&["get", "secrets", "-o", "name"]).await?.well()?;
        ensure!(secrets.trim().is_empty(), "there are {secrets}");
        etcdctl_lists_three(scene).await?;
        let written = writer.stop().await?;
        written.check(&db).await?;
        // The control: the put that other ports refuse is one that is taken where no TLS is wanted.
        wait_for("a put in plain text", PATIENCE, async || puts_in_plain_text(&address, CLIENT_PORT).await).await?;
        takes_no_calls(&db, &address, metrics::PORT).await
    })
    .await
}

/// Demands that every container is the first one in its pod, the sidecars too.
pub fn none_was_restarted(view: &View) -> Result<()> {
    let statuses = view.pods.values().filter_map(|pod| pod.status.as_ref());
    let containers = statuses.flat_map(|status| [&status.container_statuses, &status.init_container_statuses]);
    let restarts: Vec<i32> = containers.flatten().flatten().map(|container| container.restart_count).collect();
    ensure!(restarts.iter().all(|count| *count == 0), "containers were restarted: {restarts:?}");
    Ok(())
}

/// What each member shows its clients.
pub async fn certificates(db: &Cluster) -> Result<BTreeMap<String, Vec<u8>>> {
    let keys = db.keys().await?.context("it is in plain text")?;
    certificates_at(db, CLIENT_PORT, &keys).await
}

/// What each member shows the others.
pub async fn peer_certificates(db: &Cluster) -> Result<BTreeMap<String, Vec<u8>>> {
    let trusted = db.secret_text("db-peer-ca", "ca.crt").await?;
    // Without a name it is let in from anywhere.
    let keys = authority(db, "db-peer-ca").await?.signs(&Order::client("looks"))?.keys(&trusted);
    certificates_at(db, PEER_PORT, &keys).await
}

async fn certificates_at(db: &Cluster, port: u16, keys: &Keys) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut certificates = BTreeMap::new();
    for (name, door) in db.voters_doors().await? {
        let answer = knock(&door.address, port, &door.host, &shown(keys)).await?;
        certificates.insert(name, answer.let_in()?);
    }
    Ok(certificates)
}

/// Puts a Secret of the user's there.
async fn put(scene: &Scene, name: &str, keys: &Keys) -> Result<()> {
    let Keys { trusted, certificate, key } = keys;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
        "stringData": { "ca.crt": trusted, "tls.crt": certificate, "tls.key": key },
    });
    scene.apply(&secret).await?.well().map(drop)
}

#[tokio::test]
#[ignore = "make e2e"]
async fn certificates_of_the_users_are_checked_and_then_used() -> Result<()> {
    play("tls_own", Stage::Shared, async |scene| {
        let (peers, clients) = (Authority::new("peers")?, Authority::new("clients")?);
        let space = scene.namespace();
        let any = format!("*.db.{space}.svc");
        let peer = Order::both("peer", &[&any, &format!("{any}.cluster.local")]);
        let server = Order::both("server", &[&any, &format!("db-client.{space}.svc")]);
        let named = json!({ "peer": { "name": "p" }, "server": { "name": "s" }, "client": { "name": "c" } });
        let wish = Wish::new("db", 3).with("/tls", json!({ "mode": "Secrets", "secrets": named }));
        // One is missing, one carries the names of one member only, one is signed by another authority: that is known
        // only once the missing one is there and says whom it trusts.
        put(scene, "p", &peers.signs(&Order::both("peer", &[&format!("db-0.db.{space}.svc")]))?.keys(&peers.trusted()))
            .await?;
        put(scene, "c", &peers.signs(&Order::client("quorate"))?.keys(&clients.trusted())).await?;
        let db = scene.create(&wish).await?;
        let told = format!("Secret p: it does not name {any}");
        db.until("each fault to be named", PATIENCE, |view| {
            let condition = view.condition(ConditionType::CertificatesValid).context("there is no condition")?;
            ensure!(condition.reason == "CertificatesFaulty", "the reason is {}", condition.reason);
            for fault in [told.as_str(), "Secret s: it does not exist"] {
                ensure!(condition.message.contains(fault), "{fault} is not in {}", condition.message);
            }
            ensure!(view.is(ConditionType::Stalled) && view.pods.is_empty(), "it was begun all the same");
            Ok(())
        })
        .await?;
        put(scene, "p", &peers.signs(&peer)?.keys(&peers.trusted())).await?;
        put(scene, "s", &clients.signs(&server)?.keys(&clients.trusted())).await?;
        let told = "Secret c: no certificate in ca.crt of Secret s has signed it";
        db.until("the other authority to be named", PATIENCE, |view| {
            let condition = view.condition(ConditionType::CertificatesValid).context("there is no condition")?;
            ensure!(condition.message.contains(told), "{told} is not in {}", condition.message);
            ensure!(view.is(ConditionType::Stalled) && view.pods.is_empty(), "it was begun all the same");
            Ok(())
        })
        .await?;
        let client = Order::client("quorate");
        let sound = clients.signs(&client)?.keys(&clients.trusted());
        put(scene, "c", &sound).await?;
        db.settles(3).await?;
        etcdctl_lists_three(scene).await?;
        ensure!(db.view().await?.is(ConditionType::CertificatesValid), "the condition is not True");
        // The key of another in a cluster that runs: it is told, nothing else comes of it, and it can be mended.
        let other = clients.signs(&client)?.keys(&clients.trusted());
        put(scene, "c", &Keys { key: other.key, ..sound.clone() }).await?;
        let told = "Secret c: the private key does not belong to the certificate";
        db.until("the foreign key to be named", PATIENCE, |view| {
            let condition = view.condition(ConditionType::CertificatesValid).context("there is no condition")?;
            ensure!(condition.reason == "CertificatesFaulty", "the reason is {}", condition.reason);
            ensure!(condition.message.contains(told), "{told} is not in {}", condition.message);
            ensure!(view.is(ConditionType::Ready) && view.is(ConditionType::Available), "it does not serve");
            Ok(())
        })
        .await?;
        wait_for("an event that names the foreign key", PATIENCE, async || {
            let events = scene.kubectl(&["get", "events", "--field-selector=type=Warning"]).await?.well()?;
            ensure!(events.contains(told), "the events are\n{events}");
            Ok(())
        })
        .await?;
        put(scene, "c", &sound).await?;
        db.until("the certificates to be valid again", PATIENCE, |view| {
            ensure!(view.is(ConditionType::CertificatesValid), "the condition is not True");
            Ok(())
        })
        .await?;
        // Others of the same authorities, as when they are renewed.
        let (members, before) = (db.identities().await?, roll::pods(&db.view().await?));
        let shown_till_now = certificates(&db).await?;
        put(scene, "p", &peers.signs(&peer)?.keys(&peers.trusted())).await?;
        put(scene, "s", &clients.signs(&server)?.keys(&clients.trusted())).await?;
        put(scene, "c", &clients.signs(&client)?.keys(&clients.trusted())).await?;
        show_others(&db, &shown_till_now).await?;
        none_was_restarted(&db.view().await?)?;
        // Who connects anew shows the new ones, and is let in.
        pods::delete_by_force(&db, &["db-0"]).await?;
        db.settles(3).await?;
        roll::only_another(&before, &roll::pods(&db.view().await?), "db-0")?;
        db.is_the_same_as(&members).await?;
        etcdctl(scene, &["endpoint", "health", "--cluster"]).await.map(drop)
    })
    .await
}

/// Waits until each member shows its clients another certificate. A kubelet takes its time to write what a Secret holds into a
/// pod (`syncFrequency`, a minute).
async fn show_others(db: &Cluster, served: &BTreeMap<String, Vec<u8>>) -> Result<()> {
    wait_for("each member to show another certificate", PATIENCE, async || {
        let now = certificates(db).await?;
        let same: Vec<_> = now.iter().filter(|(member, shown)| served.get(*member) == Some(shown)).collect();
        ensure!(same.is_empty() && now.len() == served.len(), "{} of {} do not", same.len(), served.len());
        Ok(())
    })
    .await
}
