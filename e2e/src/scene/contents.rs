//! Everything that a cluster holds, read whole, so that what came back can be compared with what was there. It compares and
//! repairs nothing.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use etcd_client::{Client, GetOptions};

use super::members::{dial, told};
use super::{Cluster, PATIENCE, wait_for};

/// One key as etcd shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its value.
    pub value: Vec<u8>,
    /// The revision at which it was created.
    pub created: i64,
    /// The revision of its last change.
    pub changed: i64,
    /// How often it was changed since it was created.
    pub version: i64,
    /// The lease that it hangs on; zero for none.
    pub lease: i64,
}

/// All that a cluster holds at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// By key.
    pub entries: BTreeMap<Vec<u8>, Entry>,
    /// For how long each lease was granted, in seconds.
    pub leases: BTreeMap<i64, i64>,
    /// The roles of each user.
    pub users: BTreeMap<String, Vec<String>>,
    /// The roles.
    pub roles: Vec<String>,
}

impl Cluster {
    /// All that it holds, with the revision at which it was read.
    pub async fn contents(&self) -> Result<(i64, Contents)> {
        wait_for(&format!("all that {} holds", self.name()), PATIENCE, async || self.ask(read).await).await
    }

    /// Demands that all members have the same history, by etcd's own hash, and returns the revision for which that holds.
    pub async fn hashes_agree(&self) -> Result<i64> {
        wait_for(&format!("the members of {} to have one history", self.name()), PATIENCE, async || {
            let (revision, _) = self.contents().await?;
            let mut hashes = BTreeMap::new();
            for (name, door) in self.voters_doors().await? {
                let answer = dial(&door).await?.hash_kv(revision).await.map_err(told)?;
                hashes.insert(name, answer.hash());
            }
            let first = hashes.values().next().copied();
            ensure!(hashes.values().all(|hash| Some(*hash) == first), "they differ: {hashes:?}");
            Ok(revision)
        })
        .await
    }
}

async fn read(client: &mut Client) -> Result<(i64, Contents)> {
    let answer = client.get(Vec::new(), Some(GetOptions::new().with_all_keys())).await.map_err(told)?;
    let revision = answer.header().context("an answer without a header")?.revision();
    let entries = answer.kvs().iter().map(|pair| {
        let entry = Entry {
            value: pair.value().to_vec(),
            created: pair.create_revision(),
            changed: pair.mod_revision(),
            version: pair.version(),
            lease: pair.lease(),
        };
        (pair.key().to_vec(), entry)
    });
    let entries = entries.collect();
    let mut leases = BTreeMap::new();
    for lease in client.leases().await.map_err(told)?.leases() {
        let answer = client.lease_time_to_live(lease.id(), None).await.map_err(told)?;
        leases.insert(lease.id(), answer.granted_ttl());
    }
    let mut users = BTreeMap::new();
    for user in client.user_list().await.map_err(told)?.users() {
        let roles = client.user_get(user.clone()).await.map_err(told)?.roles().to_vec();
        users.insert(user.clone(), roles);
    }
    let roles = client.role_list().await.map_err(told)?.roles().to_vec();
    Ok((revision, Contents { entries, leases, users, roles }))
}
