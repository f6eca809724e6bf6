//! The channel that tells everything to stop, once. What stops, and in which order, is decided by who listens.

use tokio::sync::watch;

/// Resolves when the channel turns true, or nobody can turn it any more: then it is time as well.
pub async fn turned(mut channel: watch::Receiver<bool>) {
    let _ = channel.wait_for(|turned| *turned).await;
}
