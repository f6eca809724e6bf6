//! One look at a pod's metrics port: is it the launcher, etcd, or nothing that can be understood? It reports and does
//! not conclude: silence is not death.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use http::{Method, StatusCode};
use hyper::body::Bytes;

use crate::{
    gauges::{Gauges, GaugesReader},
    ids::MemberId,
    plain_http::{self, Connection, HttpError, within},
};

/// The most that is read of `/metrics`, in bytes. etcd's has 100 to 200 KiB.
const METRICS_LIMIT: usize = 4 * 1024 * 1024;

/// What answers on a pod's metrics port.
#[derive(Debug)]
pub enum Sight {
    /// Nothing that could be understood, in time: neither dead nor alive.
    Silent(Silence),
    /// The launcher, which has not started etcd, with its report as it came (`GET /quorate`).
    Launcher(Bytes),
    /// etcd.
    Etcd(Vitals),
}

/// Why nothing was seen.
#[derive(Debug, thiserror::Error)]
pub enum Silence {
    /// No whole answer.
    #[error("no answer on the metrics port")]
    Unanswered(#[from] HttpError),
    /// An answer that neither the launcher nor etcd gives.
    #[error("GET {path} on the metrics port answered {status}")]
    Odd {
        /// To which request.
        path: &'static str,
        /// The status.
        status: StatusCode,
    },
    /// Metrics that are not etcd's, or not whole yet.
    #[error("the metrics lack {missing}")]
    Incomplete {
        /// The first gauge that is missing.
        missing: &'static str,
    },
}

/// What etcd says of itself on its metrics port, quorum or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vitals {
    /// Its id, once it knows it.
    pub member: Option<MemberId>,
    /// When its process was started, since 1970: two looks with one value saw one life.
    pub process_start: Duration,
    /// It sees a leader.
    pub has_leader: bool,
    /// What it counts itself as.
    pub role: Role,
    /// The raft index it knows as committed.
    pub committed: u64,
    /// The raft index it has applied.
    pub applied: u64,
    /// Its version, as `3.6.16`.
    pub version: Option<String>,
    /// The version the cluster runs at, as `3.6`.
    pub cluster_version: Option<String>,
    /// It is being sent a snapshot of the database: until that is whole, it applies nothing.
    pub receives_snapshot: bool,
    /// The other members that it counts as connected, and those it has sent something in this life.
    pub links: BTreeMap<MemberId, Link>,
    /// `/livez` answers 200: it can read its own store. False also where the answer takes too long, as while it
    /// defragments.
    pub live: bool,
}

/// What a member says of its link to another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// It counts the other as connected. False for good, on all versions, where the other came back under a new address
    /// while a message to the old one was still waiting for an answer: its failure is counted after the new connection
    /// (`pipeline.handle` in `server/etcdserver/api/rafthttp/pipeline.go`).
    pub active: bool,
    /// How many bytes it has sent to the other. This grows at least every 1.7 s, with nothing to say too
    /// (`ConnReadTimeout / 3`, `streamWriter.run` in `rafthttp/stream.go`), as long as a connection is there.
    pub sent_bytes: u64,
}

/// What a member counts itself as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It leads.
    Leader,
    /// It votes, or will once it has found out.
    Follower,
    /// It listens.
    Learner,
}

/// Who listens on a metrics port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// An etcd.
    Etcd,
    /// A launcher.
    Launcher,
    /// Nobody who answers, or somebody else.
    Nobody,
}

/// The launcher's report.
const REPORT: &str = "/quorate";

/// Asks who listens on the metrics port at `addr`, by what only a launcher has: its metrics take an etcd some 7 ms of the
/// processor, this next to nothing. The answer counts as none after [`crate::plain_http::DEADLINE`].
pub async fn who_listens(addr: SocketAddr) -> Listener {
    match plain_http::get(addr, REPORT).await.map(|answer| answer.status) {
        Ok(StatusCode::OK) => Listener::Launcher,
        Ok(StatusCode::NOT_FOUND) => Listener::Etcd,
        Ok(_) | Err(_) => Listener::Nobody,
    }
}

