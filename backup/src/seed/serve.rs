//! Tries until the backup is restored, and says at the launcher's port how far that is. It doesn't exit when it fails:
//! Kubernetes would start it again ever more slowly, and what was mended would wait for that.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::sleep;

use super::{Filled, Order, SeedError, fill};
use crate::launch::board::Board;
use crate::launch::inbox::Inbox;
use crate::launch::{Reason, Refusal, http};
use crate::restore::Progress;
use crate::store::{Store, StoreError};

/// The pause between two tries. What was mended, credentials for example, is in the container some time later anyway.
const PAUSE: Duration = Duration::from_secs(2);
/// A restore is only told of in whole tenths: a status that changed more often would be written all the time.
const TENTHS: u64 = 10;

/// Where it is told how far it is.
#[derive(Debug)]
pub struct Desk {
    /// The address to listen on: the launcher's.
    pub listen: SocketAddr,
}

/// Tries until it is done. `open` opens the store anew for each try, with the credentials of that moment.
pub async fn until_restored(
    Desk { listen }: Desk,
    order: &Order,
    open: impl Fn() -> Result<Store, StoreError>,
) -> Filled {
    let looking = Refusal::new(Reason::Restoring, "looking for the backup");
    let board = Board::new(order.identity.volume.clone(), looking);
    let listener = tokio::spawn(http::serve(listen, http::Desk { board: board.clone(), inbox: Inbox::new(None) }));
    loop {
        match attempt(order, &open, &board).await {
            Ok(filled) => {
                listener.abort();
                return filled;
            }
            Err(error) => board.post(error.refusal()),
        }
        sleep(PAUSE).await;
    }
}

async fn attempt(
    order: &Order,
    open: &impl Fn() -> Result<Store, StoreError>,
    board: &Board,
) -> Result<Filled, SeedError> {
    let store = open()?;
    let report = |progress| board.post(Refusal::new(Reason::Restoring, told(progress)));
    fill(&store, order, &report).await
}

fn told(progress: Progress) -> String {
    match progress {
        Progress::Fetching { done, total } => format!("fetching the snapshot: {}0%", tenths(done, total)),
        Progress::Applying { reached: _, target } => format!("applying events up to revision {target}"),
    }
}

fn tenths(done: u64, total: u64) -> u64 {
    done.saturating_mul(TENTHS).checked_div(total).unwrap_or(TENTHS)
}
