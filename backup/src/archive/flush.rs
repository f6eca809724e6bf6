//! Stores one batch: its records as a data object, then the manifest that makes them part of the history. It does not give
//! up while the store is away or refuses: what comes meanwhile waits in the backlog.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::format::{
    Chain, ChainError, CommitError, Data, DataError, DataWriter, Delta, Header, LeaseGrant, Nonce, Seal, commit,
};
use crate::store::Store;

use super::board::Board;
use super::door::Door;
use super::recorder::Batch;
use super::status::Reason;

/// The pause after a first failure; each next one is twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A batch is a few MiB: a store that takes so long for it may be too slow for what comes.
const SLOW: Duration = Duration::from_secs(5);

/// Why a batch was not stored.
#[derive(Debug, thiserror::Error)]
pub enum FlushError {
    /// Another writer was first.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// Others have gone on with it to other recipients, and a generation has the same ones from its begin to its end.
    #[error("failed to go on with the generation: its last data is encrypted to other recipients than its first")]
    OtherRecipients,
    /// What was committed is refused by those who read it.
    #[error(transparent)]
    Chain(#[from] ChainError),
}

/// Stores it, however long that takes, and adds it to the chain, sealed as all of that is. Its data is stored anew if no
/// manifest refers to it `within` this time.
pub(super) async fn flush(
    door: &Door,
    (chain, seal): (&mut Chain, &Seal),
    batch: Batch,
    leases: Vec<LeaseGrant>,
    board: &Board,
    within: Duration,
) -> Result<(), FlushError> {
    let Batch { from, to, events, records, last_events, samples } = batch;
    let mut pause = FIRST_PAUSE;
    let mut wait = async |reason: Reason, error: String| {
        board.fault(reason, &format!("revisions {from} to {to} are not stored yet: {error}"));
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        door.failed(reason);
    };
    let manifest = 'data: loop {
        let begun = Instant::now();
        let data = match write(&door.store(), chain, seal, &records).await {
            Ok(Some(data)) => data,
            Ok(None) => return Err(FlushError::OtherRecipients),
            Err(error) => {
                wait(reason(&error), error.to_string()).await;
                continue;
            }
        };
        let header = Header::new(&chain.key, Nonce::random(), &data);
        let (leases, samples, previous) = (leases.clone(), samples.clone(), chain.head_hash());
        let delta = Delta { header, from, to, previous, events, last_events, leases, samples, data };
        let manifest = delta.write();
        // One that is committed and can't be read would make all before it unrestorable as well.
        Delta::read(&manifest, &chain.key, from)
            .map_err(|fault| ChainError::Manifest { key: chain.key.delta(from), fault })?;
        let data_took = begun.elapsed();
        // Data that no manifest refers to is garbage when it is old.
        while begun.elapsed() < within {
            let Err(error) = commit(&door.store(), &chain.key.delta(from), manifest.clone()).await else {
                let took = begun.elapsed();
                if took > SLOW {
                    tracing::warn!(
                        "revisions {from} to {to} were stored in {took:.1?}, of which their {} bytes took {data_took:.1?}",
                        records.len()
                    );
                }
                break 'data manifest;
            };
            let reason = match &error {
                CommitError::Lost(_) => return Err(error.into()),
                CommitError::Store { key: _, source } => Reason::of_store(source),
                CommitError::Inconsistent(_) => Reason::StoreFailed,
            };
            wait(reason, error.to_string()).await;
        }
    };
    chain.add(&manifest)?;
    Ok(())
}

fn reason(error: &DataError) -> Reason {
    match error {
        DataError::Store(error) => Reason::of_store(error),
        DataError::Keys(_) => Reason::KeysUnfit,
        DataError::Frame { .. } | DataError::Seal { .. } | DataError::Hash(_) | DataError::Thread(_) => {
            Reason::StoreFailed
        }
    }
}

