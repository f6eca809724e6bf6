//! Who is let in at a member's ports and who is not; certificates that run out while somebody writes; certificates of the
//! user's; and plain text where that is asked for.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use quorate_crds::ConditionType;
use quorate_e2e::authority::{Authority, Order};
use quorate_e2e::faults::pods;
use quorate_e2e::scene::{
    CLIENT_PORT, Cluster, Keys, PATIENCE, PEER_PORT, Scene, Shown, Stage, Wish, Writer, dial, knock, metrics, play,
    wait_for,
};
use quorate_e2e::workspace;
use serde_json::json;

use crate::archive::revision;

/// Calls that read, write or give orders, as etcd knows them, etcd of old and a launcher; with what is brought, if that is
/// how the call is made. The ticket is not signed.
const CALLS: [(&str, Option<&str>); 5] = [
    ("/v3/kv/range", Some(r#"{"key":"AA==","range_end":"AA=="}"#)),
    ("/v3/kv/put", Some(r#"{"key":"aGVsbG8=","value":"d29ybGQ="}"#)),
    ("/members", None),
    ("/v2/keys", None),
    ("/ticket", Some(r#"{"pod":"any","ticket":"{}"}"#)),
];

/// A member with its address and host name.
async fn some_member(db: &Cluster) -> Result<(String, String, String)> {
    let doors = db.voters_doors().await?;
    let (name, door) = doors.into_iter().next().context("there is no member")?;
    Ok((name, door.address, door.host))
}

fn shown(keys: &Keys) -> Shown {
    let Keys { trusted, certificate, key } = keys.clone();
    Shown::Certificate { trusted, certificate, key }
}

/// Demands that each of these is turned away by the member itself.
async fn are_refused(address: &str, port: u16, host: &str, strangers: &[(&str, Shown)]) -> Result<()> {
    for (what, shown) in strangers {
        let at = || format!("{what}, at port {port}");
        let how = knock(address, port, host, shown).await.with_context(at)?.refused().with_context(at)?;
        eprintln!("{} is refused: {how}", at());
    }
    Ok(())
}

/// Demands that who shows this is let in.
async fn is_let_in(address: &str, port: u16, host: &str, what: &str, keys: &Keys) -> Result<()> {
    let at = || format!("{what}, at port {port}");
    knock(address, port, host, &shown(keys)).await.with_context(at)?.let_in().with_context(at).map(drop)
}

/// Demands that a port at which nobody has to show anything takes none of these calls, and that none of them writes. Nobody
/// else may write meanwhile.
pub async fn takes_no_calls(db: &Cluster, address: &str, port: u16) -> Result<()> {
    let before = revision(db).await?;
    for (path, body) in CALLS {
        let answered = match body {
            Some(body) => metrics::post(address, port, path, body.to_owned()).await,
            None => metrics::get(address, port, path).await,
        };
        let (status, answer) = answered.with_context(|| format!("{path} at port {port}"))?;
        ensure!((400..500).contains(&status), "{path} at port {port} is answered with {status}: {answer}");
    }
    let after = revision(db).await?;
    ensure!(after == before, "by calls at port {port} the revision went from {before} to {after}");
    Ok(())
}

/// What a cluster's authority signs, out of its Secret: as only somebody could who has stolen it.
async fn authority(db: &Cluster, secret: &str) -> Result<Authority> {
    Authority::read(&db.secret_text(secret, "tls.crt").await?, &db.secret_text(secret, "tls.key").await?)
}

#[tokio::test]
async fn nobody_is_let_in_but_who_shows_a_certificate_of_this_cluster() -> Result<()> {
    play("tls_refused", Stage::Shared, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
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
        is_let_in(&address, CLIENT_PORT, &host, "the right certificate", &own).await?;
        let twin = clients.signs(&in_time)?.keys(&trusted);
        is_let_in(&address, CLIENT_PORT, &host, "the twin of the one that has run out", &twin).await?;
        let strangers = [
            ("plain text", Shown::Plaintext),
            ("no certificate", Shown::Nothing { trusted: trusted.clone() }),
            ("another cluster's certificate", shown(&Keys { trusted: trusted.clone(), ..(*foreign).clone() })),
            ("a certificate that has run out", shown(&clients.signs(&late)?.keys(&trusted))),
        ];
        are_refused(&address, CLIENT_PORT, &host, &strangers).await?;
        // At the peer port: the same, and what clients show; and even a member's own, from an address that is not its.
        let peers = db.secret_text("db-peer-ca", "ca.crt").await?;
        let signer = authority(&db, "db-peer-ca").await?;
        // A certificate of that authority without a name is let in from anywhere, so it is not the port that refuses.
        let twin = signer.signs(&in_time)?.keys(&peers);
        is_let_in(&address, PEER_PORT, &host, "the twin of the one that has run out", &twin).await?;
        let stolen = Keys {
            trusted: peers.clone(),
            certificate: db.secret_text(&member, "peer.crt").await?,
            key: db.secret_text(&member, "peer.key").await?,
        };
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
            ("a stolen certificate", shown(&stolen)),
        ];
        are_refused(&address, PEER_PORT, &host, &strangers).await?;
        // The metrics listener is open to all: it tells how the member is, and nothing else.
        takes_no_calls(&db, &address, metrics::PORT).await
    })
    .await
}

#[tokio::test]
async fn etcdctl_in_a_members_pod_needs_no_flags_and_an_application_only_its_secret() -> Result<()> {
    play("tls_etcdctl", Stage::Shared, async |scene| {
        let db = scene.create(&Wish::new("db", 1)).await?;
        db.settles(1).await?;
        for command in [&["member", "list"][..], &["put", "hello", "world"], &["endpoint", "health", "--cluster"]] {
            let call = [&["exec", "db-0", "-c", "etcd", "--", "etcdctl"], command].concat();
            scene.kubectl(&call).await?.well()?;
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
        let written = writer.stop().await?;
        written.check(&db).await
    })
    .await
}

/// The shortest lifetime that there may be.
const LIFETIME: Duration = Duration::from_mins(5);
/// How long is written: beyond the time at which the first certificates run out, with those that were backdated.
const WRITING: Duration = Duration::from_mins(6);
/// The pause between two calls, each over a connection of its own.
const PAUSE: Duration = Duration::from_millis(100);
/// How often the Secret is read anew, as an application that follows its files does.
const KEYS_INTERVAL: Duration = Duration::from_secs(1);

#[tokio::test]
#[ignore = "make e2e"]
async fn certificates_are_renewed_under_a_writer_without_a_failed_call() -> Result<()> {
    play("tls_renewal", Stage::Shared, async |scene| {
        let minutes = LIFETIME.as_secs() / 60;
        let db = scene.create(&Wish::new("db", 3).with("/tls/lifetimeMinutes", json!(minutes))).await?;
        db.settles(3).await?;
        let before = db.identities().await?;
        let members: Vec<String> = before.keys().cloned().collect();
        let first = certificates(&db).await?;
        let (started, mut doors, mut calls, mut read) = (Instant::now(), BTreeMap::new(), 0_u32, None::<Instant>);
        while started.elapsed() < WRITING {
            if read.is_none_or(|read| read.elapsed() >= KEYS_INTERVAL) {
                (doors, read) = (db.voters_doors().await?, Some(Instant::now()));
            }
            let member = &members[usize::try_from(calls)? % members.len()];
            let put = async {
                let door = doors.get(member).context("it has no address")?;
                let mut client = dial(door).await?;
                client.put(format!("w/{calls}"), "x", None).await.map_err(|error| anyhow::anyhow!("{error}"))
            };
            put.await.with_context(|| format!("call {calls} to {member} after {:?}", started.elapsed()))?;
            calls += 1;
            tokio::time::sleep(PAUSE).await;
        }
        let last = certificates(&db).await?;
        for (member, certificate) in &first {
            ensure!(last.get(member) != Some(certificate), "{member} shows the certificate that it began with");
        }
        eprintln!("{calls} calls over as many connections in {:?}, none failed", started.elapsed());
        // Nothing was restarted, and members that connect anew are let in.
        let view = db.view().await?;
        let restarts: Vec<i32> = view
            .pods
            .values()
            .flat_map(|pod| pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten()))
            .map(|container| container.restart_count)
            .collect();
        ensure!(restarts.iter().all(|count| *count == 0), "containers were restarted: {restarts:?}");
        pods::delete_by_force(&db, &[&members[0]]).await?;
        db.settles(3).await?;
        db.is_the_same_as(&before).await?;
        ensure!(db.view().await?.is(ConditionType::CertificatesValid), "the condition is not True");
        let events = scene.kubectl(&["get", "events"]).await?.well()?;
        ensure!(events.contains("CertificatesRenewed"), "the events are\n{events}");
        Ok(())
    })
    .await
}

/// What each member shows its clients.
async fn certificates(db: &Cluster) -> Result<BTreeMap<String, Vec<u8>>> {
    let keys = db.keys().await?.context("it is in plain text")?;
    let mut certificates = BTreeMap::new();
    for (name, door) in db.voters_doors().await? {
        let answer = knock(&door.address, CLIENT_PORT, &door.host, &shown(&keys)).await?;
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
        put(scene, "c", &clients.signs(&Order::client("quorate"))?.keys(&clients.trusted())).await?;
        db.settles(3).await?;
        let call = ["exec", "db-0", "-c", "etcd", "--", "etcdctl", "member", "list"];
        let listed = scene.kubectl(&call).await?.well()?;
        ensure!(["db-0", "db-1", "db-2"].iter().all(|name| listed.contains(name)), "etcdctl lists\n{listed}");
        ensure!(db.view().await?.is(ConditionType::CertificatesValid), "the condition is not True");
        Ok(())
    })
    .await
}
