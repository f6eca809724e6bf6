//! Everything that a cluster holds, read whole, so that what came back can be compared with what was there. It writes and
//! repairs nothing; that something was compacted is all that it leaves behind.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use crc32c::crc32c_append;
use etcd_client::{Client, GetOptions};

use super::members::{dial, told};
use super::{Cluster, PATIENCE, wait_for};

/// As much as a cluster of a scene may hold, in one answer: all of it is of one revision.
const MOST: usize = 64 << 20;

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

/// What a role may do with which keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// etcd's number for reading, writing or both.
    pub kind: i32,
    /// The first key.
    pub from: Vec<u8>,
    /// The key after the last one; empty for a single one.
    pub to: Vec<u8>,
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
    /// What each role may do.
    pub roles: BTreeMap<String, Vec<Granted>>,
}

/// What a cluster held at one revision, which a restore has to bring back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The last revision.
    pub revision: i64,
    /// What a read shows.
    pub contents: Contents,
    /// etcd's own hash of what a compaction at this revision leaves.
    pub hash: u32,
}

impl Cluster {
    /// All that it holds, with the revision at which it was read.
    pub async fn contents(&self) -> Result<(i64, Contents)> {
        wait_for(&format!("all that {} holds", self.name()), PATIENCE, async || self.ask(read).await).await
    }

    /// What a restored cluster is compared with: what `contents` has read, and etcd's own hash of it. Nobody may have written
    /// since. It compacts, so that what is to be backed up has to be in the store by now.
    pub async fn held(&self, (revision, contents): (i64, Contents)) -> Result<Held> {
        let hash = wait_for(&format!("a hash of what {} holds", self.name()), PATIENCE, async || {
            self.ask(async |client| hash_compacted(client, revision).await).await
        })
        .await?;
        Ok(Held { revision, contents, hash })
    }

    /// Demands that each member has the history that was backed up where this was its hash, entry by entry. Nobody may have
    /// written since it was restored.
    pub async fn has_history_of(&self, hash: u32) -> Result<()> {
        wait_for(
            &format!("the members of {} to have the history that was backed up", self.name()),
            PATIENCE,
            async || {
                for (name, door) in self.voters_doors().await? {
                    let answer = dial(&door).await?.hash_kv(0).await.map_err(told)?;
                    let revision = answer.header().context("an answer without a header")?.revision();
                    let compacted = answer.compact_version();
                    ensure!(revision == compacted, "{name} is at revision {revision}, and compacted up to {compacted}");
                    let wanted = hash_restored(hash, revision);
                    ensure!(
                        answer.hash() == wanted,
                        "{name} has the hash {}, not {wanted} after {hash}",
                        answer.hash()
                    );
                }
                Ok(())
            },
        )
        .await
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

/// The hash of what is left of each key at the last revision, as after a compaction there. One that was made there would have
/// etcd answer with the hash of all that it went through. So it is made one revision before, and the last one has to be that
/// of a put: what a deletion leaves would be in the hash.
async fn hash_compacted(client: &mut Client, revision: i64) -> Result<u32> {
    // An earlier try may have done it.
    let compaction = client.compact(revision - 1, None).await.map(drop);
    let answer = client.hash_kv(revision).await.map_err(told)?;
    let (now, compacted) =
        (answer.header().context("an answer without a header")?.revision(), answer.compact_version());
    ensure!(now == revision, "the revision is {now}, and was {revision}");
    ensure!(compacted == revision - 1, "it is compacted up to {compacted}, not {}: {compaction:?}", revision - 1);
    let last = client.get(Vec::new(), Some(GetOptions::new().with_all_keys().with_min_mod_revision(revision))).await;
    ensure!(!last.map_err(told)?.kvs().is_empty(), "revision {revision} has put nothing");
    Ok(answer.hash())
}

/// What becomes of that hash where such a history was restored up to this revision: etcdutl lets one entry without a value
/// follow, at the revision that it marks as compacted. The hash is a CRC-32C of entries in their order, so it goes on from
/// there (`unsafeBumpBucketsRevision` in etcdutl/snapshot/v3_snapshot.go, `kvHasher` in server/storage/mvcc/hash.go).
fn hash_restored(hash: u32, revision: i64) -> u32 {
    let key = [&revision.to_be_bytes()[..], b"_", &0_i64.to_be_bytes()].concat();
    crc32c_append(hash, &key)
}

async fn read(client: &mut Client) -> Result<(i64, Contents)> {
    let mut keys = client.kv_client().max_decoding_message_size(MOST);
    let answer = keys.get(Vec::new(), Some(GetOptions::new().with_all_keys())).await.map_err(told)?;
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
    let mut roles = BTreeMap::new();
    for role in client.role_list().await.map_err(told)?.roles() {
        let answer = client.role_get(role.clone()).await.map_err(told)?;
        let granted = answer.permissions().into_iter().map(|permission| Granted {
            kind: permission.get_type(),
            from: permission.key().to_vec(),
            to: permission.range_end().to_vec(),
        });
        roles.insert(role.clone(), granted.collect());
    }
    Ok((revision, Contents { entries, leases, users, roles }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What etcd 3.6.16 said: of a cluster, and of the one that `etcdutl snapshot restore` made of its snapshot with
    /// `--bump-revision 1000000000 --mark-compacted`.
    #[test]
    fn a_restored_history_has_the_hash_that_etcd_says_and_no_other() {
        assert_eq!(hash_restored(2_287_266_026, 1_000_000_015), 2_161_363_136);
        assert_ne!(hash_restored(2_287_266_027, 1_000_000_015), 2_161_363_136);
        assert_ne!(hash_restored(2_287_266_026, 1_000_000_016), 2_161_363_136);
    }
}
