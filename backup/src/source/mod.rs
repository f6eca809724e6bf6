//! The etcd member that backups are taken from: how it is reached, and what is asked of it. It only reads.

mod access;
mod auth;
mod choice;
mod snapshot;

pub use access::{Access, AccessError, Connection, Credentials, Tls};
pub use auth::AuthRevision;
pub use choice::{NoMember, choose};
pub use snapshot::{Piece, SnapshotError, SnapshotStream, TRAILER};

use std::time::Duration;

use etcd_client::Client;
use tokio::time::timeout;

use crate::format::Cluster;

/// The first etcd whose watch leaves out no event around a compaction: etcd #18089 and #19179, in CHANGELOG-3.5.
const FIRST_WITH_WHOLE_WATCHES: [u64; 3] = [3, 5, 16];

/// How long a member may take to let us in and to say who it is.
pub const ANSWER: Duration = Duration::from_secs(10);

/// What ends a refusal, if that is known: etcd says no more than that it refuses.
pub(crate) fn remedy(error: &etcd_client::Error) -> &'static str {
    match error {
        etcd_client::Error::GRpcStatus(status) if status.message().contains("permission denied") => {
            "; the user as whom a backup is taken needs the role root"
        }
        _ => "",
    }
}

/// Which member it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its cluster.
    pub cluster: Cluster,
    /// Its version, as `3.6.16`.
    pub version: String,
}

impl Access {
    /// Connects, and asks the member who it is. `None` if it takes connections and does not answer within [`ANSWER`].
    pub async fn meet<E>(&self) -> Result<Option<(Connection, Identity)>, E>
    where
        E: From<AccessError> + From<etcd_client::Error>,
    {
        let met = async {
            let mut connection = self.connect().await?;
            let identity = Identity::ask(&mut connection.client).await?;
            Ok((connection, identity))
        };
        timeout(ANSWER, Box::pin(met)).await.ok().transpose()
    }
}

impl Identity {
    /// Asks the member.
    async fn ask(client: &mut Client) -> Result<Self, etcd_client::Error> {
        let status = Box::pin(client.status()).await?;
        let cluster = status.header().map(etcd_client::ResponseHeader::cluster_id).unwrap_or_default();
        Ok(Self { cluster: Cluster::of(cluster), version: status.version().to_owned() })
    }

    /// Whether its watches are known to leave nothing out.
    pub fn has_whole_watches(&self) -> bool {
        // What a build adds to the patch, as in `3.6.0-rc.1`, follows a sign that is no digit.
        let mut parts = self.version.splitn(3, '.').map(|part| {
            let digits = part.find(|sign: char| !sign.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse::<u64>().ok()
        });
        let mut next = || parts.next().flatten();
        next()
            .zip(next())
            .zip(next())
            .is_some_and(|((major, minor), patch)| [major, minor, patch] >= FIRST_WITH_WHOLE_WATCHES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_are_whole_from_a_patch_of_3_5_on() {
        let whole =
            |version: &str| Identity { cluster: Cluster::of(1), version: version.to_owned() }.has_whole_watches();
        assert!(["3.5.16", "3.5.35", "3.6.0-rc.1", "3.10.0", "4.0.0+git"].map(whole).iter().all(|whole| *whole));
        assert!(!["3.5.15", "3.4.99", "2.9.99", "", "3.5", "3.x.16", "new"].map(whole).iter().any(|whole| *whole));
    }
}
