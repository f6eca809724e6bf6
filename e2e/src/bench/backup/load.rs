//! What is written: keys of 512 bytes of which half compresses, and events on them. It measures nothing.

use anyhow::Result;
use etcd_client::{Client, Txn, TxnOp};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};

/// Keys that are written in one transaction: etcd's usual limit is 128 operations.
const KEYS_AT_ONCE: u64 = 100;
/// Calls at a time.
const CALLS: usize = 64;
const VALUE: usize = 512;

/// A value of which half is random.
pub fn value() -> Vec<u8> {
    let mut value = vec![b'v'; VALUE];
    if let Some(half) = value.get_mut(..VALUE / 2) {
        fastrand::Rng::new().fill(half);
    }
    value
}

/// Writes that many keys.
pub async fn fill(client: &Client, keys: u64) -> Result<()> {
    let batches = (0..keys).step_by(usize::try_from(KEYS_AT_ONCE)?);
    let write = |first: u64| async move {
        let last = (first + KEYS_AT_ONCE).min(keys);
        let puts = (first..last).map(|key| TxnOp::put(format!("key-{key:08}"), value(), None)).collect::<Vec<_>>();
        client.clone().txn(Txn::new().and_then(puts)).await.map(drop)
    };
    Ok(stream::iter(batches.map(write)).buffer_unordered(CALLS).try_collect().await?)
}

/// Writes that many events, each a revision of its own, on keys that are there.
pub async fn events(client: &Client, events: u64) -> Result<()> {
    let put = |event: u64| async move { client.clone().put(format!("key-{event:08}"), value(), None).await.map(drop) };
    Ok(stream::iter((0..events).map(put)).buffer_unordered(CALLS).try_collect().await?)
}

/// The revision.
pub async fn revision(client: &Client) -> Result<i64> {
    let status = client.clone().get("revision", None).await?;
    Ok(status.header().map_or(0, etcd_client::ResponseHeader::revision))
}
