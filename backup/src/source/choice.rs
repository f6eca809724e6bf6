//! Which member a backup is taken from: one that shows that it has all that was acknowledged by now, and rather not the leader,
//! for which every write waits.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::timeout;

use super::access::{Access, AccessError};

/// How long a member may take to answer. One that takes longer is no good source either.
const ANSWER: Duration = Duration::from_secs(5);
/// How many entries of the log a member may be behind that is asked to catch up. More than this one has in flight only where it
/// lags.
const MOST_BEHIND: u64 = 1_000;

/// Why none can be read.
#[derive(Debug, thiserror::Error)]
#[error("failed to find a member to read: {}", .0.join("; "))]
pub struct NoMember(Vec<String>);

/// Why one is left out.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error(transparent)]
    Etcd(#[from] etcd_client::Error),
    #[error("no answer within {ANSWER:?}")]
    Late,
    #[error("it is a learner, which does not serve snapshots")]
    Learner,
    #[error("it has no leader")]
    NoLeader,
}

/// What a member says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Standing {
    /// The last entry of the log that it has applied.
    applied: u64,
    leads: bool,
}

/// Chooses one. With a single one there is nothing to choose, and it is not asked: without a quorum it is all that is left.
pub async fn choose(members: &[Access]) -> Result<&Access, NoMember> {
    if let [only] = members {
        return Ok(only);
    }
    let standings = join_all(members.iter().map(ask)).await;
    let (mut found, mut faults) = (Vec::new(), Vec::new());
    for (member, standing) in members.iter().zip(standings) {
        match standing {
            Ok(standing) => found.push((member, standing)),
            Err(fault) => faults.push(format!("{}: {fault}", member.endpoint)),
        }
    }
    for member in by_fitness(&found) {
        match catches_up(member).await {
            Ok(()) => return Ok(member),
            Err(fault) => faults.push(format!("{}: {fault}", member.endpoint)),
        }
    }
    Err(NoMember(faults))
}

/// A snapshot is of what this member has applied (`Snapshot` in server/etcdserver/api/v3rpc/maintenance.go), which may be less
/// than what others have acknowledged. A linearizable read is answered once it has all that was committed when it was asked.
async fn catches_up(member: &Access) -> Result<(), Fault> {
    let asked = async {
        let mut client = member.connect().await?.client;
        Ok(Box::pin(client.get("quorate", None)).await.map(drop)?)
    };
    timeout(ANSWER, Box::pin(asked)).await.map_err(|_| Fault::Late)?
}

async fn ask(member: &Access) -> Result<Standing, Fault> {
    let asked = async {
        let mut client = member.connect().await?.client;
        let status = Box::pin(client.status()).await?;
        let id = status.header().map(etcd_client::ResponseHeader::member_id).unwrap_or_default();
        match (status.is_learner(), status.leader()) {
            (true, _) => Err(Fault::Learner),
            (false, 0) => Err(Fault::NoLeader),
            (false, leader) => Ok(Standing { applied: status.raft_applied_index(), leads: leader == id }),
        }
    };
    timeout(ANSWER, Box::pin(asked)).await.map_err(|_| Fault::Late)?
}

/// Those that are not far behind: first who does not lead, then the leader.
fn by_fitness<'a>(found: &[(&'a Access, Standing)]) -> Vec<&'a Access> {
    let newest = found.iter().map(|(_, standing)| standing.applied).max().unwrap_or_default();
    let mut current: Vec<_> =
        found.iter().filter(|(_, standing)| standing.applied.saturating_add(MOST_BEHIND) >= newest).collect();
    current.sort_by_key(|(_, standing)| standing.leads);
    current.into_iter().map(|(member, _)| *member).collect()
}

#[cfg(test)]
mod tests {
    use super::super::access::Tls;
    use super::*;

    fn member(endpoint: &str) -> Access {
        Access { endpoint: endpoint.into(), tls: Tls::default(), user: None }
    }

    #[test]
    fn followers_that_are_not_far_behind_come_before_the_leader() {
        let [a, b, c] = ["a", "b", "c"].map(member);
        let chosen = |standings: [(u64, bool); 3]| {
            let standings = standings.map(|(applied, leads)| Standing { applied, leads });
            let found: Vec<_> = [&a, &b, &c].into_iter().zip(standings).collect();
            by_fitness(&found).into_iter().map(|member| member.endpoint.clone()).collect::<String>()
        };
        assert_eq!(chosen([(5000, true), (4990, false), (5000, false)]), "bca");
        assert_eq!(chosen([(5000, true), (3000, false), (5000, false)]), "ca");
        assert_eq!(chosen([(5000, true), (3000, false), (20, false)]), "a");
        assert!(by_fitness(&[]).is_empty());
    }

    #[tokio::test]
    async fn who_could_not_be_read_is_named() {
        let members = ["http://127.0.0.1:1", "no url"].map(member);
        let error = choose(&members).await.unwrap_err().to_string();
        assert!(error.contains("http://127.0.0.1:1: ") && error.contains("no url: "), "{error}");
        assert_eq!(choose(&members[1..]).await.unwrap().endpoint, "no url");
    }
}
