//! Restores: brings a database back to a revision, and has etcdutl make a member's data folder of it. What it makes appears
//! under its name when it is complete and not before, so a restore that was killed is simply repeated.

mod apply;
mod etcdutl;
mod fetch;
mod outline;
mod rewind;
mod scratch;
mod survey;
mod thin;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use tokio::task::{JoinError, spawn_blocking};

use crate::bolt::{AppendError, BoltError};
use crate::format::{
    ChainError, Choice, ChoiceError, Cluster, Damage, DataError, GenerationKey, GenerationName, Hash, Lineage, Nonce,
    RecordFault, Revision, Target, demand_identity,
};
use crate::keys::KeysError;
use crate::store::{Key, Store, StoreError};

pub use apply::UNKNOWN_TTL;
pub use etcdutl::{Bump, LEAST_BUMP, Membership, Tool};
use rewind::Rewound;
use scratch::Scratch;
pub(crate) use scratch::{clear_remains, free};
pub use survey::{Damaged, find};

/// Where a member's data folder has its database.
const DATABASE: &str = "member/snap/db";

/// Why nothing was restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The store can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A generation is damaged.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// A generation is damaged from some delta on, and what is wanted is, or may be, beyond that.
    #[error(transparent)]
    BrokenOff(#[from] Box<Damage>),
    /// The newest generation has lost its full snapshot.
    #[error("{0} is missing, and deltas that follow it are there: what they hold can't be restored")]
    Headless(Key),
    /// Nothing fits what is wanted.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// It is not the one that was taken.
    #[error(
        "{key} is not what was stored when the backup was taken: its hash is {found} and not {said}; it was damaged, or another \
         backup was put in its place"
    )]
    OtherManifest {
        /// The full's manifest.
        key: Key,
        /// The hash that it is to have.
        said: Hash,
        /// The hash that it has.
        found: Hash,
    },
    /// It is encrypted, and there is no identity that reads it.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// A data object is damaged or missing.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A delta's records are not what its manifest says.
    #[error("{key} is damaged: {fault}")]
    Delta {
        /// The delta's manifest.
        key: Key,
        /// What is wrong.
        fault: DeltaFault,
    },
    /// The database of a full snapshot ends elsewhere than its manifest says.
    #[error("{key} is damaged: it says that its last revision is {said}, and that of its database is {found}")]
    Full {
        /// The full's manifest.
        key: Key,
        /// What the manifest says.
        said: Revision,
        /// What the database says.
        found: u64,
    },
    /// The revision is before what the database of a full snapshot still has of its history.
    #[error("{key} is damaged: its database was compacted up to {compacted}, and so revision {revision} is not in it")]
    Compacted {
        /// The full's manifest.
        key: Key,
        /// What was wanted of it.
        revision: Revision,
        /// Up to where it was compacted.
        compacted: u64,
    },
    /// A later snapshot has another history than the one that was recorded before the revision.
    #[error(
        "{key} has another history than {recorded}, which has other events of revision {at}: since then the cluster was begun anew \
         from an earlier state; to have revision {revision} of the later history, name its generation"
    )]
    OtherHistory {
        /// The full's manifest.
        key: Key,
        /// The generation that was recorded before.
        recorded: GenerationKey,
        /// The last revision that is known of it.
        at: Revision,
        /// What was wanted.
        revision: Revision,
    },
    /// The database can't be read.
    #[error(transparent)]
    Bolt(#[from] BoltError),
    /// The database can't be extended.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// A file can't be written: the disk is full, or the folder is not ours.
    #[error("failed to write {}: {source}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
    /// There is something already.
    #[error("failed to restore to {}: it exists already; nothing is ever restored over something else", .0.display())]
    Exists(PathBuf),
    /// Another restore is at work there.
    #[error("failed to restore to {}: another restore is at work there", .0.display())]
    Busy(PathBuf),
    /// The database would not let etcd write: it raises an alarm at the first put above its quota.
    #[error(
        "the restored database takes {database} bytes{}, and etcd may have {quota}: it would refuse every write; make \
         spec.etcd.quota (--quota) larger",
        if *thinned { " with no more than the newest of each key" } else { "" }
    )]
    AboveQuota {
        /// Its size in bytes.
        database: u64,
        /// The quota in bytes.
        quota: u64,
        /// Its history is left out.
        thinned: bool,
    },
    /// There is no room to write it anew without its history.
    #[error(
        "{free} bytes are free, and {needed} are needed to write the database without some of its history, beside the one that \
         has all; make spec.storage.size larger"
    )]
    NoRoom {
        /// Bytes that it takes.
        needed: u64,
        /// Bytes that there are.
        free: u64,
    },
    /// etcdutl can't be run.
    #[error("failed to run {}: {source}", tool.display())]
    Run {
        /// Which.
        tool: PathBuf,
        /// How it failed.
        source: io::Error,
    },
    /// etcdutl refuses.
    #[error("etcdutl snapshot restore failed ({status}): {stderr}")]
    Etcdutl {
        /// How it ended.
        status: ExitStatus,
        /// What it said.
        stderr: String,
    },
    /// A thread ended unexpectedly.
    #[error("failed to write the database: {0}")]
    Thread(#[from] JoinError),
}

