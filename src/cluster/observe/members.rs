//! Asks the members: what answers on each pod's metrics port, and what the quorum says of membership. Silence stays
//! silence here: nobody is declared dead.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use jiff::Timestamp;
use quorate_etcd::{Access, Endpoint, Pool, Silence, Vitals};
use quorate_statemachine::{Alive, Link, MemberId, Millis, Minor, Overall, Role, Roster, Serial, Sight, Uid, Version};
use tokio::time::{sleep, timeout};

use super::facts::millis;
use super::launcher;
use super::links::Sent;
use super::pods::Leaving;
use super::said::{Furthest, Said, Seen};

/// The port on which the launcher and etcd say how they are.
const METRICS_PORT: u16 = 2381;
/// The port on which etcd serves clients.
pub const CLIENT_PORT: u16 = 2379;
/// How long the member list is waited for after everybody has been looked at. A read after a round of the quorum takes
/// milliseconds; a member that has lost its quorum holds it for seconds, and healing must not wait for that.
const LIST_PATIENCE: Duration = Duration::from_millis(500);
/// How long a pod on its way out is looked at: once it has ended, nobody says so at its address, and its successor must
/// not wait for that.
const LEAVING_PATIENCE: Duration = Duration::from_millis(50);
/// How long a pod is looked at whose etcd starts: it has its port long before it answers there, and the next member's ticket
/// must not wait for that.
const STARTING_PATIENCE: Duration = Duration::from_millis(100);
/// For how long after its ticket was written a pod counts as one whose etcd starts. One that answers more slowly is seen
/// after that.
const STARTS_FOR_MS: u64 = 2_000;
/// How much later than the leader the others are asked for the list: at rest one answer is enough.
const OTHERS_LATER: Duration = Duration::from_millis(50);

/// Where a pod can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The pod.
    pub pod: Uid,
    /// The volume it was made for.
    pub volume: Uid,
    /// Its address.
    pub ip: IpAddr,
    /// Its host name, which its certificate carries.
    pub host: String,
    /// Since when it carries a ticket, so that etcd may be running in it.
    pub ticketed: Option<Millis>,
    /// Whether it is on its way out.
    pub leaving: Leaving,
}

impl Address {
    /// Whether its etcd was let start a moment ago, and was not seen yet. By a clock that was set back since then that is not
    /// known.
    fn starts(&self, now: Millis, earlier: Option<&Seen>) -> bool {
        let age = self.ticketed.and_then(|since| now.0.checked_sub(since.0));
        // One that serves gets another ticket as well, to resume.
        let ran = earlier.is_some_and(|seen| seen.pod == self.pod && matches!(seen.sight, Sight::Etcd(_)));
        !ran && age.is_some_and(|age| age < STARTS_FOR_MS)
    }

    /// Its client port.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint { addr: SocketAddr::new(self.ip, CLIENT_PORT), host: self.host.clone() }
    }
}

/// Asks everybody at once. `leader` is whom to ask first for the list: who led when last seen. `earlier` is what was seen
/// then. Without access to their client ports nobody gives a list.
pub async fn ask(
    pool: &Pool,
    access: Option<&Access>,
    addresses: &BTreeMap<Serial, Address>,
    leader: Option<Serial>,
    earlier: &BTreeMap<Serial, Seen>,
) -> Said {
    let looks = addresses.iter().map(async |(serial, address)| {
        let seen = look_in_time(address, earlier.get(serial)).await;
        (*serial, seen)
    });
    let looks = join_all(looks);
    let list = async {
        match access {
            Some(access) => list(pool, access, &ticketed(addresses), leader).await,
            None => None,
        }
    };
    tokio::pin!(looks, list);
    let (seen, early) = tokio::select! {
        seen = &mut looks => (seen, None),
        list = &mut list => (looks.await, Some(list)),
    };
    let seen: BTreeMap<_, _> = seen.into_iter().collect();
    let list = match early {
        Some(list) => list,
        None if seen.values().any(Seen::sees_leader) => timeout(LIST_PATIENCE, list).await.ok().flatten(),
        None => None,
    };
    let list = match (list, access) {
        (None, Some(access)) => list_of_the_unticketed(pool, access, addresses, &seen).await,
        (list, _) => list,
    };
    Said { seen, list, overall: Overall::Unknown }
}

