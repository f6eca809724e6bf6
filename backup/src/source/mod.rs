//! The etcd member that backups are taken from: how it is reached, and what is asked of it. It only reads.

mod access;
mod auth;
mod choice;
mod snapshot;

pub use access::{Access, AccessError, Connection, Credentials, Tls};
pub use auth::AuthRevision;
pub use choice::{NoMember, choose};
pub use snapshot::{Piece, SnapshotError, SnapshotStream, TRAILER};

use etcd_client::Client;

use crate::format::Cluster;

/// Which member it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its cluster.
    pub cluster: Cluster,
    /// Its version, as `3.6.16`.
    pub version: String,
}

impl Identity {
    /// Asks the member.
    pub async fn ask(client: &mut Client) -> Result<Self, etcd_client::Error> {
        let status = Box::pin(client.status()).await?;
        let cluster = status.header().map(etcd_client::ResponseHeader::cluster_id).unwrap_or_default();
        Ok(Self { cluster: Cluster::of(cluster), version: status.version().to_owned() })
    }
}
