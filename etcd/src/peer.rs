//! What a member's peer port tells without a quorum: its own idea of the members, and its version. Neither is
//! linearizable: no change may be planned from it.

use std::net::SocketAddr;

use http::StatusCode;
use serde::Deserialize;

use crate::{
    ids::{ClusterId, MemberId},
    list::Member,
    plain_http::{self, HttpError},
};

/// Why a peer port told nothing.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// No whole answer.
    #[error("failed to ask the peer port")]
    Http(#[from] HttpError),
    /// An answer that is not 200.
    #[error("failed to ask the peer port at {addr}: GET {path} answered {status}")]
    Status {
        /// Whom.
        addr: SocketAddr,
        /// What was asked.
        path: &'static str,
        /// The status.
        status: StatusCode,
    },
    /// An answer that can't be read.
    #[error("failed to read the answer of the peer port at {addr} to GET {path}")]
    Form {
        /// Whose.
        addr: SocketAddr,
        /// What was asked.
        path: &'static str,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
}

/// The members as one of them knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hearsay {
    /// The cluster it belongs to, if it said so.
    pub cluster: Option<ClusterId>,
    /// The members, by ascending id.
    pub members: Vec<Member>,
}

/// What a member runs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Version {
    /// Its own version, as `3.6.16`.
    #[serde(rename = "etcdserver")]
    pub server: String,
    /// The version the cluster runs at, as `3.6.0`; `not_decided` before there is one.
    #[serde(rename = "etcdcluster")]
    pub cluster: String,
}

/// A member as the peer port writes it (`server/etcdserver/api/membership/member.go`).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    id: u64,
    #[serde(default)]
    name: String,
    #[serde(rename = "peerURLs")]
    peer_urls: Vec<String>,
    #[serde(default, rename = "clientURLs")]
    client_urls: Vec<String>,
    #[serde(default)]
    is_learner: bool,
}

/// The members as the one at this peer port knows them.
pub async fn members(addr: SocketAddr) -> Result<Hearsay, PeerError> {
    const PATH: &str = "/members";
    let answer = ask(addr, PATH).await?;
    let lines: Vec<Line> =
        serde_json::from_slice(&answer.body).map_err(|source| PeerError::Form { addr, path: PATH, source })?;
    let cluster = answer.headers.get("x-etcd-cluster-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let mut members: Vec<_> = lines.into_iter().map(Member::from).collect();
    members.sort_by_key(|member| member.id);
    Ok(Hearsay { cluster, members })
}

/// The version of the member at this peer port.
pub async fn version(addr: SocketAddr) -> Result<Version, PeerError> {
    const PATH: &str = "/version";
    let answer = ask(addr, PATH).await?;
    serde_json::from_slice(&answer.body).map_err(|source| PeerError::Form { addr, path: PATH, source })
}

async fn ask(addr: SocketAddr, path: &'static str) -> Result<plain_http::Answer, PeerError> {
    let answer = plain_http::get(addr, path).await?;
    match answer.status {
        StatusCode::OK => Ok(answer),
        status => Err(PeerError::Status { addr, path, status }),
    }
}

impl From<Line> for Member {
    fn from(line: Line) -> Self {
        let Line { id, name, peer_urls, client_urls, is_learner } = line;
        Self { id: MemberId(id), name, peer_urls, client_urls, learner: is_learner }
    }
}