/// Asks those who run an etcd and carry no ticket, because somebody took it away.
async fn list_of_the_unticketed(
    pool: &Pool,
    access: &Access,
    addresses: &BTreeMap<Serial, Address>,
    seen: &BTreeMap<Serial, Seen>,
) -> Option<quorate_etcd::MemberList> {
    let runs = |serial: &Serial| seen.get(serial).is_some_and(Seen::sees_leader);
    let unticketed = addresses.iter().filter(|(serial, address)| address.ticketed.is_none() && runs(serial));
    let unticketed = unticketed.map(|(serial, address)| (*serial, address.endpoint())).collect();
    list_in_time(pool, access, &unticketed, None).await
}

/// A pod at which nothing answers.
fn nothing_at(address: &Address, now: Millis) -> Seen {
    Seen::nothing(address.pod.clone(), address.ip, now)
}

/// Looks at one pod, for longer at one that stays and has been there for a while. One that goes at once is not looked at:
/// its successor would wait.
async fn look_in_time(address: &Address, earlier: Option<&Seen>) -> Seen {
    let now = millis(Timestamp::now());
    let silent = nothing_at(address, now);
    let patience = match address.leaving {
        Leaving::No if address.starts(now, earlier) => STARTING_PATIENCE,
        Leaving::No => return look(address).await,
        Leaving::InGrace => LEAVING_PATIENCE,
        Leaving::AtOnce => return silent,
    };
    timeout(patience, look(address)).await.unwrap_or(silent)
}

/// Looks at one pod.
pub async fn look(address: &Address) -> Seen {
    let now = millis(Timestamp::now());
    let said = quorate_etcd::look(SocketAddr::new(address.ip, METRICS_PORT)).await;
    let silent = nothing_at(address, now);
    match said {
        quorate_etcd::Sight::Silent(silence) => {
            trace_silence(address, &silence);
            silent
        }
        quorate_etcd::Sight::Launcher(report) => {
            let (sight, refusal) = launcher::read(&report, &address.volume, now);
            Seen { sight, refusal, ..silent }
        }
        quorate_etcd::Sight::Etcd(vitals) => Seen {
            sight: Sight::Etcd(of_vitals(&vitals, now)),
            member: vitals.member.map(|id| MemberId(id.0)),
            sent: vitals.links.iter().map(|(peer, link)| (MemberId(peer.0), Sent::of(link))).collect(),
            version: vitals.version,
            receives: vitals.receives_snapshot,
            furthest: Furthest { applied: vitals.applied, at: now },
            ..silent
        },
    }
}

fn trace_silence(address: &Address, silence: &Silence) {
    tracing::trace!(ip = %address.ip, %silence, "a pod does not answer");
}

fn of_vitals(vitals: &Vitals, now: Millis) -> Alive {
    let Vitals {
        member: _,
        process_start,
        has_leader,
        role,
        committed,
        applied,
        version,
        cluster_version,
        db_size: _,
        receives_snapshot: _,
        links,
        live,
    } = vitals;
    let counted = links.iter().filter(|(_, link)| link.active);
    Alive {
        seen: now,
        process: Millis(u64::try_from(process_start.as_millis()).unwrap_or(u64::MAX)),
        has_leader: *has_leader,
        leads: *role == quorate_etcd::Role::Leader,
        learner: *role == quorate_etcd::Role::Learner,
        committed: *committed,
        applied: *applied,
        progressed: now,
        live: *live,
        version: version.as_deref().and_then(Version::parse),
        cluster_version: cluster_version.as_deref().and_then(Minor::parse),
        // Not told on this port.
        storage: None,
        links: counted.map(|(peer, _)| (MemberId(peer.0), Link::Counted)).collect(),
    }
}

/// The client ports of those that carry a ticket: in the others no etcd should run. Nor of those that go at once.
pub fn ticketed(addresses: &BTreeMap<Serial, Address>) -> BTreeMap<Serial, Endpoint> {
    let ticketed =
        addresses.iter().filter(|(_, address)| address.ticketed.is_some() && address.leaving != Leaving::AtOnce);
    ticketed.map(|(serial, address)| (*serial, address.endpoint())).collect()
}