/// What becomes of a failure to write there.
fn unwritable(path: &Path) -> impl FnOnce(io::Error) -> RestoreError {
    |source| RestoreError::Write { path: path.to_owned(), source }
}

/// What is wrong with a delta's records.
#[derive(Debug, thiserror::Error)]
pub enum DeltaFault {
    /// They can't be read.
    #[error(transparent)]
    Record(#[from] RecordFault),
    /// A value is no message of etcd.
    #[error("the value of event {0} is none of etcd's")]
    Value(crate::bolt::mvcc::BucketKey),
    /// One does not follow the one before.
    #[error("event {found} does not follow revision {last}")]
    Order {
        /// The event.
        found: crate::bolt::mvcc::BucketKey,
        /// The revision before it.
        last: u64,
    },
    /// There are more or fewer than there should be.
    #[error("it has {found} events instead of {said}")]
    Count {
        /// How many there are.
        found: u64,
        /// What the manifest says.
        said: u64,
    },
    /// The last revision's events have another hash than the manifest says.
    #[error("the events of its last revision have another hash")]
    LastEvents,
    /// They end with another revision than the manifest says.
    #[error("its last revision is {found} instead of {said}")]
    LastRevision {
        /// The last there is.
        found: u64,
        /// What the manifest says.
        said: Revision,
    },
}

/// Which backup.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Whose.
    pub lineage: Lineage,
    /// Of which cluster; of any, if not said.
    pub cluster: Option<Cluster>,
    /// Of which generation; of the one that fits, if not said.
    pub generation: Option<GenerationName>,
    /// Up to where.
    pub target: Target,
    /// The hash that the manifest of its full snapshot has; any, if not said.
    pub manifest: Option<Hash>,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The full snapshot is being fetched.
    Fetching {
        /// Bytes that are there.
        done: u64,
        /// All bytes.
        total: u64,
    },
    /// What came after the revision is being left out of the full snapshot.
    Rewinding {
        /// The revision that was reached.
        reached: u64,
        /// The revision that is wanted.
        target: u64,
    },
    /// The deltas are being applied.
    Applying {
        /// The revision that was reached.
        reached: u64,
        /// The revision that is wanted.
        target: u64,
    },
    /// It is written anew without its history.
    Thinning {
        /// Entries that have been gone over; each is, several times.
        done: u64,
        /// How many there are to go over.
        total: u64,
    },
}

/// A database that was restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The revision.
    pub revision: Revision,
    /// Events that were applied on top of the full snapshot.
    pub events: u64,
    /// Events of the full snapshot that came after the revision, and were left out.
    pub later: u64,
    /// Leases that were added because events name them.
    pub leases: u64,
    /// Those among them whose TTL nobody had learned: they got [`UNKNOWN_TTL`].
    pub leases_of_unknown_ttl: u64,
    /// Alarms of the old cluster that were left out.
    pub alarms: u64,
    /// Events of the history that were left out, so that the database stays well below etcd's quota.
    pub left_out: u64,
    /// The size of the database file, in bytes.
    pub bytes: u64,
    /// How long fetching and applying the events took.
    pub applying: Duration,
}