/// `None` if the generation's last data is sealed in another way.
async fn write(store: &Store, chain: &Chain, seal: &Seal, records: &[u8]) -> Result<Option<Data>, DataError> {
    // Whom it names is for the next generation. While it can't be read, nothing is written.
    Seal::of(store.keys())?;
    if !seal.is_of(chain.last_data()) {
        return Ok(None);
    }
    let mut writer = DataWriter::new(store, &chain.key, seal)?;
    match writer.write(records).await {
        Ok(()) => writer.finish().await.map(Some),
        Err(error) => {
            writer.abort().await;
            Err(error)
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use futures::TryStreamExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::format::tests::{at, stored};
    use crate::format::{COMMIT_WITHIN, Hash, Revision, Sample};
    use crate::keys::KeyFiles;
    use crate::store::tests::faulty::{Fault, Faulty, sound};
    use crate::store::{CredentialsFolder, Settings};

    fn settings(address: &str) -> Settings {
        let address = address.parse().unwrap();
        Settings { address, options: BTreeMap::new(), credentials: None, ca: None, keys: KeyFiles::default() }
    }

    /// What comes after the full snapshot of a generation that is made for tests.
    fn batch() -> Batch {
        let revision = |number| Revision::new(number).unwrap();
        let (last_events, samples) = (Hash::of(b"x"), Vec::new());
        Batch { from: revision(11), to: revision(12), events: 2, records: vec![7; 40], last_events, samples }
    }

    /// A store that refuses whatever it is asked, as with a key that has been revoked.
    pub async fn refusing() -> Store {
        const ANSWER: &str = "<Error><Code>AuthenticationFailed</Code></Error>";
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                // All of it is small, so what comes first is all.
                assert!(stream.read(&mut [0; 8192]).await.unwrap() > 0);
                let length = ANSWER.len();
                let head = format!("HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
                stream.write_all((head + ANSWER).as_bytes()).await.unwrap();
            }
        });
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("account-key"), "c2VjcmV0").unwrap();
        let options = BTreeMap::from([("endpoint".to_owned(), endpoint)]);
        let credentials = Some(CredentialsFolder(folder.path().to_owned()));
        Store::open(&Settings { options, credentials, ..settings("azure://account/container/prefix") }).unwrap()
    }

    #[tokio::test]
    async fn what_a_store_refuses_is_held_and_stored_when_it_takes_it() {
        let folder = tempfile::tempdir().unwrap();
        let sound = settings(&format!("file://{}", folder.path().display()));
        let store = Store::open(&sound).unwrap();
        let mut chain = stored(&store, 100, &[]).await;
        let board = Board::new(store.address(), &chain.key.lineage);
        // Opened again it is the folder, as with new credentials.
        let door = Door::to(refusing().await, sound);
        flush(&door, (&mut chain, &Seal::Open), batch(), Vec::new(), &board, COMMIT_WITHIN).await.unwrap();
        assert_eq!(board.read().fault.unwrap().reason, Reason::StoreRefused);
        assert_eq!(Chain::read(&store, &chain.key).await.unwrap().head(), batch().to);
    }

    #[tokio::test]
    async fn a_manifest_that_nobody_would_read_is_not_committed() {
        let store = sound();
        let mut chain = stored(&store, 100, &[]).await;
        let board = Board::new(store.address(), &chain.key.lineage);
        let door = Door::to(store.clone(), settings("file:///nowhere"));
        let sample = Sample { at: at(200), revision: batch().to };
        // As many make some 20 MiB.
        let batch = Batch { samples: vec![sample; 400_000], ..batch() };
        let flushed = flush(&door, (&mut chain, &Seal::Open), batch, Vec::new(), &board, COMMIT_WITHIN).await;
        assert!(matches!(flushed, Err(FlushError::Chain(ChainError::Manifest { .. }))), "{flushed:?}");
        assert_eq!(Chain::read(&store, &chain.key).await.unwrap(), chain);
    }

    #[tokio::test(start_paused = true)]
    async fn data_that_no_manifest_refers_to_in_time_is_stored_anew() {
        // Two commits of five tries each fail, and before the second is given up 6 s are over.
        let late = Duration::from_secs(6);
        for (within, stored_data) in [(COMMIT_WITHIN, 1), (late, 2)] {
            // The first two puts are of the full snapshot's manifest and of the data.
            let faults = [&[Fault::None; 2][..], &[Fault::Before; 10]].concat();
            let store = Faulty::puts(&faults).store();
            let mut chain = stored(&store, 100, &[]).await;
            let board = Board::new(store.address(), &chain.key.lineage);
            let door = Door::to(store.clone(), settings("file:///nowhere"));
            flush(&door, (&mut chain, &Seal::Open), batch(), Vec::new(), &board, within).await.unwrap();
            assert_eq!(Chain::read(&store, &chain.key).await.unwrap(), chain);
            assert_eq!(chain.head(), batch().to);
            let folder = chain.key.data_folder();
            let found: Vec<_> = store.list(Some(&folder)).try_collect().await.unwrap();
            assert_eq!(found.len(), stored_data, "within {within:?}");
            // What is referred to is what was stored last.
            let referred = chain.key.data(&chain.last_data().name);
            assert!(found.iter().any(|listed| listed.key == referred), "{found:?}");
        }
    }
}