/// A list as [`list`] gives it, if it comes about in time.
pub async fn list_in_time(
    pool: &Pool,
    access: &Access,
    asked: &BTreeMap<Serial, Endpoint>,
    leader: Option<Serial>,
) -> Option<quorate_etcd::MemberList> {
    timeout(LIST_PATIENCE, list(pool, access, asked, leader)).await.ok().flatten()
}

/// The first linearizable member list that anybody gives: the leader is asked first, the others a little later.
pub async fn list(
    pool: &Pool,
    access: &Access,
    asked: &BTreeMap<Serial, Endpoint>,
    leader: Option<Serial>,
) -> Option<quorate_etcd::MemberList> {
    let known = leader.is_some_and(|leader| asked.contains_key(&leader));
    let mut answers: FuturesUnordered<_> = asked
        .iter()
        .map(async |(serial, endpoint)| {
            if known && leader != Some(*serial) {
                sleep(OTHERS_LATER).await;
            }
            let answer = match pool.member(access, endpoint) {
                Ok(member) => member.member_list().await,
                Err(error) => Err(error),
            };
            answer.inspect_err(|error| tracing::trace!(member = %serial, %error, "no member list")).ok()
        })
        .collect();
    while let Some(answer) = answers.next().await {
        if answer.is_some() {
            return answer;
        }
    }
    None
}

/// Who is in a list, and as what, in the state machine's words.
pub fn roster(list: &quorate_etcd::MemberList) -> Roster {
    let role = |member: &quorate_etcd::Member| if member.learner { Role::Learner } else { Role::Voter };
    list.members.iter().map(|member| (MemberId(member.id.0), role(member))).collect()
}

/// The ids of a list in the state machine's words.
pub fn ids(list: &quorate_etcd::MemberList) -> BTreeSet<MemberId> {
    list.members.iter().map(|member| MemberId(member.id.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_etcd_starts_for_two_seconds_after_its_ticket() {
        let (pod, volume, ip) = (Uid::new("u"), Uid::new("v"), IpAddr::from([127, 0, 0, 77]));
        let address = |ticketed: Option<u64>| {
            let (host, leaving, ticketed) = ("db-0".to_owned(), Leaving::No, ticketed.map(Millis));
            Address { pod: pod.clone(), volume: volume.clone(), ip, host, ticketed, leaving }
        };
        let starts = |ticketed: Option<u64>, now: u64| address(ticketed).starts(Millis(now), None);
        assert!(starts(Some(10_000), 10_000) && starts(Some(10_000), 11_999));
        assert!(!starts(Some(10_000), 12_000));
        assert!(!starts(Some(10_000), 9_999), "the clock was set back");
        assert!(!starts(None, 10_000), "its launcher answers");

        let (_, etcd) = crate::cluster::report::fixture::healthy().said.seen.into_iter().next().unwrap();
        let ran = |pod: &str, sight: Sight| {
            let earlier = Seen { pod: Uid::new(pod), sight, ..etcd.clone() };
            !address(Some(10_000)).starts(Millis(10_000), Some(&earlier))
        };
        assert!(ran("u", etcd.sight.clone()), "it serves, and got another ticket");
        assert!(!ran("another", etcd.sight.clone()) && !ran("u", Sight::Unknown));
    }

    #[tokio::test]
    async fn pods_that_do_not_answer_are_unknown_and_soon_so() {
        let (pod, ip, host) = (Uid::new("u"), IpAddr::from([127, 0, 0, 77]), "db-0".to_owned());
        let volume = Uid::new("claim-uid");
        let address = Address { pod, volume, ip, host, ticketed: Some(Millis(0)), leaving: Leaving::No };
        let addresses = BTreeMap::from([(Serial(0), address)]);
        for access in [Some(Access::plaintext()), None] {
            let said = ask(&Pool::default(), access.as_ref(), &addresses, None, &BTreeMap::new()).await;
            assert_eq!(said.seen[&Serial(0)].sight, Sight::Unknown);
            assert_eq!(said.list, None);
        }
    }
}
