//! Asks the members what only their client ports tell: whether a downgrade is enabled, whether an alarm is raised, the
//! version of each database. At rest only the leader is asked, which speaks for all; the rest is nobody's question. While
//! versions differ all are asked, since a leader of an earlier minor can't tell all of it.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use quorate_crds::EtcdCluster;
use quorate_etcd::{Access, Pool, Status};
use quorate_statemachine::{Alarm, Alive, Minor, Overall, Serial, Sight};
use tokio::time::timeout;

use super::members::Address;
use super::pods::PodFacts;
use super::said::{Said, Seen};
use super::wish;

/// How long a member's status is waited for: it is told from memory, without the quorum.
const PATIENCE: Duration = Duration::from_millis(500);
/// The same for what it tells only with the quorum. Who could not say it is asked again in the next round.
const QUORUM_PATIENCE: Duration = Duration::from_secs(1);
/// How an alarm shows among the troubles that a status holds: the text form of its message, as
/// `memberID:1 alarm:NOSPACE` (`server/etcdserver/api/v3rpc/maintenance.go`, Status).
const ALARM: &str = "alarm:";
/// The first minor whose status tells of a downgrade (`downgradeInfo` of `StatusResponse` in `api/etcdserverpb/rpc.proto`).
/// That of an earlier one looks as if none were enabled.
const FIRST_TO_TELL: Minor = Minor(6);

/// What was asked of a downgrade where no status tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// Nothing: a status tells; or nobody is about to join, and to nothing else does it matter; or there never was one.
    Nothing,
    /// It did not answer.
    InVain,
    /// Whether one is enabled, and to which minor.
    For(Option<Minor>),
}

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
        Sight::Unknown | Sight::Waiting(_) | Sight::Restoring(_) | Sight::Refused(_) => false,
    });
    if told || runs { Whom::All } else { Whom::Leader }
}

/// Whether somebody is about to join: a learner, or one that is missing.
pub fn expects_newcomers(cluster: &EtcdCluster, said: &Said) -> bool {
    let Some(list) = &said.list else { return false };
    let voters = list.members.iter().filter(|member| !member.learner).count();
    voters < list.members.len() || i64::try_from(voters).is_ok_and(|voters| voters < i64::from(cluster.spec.replicas))
}

/// Asks the leader, or every member that serves, and notes what they said. With `newcomers` it is also asked what no status of
/// 3.5 tells.
pub async fn ask(
    pool: &Pool,
    access: &Access,
    addresses: &BTreeMap<Serial, Address>,
    (whom, newcomers): (Whom, bool),
    said: &mut Said,
) {
    let leader = said.leader().map(|(serial, _)| serial);
    let due = |serial: &Serial| match whom {
        Whom::Leader => Some(*serial) == leader,
        Whom::All => true,
    };
    let able = said.seen.iter().filter(|(_, seen)| serving(seen).is_some());
    let asked = able.map(|(serial, _)| serial).filter(|serial| due(serial));
    let asked = asked.filter_map(|serial| Some((*serial, addresses.get(serial)?)));
    let answers = asked.map(async |(serial, address)| {
        let member = pool.member(access, &address.endpoint()).ok()?;
        let status = timeout(PATIENCE, member.status()).await.ok()?;
        let status = status.inspect_err(|error| tracing::trace!(member = %serial, %error, "no status")).ok()?;
        Some((serial, status))
    });
    let answers: BTreeMap<Serial, Status> = join_all(answers).await.into_iter().flatten().collect();
    let word = match leader.filter(|leader| newcomers && answers.contains_key(leader)) {
        Some(leader) if !answers.values().any(tells) && !somebody_could_tell(said) => {
            ask_otherwise(pool, access, addresses.get(&leader), said.seen.get(&leader)).await
        }
        Some(_) | None => Asked::Nothing,
    };
    said.overall = of(said, &answers, word);
    for (serial, status) in &answers {
        if let Some(Sight::Etcd(alive)) = said.seen.get_mut(serial).map(|seen| &mut seen.sight) {
            alive.storage = Minor::parse(&status.storage_version);
        }
    }
}