/// Restores the database of a generation at a revision to `path`, which must not exist. After an error a part of it is left
/// there.
pub(crate) async fn database(
    store: &Store,
    choice: &Choice,
    path: &Path,
    report: &(dyn Fn(Progress) + Sync),
) -> Result<Restored, RestoreError> {
    let Choice { chain, revision, seam } = choice;
    let revision = *revision;
    demand_identity(store.keys(), &chain.key, chain.data_until(revision))?;
    fetch::full(store, chain, path, report).await?;
    let rewound = if choice.rewinds() {
        rewind::full(chain, (revision, seam.as_ref()), path, report).await?
    } else {
        Rewound::default()
    };
    let restored = apply::deltas(store, chain, (revision, rewound.named), path, report).await?;
    Ok(Restored { later: rewound.later, ..restored })
}

/// Restores a database to `path`, which must not exist.
pub async fn database_file(
    store: &Store,
    choice: &Choice,
    path: &Path,
    report: &(dyn Fn(Progress) + Sync),
) -> Result<Restored, RestoreError> {
    let scratch = Scratch::beside(path)?;
    let made = scratch.path().join("db");
    let restored = database(store, choice, &made, report).await?;
    scratch.publish(made).await?;
    Ok(restored)
}

/// What a member is made with.
#[derive(Debug, Clone)]
pub struct Making<'a> {
    /// etcdutl.
    pub tool: &'a Tool,
    /// Which member it becomes.
    pub membership: &'a Membership,
    /// etcd's limit for its database, in bytes, if it is known. What would come near it is restored without its history.
    pub quota: Option<u64>,
}

impl Making<'_> {
    /// The quota, if a database of so many bytes is to be without its history because of it. Nothing may be left out of one
    /// whose revisions go on where they were: etcd would not know that it is gone.
    fn too_near(&self, bytes: u64) -> Option<u64> {
        self.quota.filter(|quota| self.tool.bump.marks_compacted() && thin::is_much(bytes, *quota))
    }

    fn demand_below_quota(&self, database: u64, thinned: bool) -> Result<(), RestoreError> {
        match self.quota.filter(|quota| database > *quota) {
            Some(quota) => Err(RestoreError::AboveQuota { database, quota, thinned }),
            None => Ok(()),
        }
    }
}

/// Restores a member's data folder. `folder` must not exist, or be empty.
pub async fn data_folder(
    store: &Store,
    choice: &Choice,
    folder: &Path,
    making: &Making<'_>,
    report: &(dyn Fn(Progress) + Sync),
) -> Result<Restored, RestoreError> {
    let scratch = Scratch::beside(folder)?;
    let file = scratch.path().join("db");
    let mut restored = database(store, choice, &file, report).await?;
    let too_near = making.too_near(restored.bytes);
    match too_near {
        Some(quota) => restored.left_out = thin::thin(&file, quota, report).await?,
        None => making.demand_below_quota(restored.bytes, false)?,
    }
    // Of an earlier restore, that was killed, etcdutl may still be at work: it must not find its folder again.
    let nonce = Nonce::random();
    let made = scratch.path().join(nonce.as_str());
    let small = scratch.path().join(format!("{}.outline", nonce.as_str()));
    let (whole, outline) = (file.clone(), small.clone());
    spawn_blocking(move || outline::write(&whole, &outline)).await??;
    etcdutl::restore(making.tool, making.membership, (&small, restored.revision), &made).await?;
    let place = made.join(DATABASE);
    let bytes = spawn_blocking(move || outline::put_back(&place, &file)).await??;
    making.demand_below_quota(bytes, too_near.is_some())?;
    scratch.publish(made).await?;
    Ok(Restored { bytes, ..restored })
}
