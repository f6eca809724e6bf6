//! Asks the members what only their client ports tell: whether a downgrade is enabled, whether an alarm is raised, the
//! version of each database. At rest only the leader is asked, which speaks for all; the rest is nobody's question.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use quorate_crds::EtcdCluster;
use quorate_etcd::{Access, Pool, Status};
use quorate_statemachine::{Alarm, Minor, Overall, Serial, Sight};
use tokio::time::timeout;

use super::members::Address;
use super::pods::PodFacts;
use super::said::Said;
use super::wish;

/// How long a member's status is waited for: it is told from memory, without the quorum.
const PATIENCE: Duration = Duration::from_millis(500);
/// How an alarm shows among the troubles that a status holds: the text form of its message, as
/// `memberID:1 alarm:NOSPACE` (`server/etcdserver/api/v3rpc/maintenance.go`, Status).
const ALARM: &str = "alarm:";

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// Who leads.
    Leader,
    /// Whoever serves.
    All,
}

/// Everybody while versions differ: of what pods are told to run, of what they run, or of the cluster's own from what is wished.
pub fn whom(cluster: &EtcdCluster, pods: &BTreeMap<Serial, PodFacts>, said: &Said) -> Whom {
    let Some(wished) = wish::release(&cluster.spec) else { return Whom::Leader };
    let told = pods.values().filter(|pod| pod.ticket.is_some()).any(|pod| pod.release.as_ref() != Some(&wished));
    let runs = said.seen.values().any(|seen| match &seen.sight {
        Sight::Etcd(alive) => {
            alive.version != Some(wished.version)
                || alive.cluster_version.is_some_and(|minor| minor != wished.version.minor)
        }
        Sight::Unknown | Sight::Waiting | Sight::Restoring(_) | Sight::Refused(_) => false,
    });
    if told || runs { Whom::All } else { Whom::Leader }
}

/// Asks the leader, or every member that serves, and notes what they said. What the leader says counts for the whole.
pub async fn ask(pool: &Pool, access: &Access, addresses: &BTreeMap<Serial, Address>, whom: Whom, said: &mut Said) {
    let leader = said.leader().map(|(serial, _)| serial);
    let due = |serial: &Serial| match whom {
        Whom::Leader => Some(*serial) == leader,
        Whom::All => true,
    };
    let serving = said.seen.iter().filter(|(_, seen)| match &seen.sight {
        Sight::Etcd(alive) => alive.has_leader,
        Sight::Unknown | Sight::Waiting | Sight::Restoring(_) | Sight::Refused(_) => false,
    });
    let asked = serving.map(|(serial, _)| serial).filter(|serial| due(serial));
    let asked = asked.filter_map(|serial| Some((*serial, addresses.get(serial)?)));
    let answers = asked.map(async |(serial, address)| {
        let member = pool.member(access, &address.endpoint()).ok()?;
        let status = timeout(PATIENCE, member.status()).await.ok()?;
        let status = status.inspect_err(|error| tracing::trace!(member = %serial, %error, "no status")).ok()?;
        Some((serial, status))
    });
    let answers: BTreeMap<Serial, Status> = join_all(answers).await.into_iter().flatten().collect();
    if let Some(status) = leader.and_then(|leader| answers.get(&leader)) {
        said.overall = of(status);
    }
    for (serial, status) in &answers {
        if let Some(Sight::Etcd(alive)) = said.seen.get_mut(serial).map(|seen| &mut seen.sight) {
            alive.storage = Minor::parse(&status.storage_version);
        }
    }
}

fn of(status: &Status) -> Overall {
    Overall::Known {
        downgrade: status.downgrade.as_deref().and_then(Minor::parse),
        alarm: status.errors.iter().filter_map(|error| alarm(error)).max(),
    }
}

/// One that is not known is taken for the graver one.
fn alarm(error: &str) -> Option<Alarm> {
    let (_, name) = error.split_once(ALARM)?;
    Some(if name.trim() == "NOSPACE" { Alarm::NoSpace } else { Alarm::Corrupt })
}

#[cfg(test)]
mod tests {
    use super::super::pods::TicketFacts;
    use super::*;
    use crate::cluster::report::fixture;

    #[test]
    fn all_are_asked_only_while_versions_differ() {
        let due = |change: fn(&mut crate::cluster::observe::Observed)| {
            let mut observed = fixture::healthy();
            change(&mut observed);
            whom(&observed.cluster, &observed.pods, &observed.said) == Whom::All
        };
        assert!(!due(|_| ()));
        assert!(due(|observed| {
            let pod = observed.pods.get_mut(&Serial(1)).unwrap();
            let (begin, volume) = (crate::cluster::render::Begin::Resume, pod.volume.clone());
            pod.ticket = Some(TicketFacts { begin, volume, version: None, since: pod.created });
            pod.release = None;
        }));
        assert!(due(|observed| {
            let seen = observed.said.seen.get_mut(&Serial(1)).unwrap();
            if let Sight::Etcd(alive) = &mut seen.sight {
                alive.version = None;
            }
        }));
        assert!(due(|observed| {
            let seen = observed.said.seen.get_mut(&Serial(1)).unwrap();
            if let Sight::Etcd(alive) = &mut seen.sight {
                alive.cluster_version = Some(Minor(5));
            }
        }));
        assert!(!due(|observed| {
            let seen = observed.said.seen.get_mut(&Serial(1)).unwrap();
            if let Sight::Etcd(alive) = &mut seen.sight {
                alive.cluster_version = None;
            }
        }));
    }

    #[test]
    fn an_alarm_is_told_from_a_missing_leader() {
        let status = |errors: &[&str], downgrade: Option<&str>| Status {
            errors: errors.iter().map(|&error| error.to_owned()).collect(),
            downgrade: downgrade.map(str::to_owned),
            ..Status::default()
        };
        let alarm = |errors: &[&str]| match of(&status(errors, None)) {
            Overall::Known { downgrade: None, alarm } => alarm,
            other => panic!("{other:?}"),
        };
        assert_eq!(alarm(&[]), None);
        assert_eq!(alarm(&["etcdserver: no leader"]), None);
        assert_eq!(alarm(&["memberID:1  alarm:CORRUPT "]), Some(Alarm::Corrupt));
        assert_eq!(alarm(&["memberID:1  alarm:CORRUPT ", "memberID:2 alarm:NOSPACE"]), Some(Alarm::Corrupt));
        assert_eq!(alarm(&["memberID:1 alarm:SOMETHING "]), Some(Alarm::Corrupt), "one of a later etcd");
        assert_eq!(
            of(&status(&["memberID:1  alarm:NOSPACE "], Some("3.5.0"))),
            Overall::Known { downgrade: Some(Minor(5)), alarm: Some(Alarm::NoSpace) }
        );
    }
}
