//! Tries until the backup is restored, and says at the launcher's port how far that is. It doesn't exit when it fails:
//! Kubernetes would start it again ever more slowly, and what was mended would wait for that.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use super::{Filled, Order, SeedError, TooLarge, fill};
use crate::launch::board::Board;
use crate::launch::inbox::Inbox;
use crate::launch::{Reason, Refusal, http};
use crate::restore::Progress;
use crate::store::{Store, StoreError};

/// The pause between two tries. What was mended, credentials for example, is in the container some time later anyway.
const PAUSE: Duration = Duration::from_secs(2);
/// The longest pause after tries that had begun to fetch: each of them may have read gigabytes, and each pause is twice the
/// one before.
const LONGEST_PAUSE: Duration = Duration::from_mins(2);
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
    let (mut pause, mut too_large) = (PAUSE, None);
    loop {
        let fetched = AtomicBool::new(false);
        match attempt(order, &open, &board, &mut too_large, &fetched).await {
            Ok(filled) => {
                listener.abort();
                return filled;
            }
            Err(error) => board.post(error.refusal()),
        }
        pause = next_pause(pause, fetched.into_inner());
        sleep(pause).await;
    }
}

/// The pause after a try, by the one before it.
fn next_pause(last: Duration, fetched: bool) -> Duration {
    if fetched { (last * 2).min(LONGEST_PAUSE) } else { PAUSE }
}

/// Says in `fetched` whether it has begun to fetch.
async fn attempt(
    order: &Order,
    open: &impl Fn() -> Result<Store, StoreError>,
    board: &Board,
    too_large: &mut Option<TooLarge>,
    fetched: &AtomicBool,
) -> Result<Filled, SeedError> {
    let store = open()?;
    let report = |progress| {
        fetched.store(true, Ordering::Relaxed);
        board.post(Refusal::new(Reason::Restoring, told(progress)));
    };
    fill(&store, order, too_large, &report).await
}

fn told(progress: Progress) -> String {
    match progress {
        Progress::Fetching { done, total } => format!("fetching the snapshot: {}0%", tenths(done, total)),
        Progress::Rewinding { reached: _, target } => format!("leaving out what came after revision {target}"),
        Progress::Applying { reached: _, target } => format!("applying events up to revision {target}"),
        Progress::Thinning { done, total } => format!("leaving the history out: {}0%", tenths(done, total)),
    }
}

fn tenths(done: u64, total: u64) -> u64 {
    done.saturating_mul(TENTHS).checked_div(total).unwrap_or(TENTHS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_after_gigabytes_were_fetched_is_not_fetched_all_the_time() {
        let mut pause = PAUSE;
        let pauses = std::iter::repeat_with(|| {
            pause = next_pause(pause, true);
            pause.as_secs()
        });
        let pauses: Vec<_> = pauses.take(9).collect();
        assert_eq!(pauses, [4, 8, 16, 32, 64, 120, 120, 120, 120]);
        assert_eq!(next_pause(LONGEST_PAUSE, false), PAUSE, "what costs nothing is asked for again soon");
    }
}