/// Asks the leader of a cluster of 3.5. After a downgrade to it one stays enabled for a moment, and for ever if a member is lost in
/// that moment: until all members tell their version, which a learner can't that is not let in because of it.
async fn ask_otherwise(pool: &Pool, access: &Access, leader: Option<&Address>, seen: Option<&Seen>) -> Asked {
    // A new cluster has no version for some seconds, and was never lowered.
    let Some(cluster) = seen.and_then(serving).and_then(|alive| alive.cluster_version) else { return Asked::Nothing };
    let Some(address) = leader else { return Asked::InVain };
    let Ok(member) = pool.member(access, &address.endpoint()) else { return Asked::InVain };
    match timeout(QUORUM_PATIENCE, member.downgrade_is_enabled(&format!("{}.0", cluster.previous()))).await {
        Ok(Ok(enabled)) => Asked::For(enabled.then_some(cluster)),
        Ok(Err(error)) => {
            tracing::trace!(%error, "no word of a downgrade");
            Asked::InVain
        }
        Err(_) => Asked::InVain,
    }
}

/// A member that knows who leads, as far as was seen: others are not asked.
fn serving(seen: &Seen) -> Option<&Alive> {
    match &seen.sight {
        Sight::Etcd(alive) => Some(alive).filter(|alive| alive.has_leader),
        Sight::Unknown | Sight::Waiting(_) | Sight::Restoring(_) | Sight::Refused(_) => None,
    }
}

/// What the answers say of the whole: what the leader says; and where it can't tell of a downgrade, what is said of that by
/// who has come furthest of those that can. If there are such and none has answered, only the alarms are known. Where there is
/// none, as before the first member of 3.6, it is as was `asked`; and if it was not, its silence must not keep a cluster of 3.5
/// from going on.
fn of(said: &Said, answers: &BTreeMap<Serial, Status>, asked: Asked) -> Overall {
    let Some(leading) = said.leader().and_then(|(serial, _)| answers.get(&serial)) else { return Overall::Unknown };
    let others = || answers.values().filter(|status| tells(status)).max_by_key(|status| status.applied);
    let teller = Some(leading).filter(|status| tells(status)).or_else(others);
    let alarm = leading.errors.iter().filter_map(|error| alarm(error)).max();
    if teller.is_none() && somebody_could_tell(said) {
        return Overall::OfAlarms(alarm);
    }
    let downgrade = teller.and_then(|status| status.downgrade.as_deref()).and_then(Minor::parse);
    match asked {
        Asked::Nothing => Overall::Known { downgrade, alarm },
        Asked::InVain => Overall::OfAlarms(alarm),
        Asked::For(downgrade) => Overall::Known { downgrade, alarm },
    }
}

/// Whether a status tells of a downgrade that is enabled.
fn tells(status: &Status) -> bool {
    Minor::parse(&status.version).is_some_and(|minor| minor >= FIRST_TO_TELL)
}

/// Whether somebody serves whose status would tell of one.
fn somebody_could_tell(said: &Said) -> bool {
    let mut versions = said.seen.values().filter_map(|seen| serving(seen)?.version);
    versions.any(|version| version.minor >= FIRST_TO_TELL)
}

/// One that is not known is taken for the graver one.
fn alarm(error: &str) -> Option<Alarm> {
    let (_, name) = error.split_once(ALARM)?;
    Some(if name.trim() == "NOSPACE" { Alarm::NoSpace } else { Alarm::Corrupt })
}

#[cfg(test)]
mod tests {
    use quorate_statemachine::Version;

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
            pod.ticket = Some(TicketFacts { begin, volume, mark: None, version: None, since: pod.created });
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

    fn status(version: &str, downgrade: Option<&str>) -> Status {
        Status { version: version.into(), downgrade: downgrade.map(str::to_owned), ..Status::default() }
    }

    /// What three members say of the whole that run these versions: the first one leads.
    fn of_three(versions: [Version; 3], answers: &[(u32, Status)]) -> Overall {
        let mut said = fixture::healthy().said;
        for (seen, version) in said.seen.values_mut().zip(versions) {
            if let Sight::Etcd(alive) = &mut seen.sight {
                alive.version = Some(version);
            }
        }
        of(&said, &answers.iter().map(|(serial, status)| (Serial(*serial), status.clone())).collect(), Asked::Nothing)
    }

    const OLD: Version = Version::new(5, 35);
    const NEW: Version = Version::new(6, 16);

    fn known(downgrade: Option<Minor>) -> Overall {
        Overall::Known { downgrade, alarm: None }
    }

