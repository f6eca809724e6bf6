//! Both authorities of a cluster are exchanged for others as docs/tls.md says, under a writer: nobody is without a service, and
//! in the end nothing that the first ones signed is let in.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use quorate_crds::ConditionType;
use quorate_e2e::authority::{Authority, Order};
use quorate_e2e::faults::pods;
use quorate_e2e::scene::{
    CLIENT_PORT, Cluster, Keys, PATIENCE, PEER_PORT, Scene, Stage, View, Wish, Writer, play, wait_for,
};
use serde_json::json;

use super::roll::judge_loss;
use super::tls::{are_refused, authority, certificates, is_let_in, peer_certificates, shown};

/// The authorities, each with the Secrets in which it has to be trusted, and under which key.
const REALMS: [(&str, &[(&str, &str)]); 2] = [
    ("db-peer-ca", &[("db-0", "peer-ca.crt"), ("db-1", "peer-ca.crt"), ("db-2", "peer-ca.crt")]),
    (
        "db-client-ca",
        &[("db-0", "client-ca.crt"), ("db-1", "client-ca.crt"), ("db-2", "client-ca.crt"), ("db-client", "ca.crt")],
    ),
];

/// Changes texts in a Secret.
async fn set(scene: &Scene, secret: &str, texts: &[(&str, &str)]) -> Result<()> {
    let texts: BTreeMap<_, _> = texts.iter().copied().collect();
    let patch = json!({ "stringData": texts }).to_string();
    scene.kubectl(&["patch", "secret", secret, "--type=merge", "-p", &patch]).await?.well().map(drop)
}

/// Waits until all who trust one of the authorities trust exactly these.
async fn are_trusted(db: &Cluster, trusted: &BTreeMap<&str, Vec<String>>) -> Result<()> {
    let lines = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    wait_for("the Secrets of all to hold who is trusted", PATIENCE, async || {
        for (realm, secrets) in REALMS {
            let wanted = lines(&trusted.get(realm).context("a realm of nobody")?.join("\n"));
            for (secret, key) in secrets {
                let held = lines(&db.secret_text(secret, key).await?);
                ensure!(held == wanted, "{key} of {secret} is another one");
            }
        }
        Ok(())
    })
    .await
}

/// Starts the pods anew, one at a time.
async fn are_started_anew(db: &Cluster) -> Result<()> {
    for member in ["db-0", "db-1", "db-2"] {
        pods::delete_by_force(db, &[member]).await?;
        db.settles(3).await?;
    }
    Ok(())
}

/// What members show: to clients and to each other.
async fn all_shown(db: &Cluster) -> Result<[BTreeMap<String, Vec<u8>>; 2]> {
    Ok([certificates(db).await?, peer_certificates(db).await?])
}

fn is_valid(view: &View) -> Result<()> {
    let condition = view.condition(ConditionType::CertificatesValid).context("there is no condition")?;
    ensure!(condition.status == "True", "{condition:?}");
    Ok(())
}

#[tokio::test]
#[ignore = "make e2e"]
async fn authorities_are_exchanged_without_an_interruption() -> Result<()> {
    play("tls_rotation", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        db.settles(3).await?;
        let members = db.identities().await?;
        let writer = Writer::start_hasty(&db, "w").await?;
        let (mut both, mut second, mut new) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut thief = BTreeMap::new();
        for (realm, _) in REALMS {
            let first = authority(&db, realm).await?;
            let next = Authority::new(&format!("second {realm}"))?;
            thief.insert(realm, first.signs(&Order::client("thief"))?.keys(&next.trusted()));
            both.insert(realm, vec![first.trusted(), next.trusted()]);
            second.insert(realm, vec![next.trusted()]);
            new.insert(realm, next);
        }
        let before = all_shown(&db).await?;

        // The second one is trusted.
        for (realm, trusted) in &both {
            set(scene, realm, &[("ca.crt", &trusted.join("\n"))]).await?;
        }
        are_trusted(&db, &both).await?;
        are_started_anew(&db).await?;
        // It signs, and what it signs comes into the pods within a minute or two.
        for (realm, authority) in &new {
            set(scene, realm, &[("tls.crt", &authority.trusted()), ("tls.key", &authority.key())]).await?;
        }
        wait_for("each member to show another certificate", PATIENCE, async || {
            let now = all_shown(&db).await?;
            for (before, now) in before.iter().zip(&now) {
                let same = now.iter().filter(|(name, certificate)| before.get(*name) == Some(certificate)).count();
                ensure!(same == 0 && now.len() == 3, "{same} of {} do not", now.len());
            }
            Ok(())
        })
        .await?;
        let (address, host) = some_door(&db).await?;
        // The control: as long as the first is trusted, so is what it signed.
        for (realm, port) in [("db-client-ca", CLIENT_PORT), ("db-peer-ca", PEER_PORT)] {
            is_let_in(&address, port, &host, "what the first authority signed", thiefs(&thief, realm)?).await?;
        }
        // The first one is dropped.
        for (realm, trusted) in &second {
            set(scene, realm, &[("ca.crt", &trusted.join("\n"))]).await?;
        }
        are_trusted(&db, &second).await?;
        are_started_anew(&db).await?;

        let (address, host) = some_door(&db).await?;
        for (realm, port) in [("db-client-ca", CLIENT_PORT), ("db-peer-ca", PEER_PORT)] {
            let stranger = [("what the first authority signed", shown(thiefs(&thief, realm)?))];
            are_refused(&address, port, &host, &stranger).await?;
        }
        let keys = db.keys().await?.context("it is in plain text")?;
        is_let_in(&address, CLIENT_PORT, &host, "an application", &keys).await?;
        is_valid(&db.view().await?)?;
        judge_loss("authorities were exchanged", &writer.stop().await?, &db).await?;
        db.is_the_same_as(&members).await
    })
    .await
}

/// The address and host name of a member.
async fn some_door(db: &Cluster) -> Result<(String, String)> {
    let doors = db.voters_doors().await?;
    let door = doors.into_values().next().context("there is no member")?;
    Ok((door.address, door.host))
}

fn thiefs<'a>(thief: &'a BTreeMap<&str, Keys>, realm: &str) -> Result<&'a Keys> {
    thief.get(realm).context("a realm of nobody")
}