/// Asks a member at `addr` whether it is ready, as the kubelet does. The answer takes as long as a linearizable read, and
/// counts as no after [`crate::plain_http::DEADLINE`].
pub async fn is_ready(addr: SocketAddr) -> bool {
    let answer = within(addr, async {
        let mut connection = Connection::open(addr).await?;
        connection.ask(Method::GET, "/readyz", Bytes::new()).await
    });
    answer.await.is_ok_and(|answer| answer.status == StatusCode::OK)
}

/// Looks at the metrics port at `addr`, over one connection, within two deadlines of [`crate::plain_http::DEADLINE`].
pub async fn look(addr: SocketAddr) -> Sight {
    let first = within(addr, async {
        let mut connection = Connection::open(addr).await?;
        let first = first(addr, &mut connection).await?;
        Ok((connection, first))
    });
    let (mut connection, gauges) = match first.await {
        Ok((connection, First::Metrics(gauges))) => (connection, gauges),
        Ok((_, First::Report(report))) => return Sight::Launcher(report),
        Ok((_, First::Odd { path, status })) => return Sight::Silent(Silence::Odd { path, status }),
        Err(error) => return Sight::Silent(error.into()),
    };
    let live = within(addr, connection.ask(Method::GET, "/livez", Bytes::new())).await;
    let live = live.is_ok_and(|answer| answer.status == StatusCode::OK);
    match Vitals::of(gauges, live) {
        Ok(vitals) => Sight::Etcd(vitals),
        Err(missing) => Sight::Silent(Silence::Incomplete { missing }),
    }
}

/// What the first request brings.
enum First {
    Metrics(Gauges),
    Report(Bytes),
    Odd { path: &'static str, status: StatusCode },
}

/// Asks for the metrics, and for the launcher's report where there are none. The launcher closes each connection after
/// its answer, so that none is left when it becomes etcd: the report takes another one.
async fn first(addr: SocketAddr, connection: &mut Connection) -> Result<First, HttpError> {
    const METRICS: &str = "/metrics";
    let answer = connection.send(Method::GET, METRICS, Bytes::new()).await?;
    let status = answer.status();
    let mut reader = GaugesReader::default();
    connection.read(answer.into_body(), METRICS_LIMIT, |bytes| reader.feed(bytes)).await?;
    match status {
        StatusCode::OK => Ok(First::Metrics(reader.finish())),
        StatusCode::NOT_FOUND => {
            let answer = Connection::open(addr).await?.ask(Method::GET, REPORT, Bytes::new()).await?;
            Ok(match answer.status {
                StatusCode::OK => First::Report(answer.body),
                status => First::Odd { path: REPORT, status },
            })
        }
        status => Ok(First::Odd { path: METRICS, status }),
    }
}

impl Vitals {
    /// Takes them from the gauges; on failure, says which is missing.
    fn of(gauges: Gauges, live: bool) -> Result<Self, &'static str> {
        let Gauges {
            has_leader,
            is_leader,
            is_learner,
            server_id,
            committed,
            applied,
            process_start,
            server_version,
            cluster_version,
            receives_snapshot,
            active_peers,
            sent_bytes,
        } = gauges;
        let mut links: BTreeMap<_, _> =
            sent_bytes.into_iter().map(|(peer, sent_bytes)| (peer, Link { active: false, sent_bytes })).collect();
        for peer in active_peers {
            links.entry(peer).or_default().active = true;
        }
        let role = match (is_leader.ok_or("etcd_server_is_leader")?, is_learner.ok_or("etcd_server_is_learner")?) {
            (true, _) => Role::Leader,
            (false, true) => Role::Learner,
            (false, false) => Role::Follower,
        };
        Ok(Self {
            member: server_id.and_then(|id| id.parse().ok()),
            process_start: process_start
                .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
                .ok_or("process_start_time_seconds")?,
            has_leader: has_leader.ok_or("etcd_server_has_leader")?,
            role,
            committed: committed.ok_or("etcd_server_proposals_committed_total")?,
            applied: applied.ok_or("etcd_server_proposals_applied_total")?,
            version: server_version,
            cluster_version,
            receives_snapshot,
            links,
            live,
        })
    }
}
