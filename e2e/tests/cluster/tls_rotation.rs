//! Both authorities of a cluster are exchanged for others as docs/tls.md says, under a writer: nobody is without a service, and
//! in the end nothing that the first ones signed is let in.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use quorate_crds::ConditionType;
use quorate_e2e::authority::{Authority, Order};
use quorate_e2e::faults::pods;
use quorate_e2e::scene::{
    CLIENT_PORT, Cluster, Keys, PATIENCE, PEER_PORT, Scene, Stage, View, Wish, Writer, play, wait_for,
};
use serde_json::json;

use super::roll::judge_loss;
use super::tls::{are_refused, authority, is_let_in, shown, some_member};

/// An authority's Secret, the port at which members ask for what it signs, and the Secrets in which it has to be trusted, each
/// with the key there.
struct Realm {
    authority: &'static str,
    port: u16,
    trusting: &'static [(&'static str, &'static str)],
}

const REALMS: [Realm; 2] = [
    Realm {
        authority: "db-peer-ca",
        port: PEER_PORT,
        trusting: &[("db-0", "peer-ca.crt"), ("db-1", "peer-ca.crt"), ("db-2", "peer-ca.crt")],
    },
    Realm {
        authority: "db-client-ca",
        port: CLIENT_PORT,
        trusting: &[
            ("db-0", "client-ca.crt"),
            ("db-1", "client-ca.crt"),
            ("db-2", "client-ca.crt"),
            ("db-client", "ca.crt"),
        ],
    },
];

/// A realm whose first authority is exchanged for a second.
struct Exchange {
    realm: Realm,
    first: Authority,
    second: Authority,
}

impl Exchange {
    async fn of(db: &Cluster, realm: Realm) -> Result<Self> {
        let first = authority(db, realm.authority).await?;
        let second = Authority::new(&format!("second {}", realm.authority))?;
        Ok(Self { realm, first, second })
    }

    /// Has these be trusted, and waits until they are in all Secrets that tell so.
    async fn trusts(&self, db: &Cluster, trusted: &[&Authority]) -> Result<()> {
        let texts: Vec<_> = trusted.iter().map(|authority| authority.trusted()).collect();
        let text = texts.join("\n");
        set(db.scene(), self.realm.authority, &[("ca.crt", &text)]).await?;
        wait_for("the Secrets of all to hold who is trusted", PATIENCE, async || {
            for (secret, key) in self.realm.trusting {
                let held = db.secret_text(secret, key).await?;
                ensure!(held.split_whitespace().eq(text.split_whitespace()), "{key} of {secret} is another one");
            }
            Ok(())
        })
        .await
    }

    /// The second one signs from now on.
    async fn signs(&self, db: &Cluster) -> Result<()> {
        let (certificate, key) = (self.second.trusted(), self.second.key());
        set(db.scene(), self.realm.authority, &[("tls.crt", &certificate), ("tls.key", &key)]).await
    }

    /// What somebody has whom the first one signed.
    fn left_over(&self) -> Result<Keys> {
        Ok(self.first.signs(&Order::client("thief"))?.keys(&self.second.trusted()))
    }
}

/// Changes texts in a Secret.
async fn set(scene: &Scene, secret: &str, texts: &[(&str, &str)]) -> Result<()> {
    let texts: BTreeMap<_, _> = texts.iter().copied().collect();
    let patch = json!({ "stringData": texts }).to_string();
    scene.kubectl(&["patch", "secret", secret, "--type=merge", "-p", &patch]).await?.well().map(drop)
}

/// Starts the pods anew, one at a time.
async fn are_started_anew(db: &Cluster) -> Result<()> {
    for member in ["db-0", "db-1", "db-2"] {
        pods::delete_by_force(db, &[member]).await?;
        db.settles(3).await?;
    }
    Ok(())
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
        let exchanges = try_join_all(REALMS.map(|realm| Exchange::of(&db, realm))).await?;
        for exchange in &exchanges {
            exchange.trusts(&db, &[&exchange.first, &exchange.second]).await?;
        }
        are_started_anew(&db).await?;
        // What it signs comes into the pods within a minute or two.
        for exchange in &exchanges {
            exchange.signs(&db).await?;
        }
        // Who trusts the second alone gets through; and as long as the first is trusted, so is what it signed.
        wait_for("each member to show what the second authority signed", PATIENCE, async || {
            for exchange in &exchanges {
                let keys = exchange.left_over()?;
                for door in db.voters_doors().await?.values() {
                    is_let_in(&door.address, exchange.realm.port, &door.host, "what the first signed", &keys).await?;
                }
            }
            Ok(())
        })
        .await?;
        for exchange in &exchanges {
            exchange.trusts(&db, &[&exchange.second]).await?;
        }
        are_started_anew(&db).await?;

        let (_, address, host) = some_member(&db).await?;
        for exchange in &exchanges {
            let stranger = [("what the first authority signed", shown(&exchange.left_over()?))];
            are_refused(&address, exchange.realm.port, &host, &stranger).await?;
        }
        let keys = db.keys().await?.context("it is in plain text")?;
        is_let_in(&address, CLIENT_PORT, &host, "an application", &keys).await?;
        is_valid(&db.view().await?)?;
        judge_loss("authorities were exchanged", &writer.stop().await?, &db).await?;
        db.is_the_same_as(&members).await
    })
    .await
}
