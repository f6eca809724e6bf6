//! Takes a full snapshot: from etcd through compression into the store, in bounded memory whatever the database's size. It
//! is a backup from the moment on that its manifest is there, and nothing before.

mod report;
mod serve;
mod stored_pages;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::bolt::{BoltError, Database, Tail, auth_revision, events_of_last};
use crate::format::{
    COMMIT_WITHIN, ChainError, CommitError, Data, DataError, DataObject, DataWriter, EventHash, Extent, Full,
    GenerationKey, GenerationName, Hash, Header, Lineage, Nonce, Record, RecordFault, Revision, Seal, commit,
    generations, write_record,
};
use crate::keys::{Identities, KeysError};
use crate::source::{
    ANSWER, Access, AccessError, Connection, Identity, NoMember, Piece, SnapshotError, SnapshotStream, choose,
};
use crate::store::{Store, StoreError};

pub use report::{Complete, FINAL, Failure, Reason, Report};
pub use serve::{PATH, PORT, serve};
use stored_pages::StoredPages;

/// Why no snapshot was taken.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// None of several members can be read.
    #[error(transparent)]
    Member(#[from] NoMember),
    /// etcd can't be reached.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// etcd does not say who it is.
    #[error("failed to ask etcd for its status: {0}")]
    Status(#[from] etcd_client::Error),
    /// etcd takes connections and does not answer.
    #[error("failed to ask etcd at {0} for its status: no answer within {ANSWER:?}")]
    Silent(String),
    /// The snapshot did not arrive whole.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The store can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// To whom it is to be encrypted can't be read.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The data can't be written.
    #[error(transparent)]
    Data(#[from] DataError),
    /// What was written is no database, although etcd's hash of it is right.
    #[error("failed to read the snapshot back from the store: {0}")]
    Database(#[from] BoltError),
    /// An event is larger than the format allows.
    #[error("failed to read the snapshot's last events: {0}")]
    Record(#[from] RecordFault),
    /// A revision that etcd can't have.
    #[error("failed to read the snapshot's revision: {0} is none")]
    Revision(u64),
    /// The manifest can't be written.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// It took so long that its data may have been taken for garbage meanwhile.
    #[error(
        "failed to commit the snapshot: it took {} hours, and data without a manifest is garbage after a day. Look for what \
         makes the store so slow, or what kept this from running",
        .0.as_secs() / 3600
    )]
    TooLate(Duration),
    /// The thread that read it back ended unexpectedly.
    #[error("failed to read the snapshot back from the store: {0}")]
    Thread(#[from] tokio::task::JoinError),
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Bytes of the database that were read.
    pub read: u64,
    /// The size of the database in bytes, once known.
    pub total: Option<u64>,
    /// Compressed bytes that were handed to the store.
    pub stored: u64,
}

/// A snapshot that is in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The generation that it began.
    pub generation: GenerationKey,
    /// Its manifest.
    pub full: Full,
    /// The hash of the manifest as it is stored.
    pub hash: Hash,
    /// How its data is sealed, apart from whoever took it.
    pub seal: Seal,
    /// The member that was read: its client URL.
    pub endpoint: String,
    /// How long it took.
    pub took: Duration,
}

/// How many of the newest generations are held against our clock: the one that is recorded into is among them, unless as
/// many snapshots were taken beside it since it began.
const RECENT: usize = 8;
/// By how much a generation's name is later than the one before: names tell seconds.
const NAME_STEP: SignedDuration = SignedDuration::from_secs(1);
/// By how much its first moment is later than the last one before: manifests tell milliseconds.
const MOMENT_STEP: SignedDuration = SignedDuration::from_millis(1);

/// Takes one of the member that suits best. Each call begins a generation of its own.
pub async fn take(
    store: &Store,
    members: &[Access],
    lineage: &Lineage,
    report: impl Fn(Progress),
) -> Result<Taken, TakeError> {
    let begun = Instant::now();
    // Who writes knows public keys only, and has to read what it has stored once: with a key of its own, gone at the end.
    let own = Identities::generate();
    let seal = Seal::of(store.keys())?;
    store.prepare().await?;
    let source = Box::pin(choose(members)).await?;
    let met = source.meet::<TakeError>().await?.ok_or_else(|| TakeError::Silent(source.endpoint.clone()))?;
    let (Connection { mut client, .. }, Identity { cluster, version }) = met;
    let not_before = after_all(store, lineage).await?;
    let stream = SnapshotStream::open(&mut client).await?;
    // The answer begins with its first message, for which etcd has begun to read its database by then (`Snapshot` in
    // server/etcdserver/api/v3rpc/maintenance.go): what was written after this moment is not in it.
    let taken = Timestamp::now().max(not_before);
    let generation = GenerationKey { lineage: lineage.clone(), cluster, name: GenerationName::new(taken) };
    let writer = DataWriter::new(store, &generation, &seal.clone().readable_by(&own))?;
    let (data, database_bytes) = Box::pin(copy(stream, writer, report)).await?;
    let object = DataObject::of_writer(store, &generation, &data, own);
    let looked = look_into(object, database_bytes, seal.event_hash()).await;
    let said = in_time(looked, begun, (store, &generation, &data)).await?;
    let header = Header::new(&generation, Nonce::random(), &data);
    let Said { revision, compact_revision, last_events, auth_revision } = said;
    let full = Full {
        header,
        etcd_version: version,
        revision,
        compact_revision,
        last_events,
        auth_revision,
        taken,
        database_bytes,
        data,
    };
    let manifest = full.write();
    let hash = Hash::of(&manifest);
    // If this fails, whether it is there is not known, so the data stays; without a manifest it is garbage to be pruned.
    commit(store, &generation.full(), manifest).await?;
    Ok(Taken { generation, full, hash, seal, endpoint: source.endpoint.clone(), took: begun.elapsed() })
}

/// Now; or, if the newest generations speak of later moments, just after those. Of two generations the newer one is told by
/// such moments and by the time in its name, and the clock of whoever took the last one may have been ahead of ours.
async fn after_all(store: &Store, lineage: &Lineage) -> Result<Timestamp, StoreError> {
    let now = Timestamp::now();
    let mut latest = now;
    for key in generations(store, lineage).await?.iter().rev().take(RECENT) {
        let named = key.name.moment();
        if named > now {
            latest = latest.max(named.saturating_add(NAME_STEP).unwrap_or(named));
        }
        match Extent::read(store, key).await {
            Ok(extent) if extent.last_moment >= now => {
                latest = latest.max(extent.last_moment.saturating_add(MOMENT_STEP).unwrap_or(extent.last_moment));
            }
            Err(ChainError::Store(error)) if !matches!(error, StoreError::Refused { .. }) => return Err(error),
            // What is wrong with one, or that it alone is refused, is for others to tell; its name counts all the same.
            Ok(_)
            | Err(
                ChainError::Store(_)
                | ChainError::NoFull(_)
                | ChainError::Manifest { .. }
                | ChainError::Broken(_)
                | ChainError::Gap { .. },
            ) => {}
        }
    }
    Ok(latest)
}

/// Copies the stream into the store. On any error nothing of it is left there.
async fn copy(
    mut stream: SnapshotStream,
    mut writer: DataWriter,
    report: impl Fn(Progress),
) -> Result<(Data, u64), TakeError> {
    let mut copied = async || {
        loop {
            match stream.next().await? {
                Piece::Database(bytes) => writer.write(&bytes).await?,
                Piece::Proved(hash) => {
                    let database_bytes = writer.plain_bytes();
                    writer.write(&hash).await?;
                    return Ok(database_bytes);
                }
            }
            report(Progress { read: writer.plain_bytes(), total: stream.total(), stored: writer.stored_bytes() });
        }
    };
    match copied().await {
        Ok(database_bytes) => Ok((writer.finish().await?, database_bytes)),
        Err(error) => {
            writer.abort().await;
            Err(error)
        }
    }
}

/// What the manifest has to say of a database.
struct Said {
    revision: Revision,
    compact_revision: Revision,
    last_events: Hash,
    auth_revision: u64,
}

/// Reads back from the store what the manifest has to say: the last revision is nowhere but in the database's tree, whose
/// pages come in no order. That it can be read there is worth knowing, too.
async fn look_into(object: DataObject, database_bytes: u64, event_hash: EventHash) -> Result<Said, TakeError> {
    let pages = StoredPages::new(object, database_bytes);
    let (tail, last_events, auth_revision) = tokio::task::spawn_blocking(move || {
        let database = Database::open(pages)?;
        let tail = Tail::read(&database)?;
        let last_events = last_events(&database, tail.revision, event_hash)?;
        Ok::<_, TakeError>((tail, last_events, auth_revision(&database)?))
    })
    .await??;
    let revision = |number| Revision::new(number).ok_or(TakeError::Revision(number));
    let (last, compacted) = (revision(tail.revision)?, revision(tail.compact_revision)?);
    Ok(Said { revision: last, compact_revision: compacted, last_events, auth_revision })
}

/// What data says, if there is still time to commit it. Else nothing of it is left.
async fn in_time(
    looked: Result<Said, TakeError>,
    begun: Instant,
    (store, generation, data): (&Store, &GenerationKey, &Data),
) -> Result<Said, TakeError> {
    let said = looked.and_then(|said| match begun.elapsed() {
        took if took >= COMMIT_WITHIN => Err(TakeError::TooLate(took)),
        _ => Ok(said),
    });
    if said.is_err() {
        discard(store, generation, data).await;
    }
    said
}

/// The hash of a revision's records, as manifests hold it: what a watch shows of it.
fn last_events<P: crate::bolt::Pages>(
    database: &Database<P>,
    revision: u64,
    event_hash: EventHash,
) -> Result<Hash, TakeError> {
    let mut hasher = event_hash.hasher();
    let mut record = Vec::new();
    events_of_last(database, revision, |key, value| {
        // No event, and in no watch: `etcdutl snapshot restore` leaves an entry without a key at the revision to which it bumps
        // (`unsafeBumpBucketsRevision` in etcdutl/snapshot/v3_snapshot.go).
        if value.is_empty() {
            return Ok(());
        }
        record.clear();
        write_record(&mut record, Record { key, value })?;
        hasher.update(&record);
        Ok::<_, TakeError>(())
    })?;
    Ok(hasher.finish())
}

async fn discard(store: &Store, generation: &GenerationKey, data: &Data) {
    let key = generation.data(&data.name);
    if let Err(error) = store.delete(&key).await {
        tracing::warn!("{key} stays behind and is garbage: {error}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use tokio::time::{advance, pause};

    use super::*;
    use crate::archive::scene::Silent;
    use crate::format::tests::{at, stored};
    use crate::source::Tls;
    use crate::store::tests::faulty::{Faulty, sound};

    #[tokio::test]
    async fn a_generation_is_later_than_one_of_a_clock_that_was_ahead() {
        let (store, ahead) = (sound(), 40_000_000_000);
        store.prepare().await.unwrap();
        let before = Timestamp::now();
        let past = stored(&store, 100, &[(20, 110)]).await.key;
        let now = after_all(&store, &past.lineage).await.unwrap();
        assert!(now >= before && now <= Timestamp::now(), "what is past moves nothing: {now}");
        // Its clock was ahead for its full, and for one more second while it recorded.
        stored(&store, ahead, &[(20, ahead + 1)]).await;
        let next = after_all(&store, &past.lineage).await.unwrap();
        assert!(next > at(ahead + 1) && next < at(ahead + 3), "{next}");
    }

    #[tokio::test]
    async fn of_a_generation_that_the_store_refuses_the_name_alone_counts() {
        let objects = Faulty::puts(&[]);
        let refused = Arc::clone(&objects.refused);
        let (store, ahead) = (objects.store(), 40_000_000_000);
        let past = stored(&store, ahead, &[(20, ahead + 100)]).await.key;
        *refused.lock().unwrap() = Some(past.full().to_string());
        assert_eq!(after_all(&store, &past.lineage).await.unwrap(), at(ahead + 1));
    }

    #[tokio::test]
    async fn a_member_that_takes_connections_and_never_answers_is_given_up() {
        let silent = Silent::start().await;
        let endpoint = silent.url();
        let member = [Access { endpoint: endpoint.clone(), tls: Tls::default(), user: None }];
        let (store, lineage) = (sound(), "db".parse().unwrap());
        let taking = take(&store, &member, &lineage, |_| ());
        let asked = async {
            let connection = silent.asked().await;
            // What the kernels have to do takes its time; what is waited for passes at once.
            pause();
            connection
        };
        let (taken, _connection) = tokio::join!(Box::pin(taking), asked);
        let error = taken.unwrap_err();
        assert!(matches!(&error, TakeError::Silent(silent) if *silent == endpoint), "{error}");
        assert_eq!(Reason::of(&error), Reason::NoHealthyMember);
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_too_late_to_be_committed_is_no_snapshot_and_leaves_nothing() {
        let store = sound();
        let chain = stored(&store, 100, &[]).await;
        let (key, data, full) = (&chain.key, &chain.full.data, &chain.full);
        let object = key.data(&data.name);
        store.create(&object, Bytes::from_static(b"x")).await.unwrap();
        let (last_events, auth_revision) = (full.last_events, full.auth_revision);
        let (revision, compact_revision) = (full.revision, full.compact_revision);
        let looked = || Ok(Said { revision, compact_revision, last_events, auth_revision });
        let (begun, second) = (Instant::now(), Duration::from_secs(1));
        advance(COMMIT_WITHIN.saturating_sub(second)).await;
        assert!(in_time(looked(), begun, (&store, key, data)).await.is_ok());
        assert_eq!(store.size(&object).await.unwrap(), Some(1));
        advance(second).await;
        let late = in_time(looked(), begun, (&store, key, data)).await.err().unwrap();
        assert!(matches!(late, TakeError::TooLate(took) if took == COMMIT_WITHIN), "{late}");
        assert_eq!(store.size(&object).await.unwrap(), None);
    }
}