    #[test]
    fn an_alarm_is_told_from_a_missing_leader() {
        let of_leader = |errors: &[&str], downgrade: Option<&str>| {
            let errors = errors.iter().map(|&error| error.to_owned()).collect();
            of_three([NEW; 3], &[(0, Status { errors, ..status("3.6.16", downgrade) })])
        };
        let alarm = |errors: &[&str]| match of_leader(errors, None) {
            Overall::Known { downgrade: None, alarm } => alarm,
            other => panic!("{other:?}"),
        };
        assert_eq!(alarm(&[]), None);
        assert_eq!(alarm(&["etcdserver: no leader"]), None);
        assert_eq!(alarm(&["memberID:1  alarm:CORRUPT "]), Some(Alarm::Corrupt));
        assert_eq!(alarm(&["memberID:1  alarm:CORRUPT ", "memberID:2 alarm:NOSPACE"]), Some(Alarm::Corrupt));
        assert_eq!(alarm(&["memberID:1 alarm:SOMETHING "]), Some(Alarm::Corrupt), "one of a later etcd");
        assert_eq!(
            of_leader(&["memberID:1  alarm:NOSPACE "], Some("3.5.0")),
            Overall::Known { downgrade: Some(Minor(5)), alarm: Some(Alarm::NoSpace) }
        );
    }

    #[test]
    fn of_a_downgrade_speaks_who_can_tell_of_it() {
        let (blind, none, enabled) = (status("3.5.35", None), status("3.6.16", None), status("3.6.16", Some("3.5.0")));
        let mixed = [OLD, NEW, NEW];
        assert_eq!(of_three(mixed, &[(0, blind.clone()), (1, enabled.clone())]), known(Some(Minor(5))));
        assert_eq!(of_three(mixed, &[(0, blind.clone()), (2, none.clone())]), known(None));
        let further = |status: &Status| Status { applied: 9, ..status.clone() };
        let two = |one: Status, other: Status| of_three(mixed, &[(0, blind.clone()), (1, one), (2, other)]);
        assert_eq!(two(further(&enabled), none.clone()), known(Some(Minor(5))), "the other has not heard of it yet");
        assert_eq!(two(enabled.clone(), further(&none)), known(None), "the other has not heard that it is over");
        assert_eq!(of_three([NEW; 3], &[(0, none), (1, further(&enabled))]), known(None), "a leader that can tell");
    }

    #[test]
    fn of_a_downgrade_to_3_5_it_is_as_was_asked() {
        let mut said = fixture::healthy().said;
        for seen in said.seen.values_mut() {
            if let Sight::Etcd(alive) = &mut seen.sight {
                alive.version = Some(OLD);
            }
        }
        let leader = [(Serial(0), status("3.5.35", None))].into();
        assert_eq!(of(&said, &leader, Asked::For(Some(Minor(5)))), known(Some(Minor(5))));
        assert_eq!(of(&said, &leader, Asked::For(None)), known(None));
        assert_eq!(of(&said, &leader, Asked::InVain), Overall::OfAlarms(None), "it may be enabled");
    }

    #[test]
    fn it_is_asked_where_somebody_is_to_join() {
        let expects = |learners: Option<[bool; 3]>, listed: usize| {
            let member = |(number, learner)| quorate_etcd::Member {
                id: quorate_etcd::MemberId(number),
                name: format!("db-{number}"),
                peer_urls: Vec::new(),
                client_urls: Vec::new(),
                learner,
            };
            let list = learners.map(|learners| quorate_etcd::MemberList {
                cluster: quorate_etcd::ClusterId(7),
                answered_by: quorate_etcd::MemberId(0),
                members: (0..).zip(learners).map(member).take(listed).collect(),
            });
            let observed = fixture::healthy();
            expects_newcomers(&observed.cluster, &Said { list, ..observed.said })
        };
        assert!(!expects(Some([false; 3]), 3));
        assert!(expects(Some([false, false, true]), 3), "one does not vote yet");
        assert!(expects(Some([false; 3]), 2), "one is missing");
        assert!(!expects(None, 3), "who knows");
    }

    #[test]
    fn of_a_downgrade_nothing_is_known_if_nobody_who_could_tell_has_answered() {
        let blind = status("3.5.35", None);
        let leader_alone = |versions: [Version; 3]| of_three(versions, &[(0, blind.clone())]);
        assert_eq!(leader_alone([OLD, NEW, OLD]), Overall::OfAlarms(None));
        let full = Status { errors: vec!["memberID:1 alarm:NOSPACE ".into()], ..blind.clone() };
        let mixed = of_three([OLD, NEW, OLD], &[(0, full)]);
        assert_eq!(mixed, Overall::OfAlarms(Some(Alarm::NoSpace)), "of alarms every version tells");
        assert_eq!(leader_alone([OLD; 3]), known(None), "there is none, and 3.5 has to be left some day");
        assert_eq!(
            of_three([OLD, NEW, OLD], &[(1, status("3.6.16", None))]),
            Overall::Unknown,
            "no word of the leader's"
        );
    }
}
