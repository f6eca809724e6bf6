//! Looks whether the member leads, and how far it has come. A status costs the member nothing: it is told from memory,
//! without the quorum.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::board::Board;
use crate::source::{Access, Connection};

/// How often it looks: a hand-over takes no longer than that from the election on.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(2);
/// For how long a member that is silent is taken to lead, if it did. Longer than a pause of its process.
const BELIEVED_FOR: Duration = Duration::from_secs(3);

/// What a member says of itself.
struct Standing {
    leads: bool,
    revision: u64,
}

/// Tells whether the member leads, until nobody listens.
pub(super) async fn follow(source: Access, board: Board, tell: watch::Sender<bool>) {
    let mut connection = None;
    let mut heard = Instant::now();
    while !tell.is_closed() {
        if let Some(Standing { leads, revision }) =
            timeout(ANSWER, Box::pin(ask(&source, &mut connection))).await.ok().flatten()
        {
            heard = Instant::now();
            board.member_at(revision);
            tell.send_if_modified(|led| std::mem::replace(led, leads) != leads);
        } else {
            // Another one reads the certificates again.
            connection = None;
            if heard.elapsed() > BELIEVED_FOR {
                board.member_silent();
                tell.send_if_modified(|led| std::mem::replace(led, false));
            }
        }
        sleep(LOOK_EVERY).await;
    }
}

async fn ask(source: &Access, connection: &mut Option<Connection>) -> Option<Standing> {
    let Connection { client, .. } = match connection {
        Some(connection) => connection,
        None => connection.insert(source.connect().await.ok()?),
    };
    let status = Box::pin(client.status()).await.ok()?;
    let header = status.header()?;
    let revision = u64::try_from(header.revision()).ok()?;
    Some(Standing { leads: status.leader() != 0 && status.leader() == header.member_id(), revision })
}
