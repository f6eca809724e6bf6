//! Stores one batch: its records as a data object, then the manifest that makes them part of the history. It does not give
//! up while the store is away: what comes meanwhile waits in the backlog.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::format::{
    COMMIT_WITHIN, Chain, ChainError, CommitError, Data, DataError, DataWriter, Delta, Header, LeaseGrant, Nonce, Seal,
    commit,
};
use crate::store::{Store, StoreError};

use super::board::Board;
use super::recorder::Batch;
use super::status::Reason;

/// The pause after a first failure; each next one is twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Why a batch was not stored.
#[derive(Debug, thiserror::Error)]
pub enum FlushError {
    /// Another writer was first.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The store refuses the credentials, and would do so again.
    #[error(transparent)]
    Refused(StoreError),
    /// The recipients are others by now, and a generation has the same ones from its begin to its end.
    #[error("failed to go on with the generation: what is written now is encrypted to other recipients")]
    OtherRecipients,
    /// What was committed is refused by those who read it.
    #[error(transparent)]
    Chain(#[from] ChainError),
}

/// Stores it, however long that takes, and adds it to the chain.
pub(super) async fn flush(
    store: &Store,
    chain: &mut Chain,
    batch: Batch,
    leases: Vec<LeaseGrant>,
    board: &Board,
) -> Result<(), FlushError> {
    let Batch { from, to, events, records, last_events, samples } = batch;
    let mut pause = FIRST_PAUSE;
    let mut wait = async |reason: Reason, error: String| {
        board.fault(reason, &format!("revisions {from} to {to} are not stored yet: {error}"));
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    };
    let manifest = 'data: loop {
        let begun = Instant::now();
        let data = match write(store, chain, &records).await {
            Ok(Some(data)) => data,
            Ok(None) => return Err(FlushError::OtherRecipients),
            Err(DataError::Store(error @ StoreError::Refused { .. })) => return Err(FlushError::Refused(error)),
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
        // Data that no manifest refers to is garbage when it is old.
        while begun.elapsed() < COMMIT_WITHIN {
            match commit(store, &chain.key.delta(from), manifest.clone()).await {
                Ok(()) => break 'data manifest,
                Err(error @ CommitError::Lost(_)) => return Err(error.into()),
                Err(CommitError::Store { key: _, source }) if matches!(*source, StoreError::Refused { .. }) => {
                    return Err(FlushError::Refused(*source));
                }
                Err(error @ (CommitError::Store { .. } | CommitError::Inconsistent(_))) => {
                    wait(Reason::StoreFailed, error.to_string()).await;
                }
            }
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

/// `None` if the generation's data is sealed in another way than is asked for now.
async fn write(store: &Store, chain: &Chain, records: &[u8]) -> Result<Option<Data>, DataError> {
    let seal = Seal::of(store.keys())?;
    if !seal.is_of(chain.last_data()) {
        return Ok(None);
    }
    let mut writer = DataWriter::new(store, &chain.key, &seal)?;
    match writer.write(records).await {
        Ok(()) => writer.finish().await.map(Some),
        Err(error) => {
            writer.abort().await;
            Err(error)
        }
    }
}
