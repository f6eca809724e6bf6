//! Asks the members: what answers on each pod's metrics port, and what the quorum says of membership. Silence stays
//! silence here: nobody is declared dead.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use jiff::Timestamp;
use quorate_etcd::{Access, Endpoint, Pool, Silence, Vitals};
use quorate_statemachine::{Alive, Link, MemberId, Millis, Minor, Overall, Role, Roster, Serial, Sight, Uid, Version};
use tokio::time::{Instant, sleep, timeout};

use super::facts::millis;
use super::launcher;
use super::links::Sent;
use super::pods::Leaving;
use super::said::{Furthest, Said, Seen};
use crate::cluster::render::{CLIENT_PORT, METRICS_PORT};

/// How long the member list is waited for after everybody has been looked at. A read after a round of the quorum takes
/// milliseconds; a member that has lost its quorum holds it for seconds, and healing must not wait for that.
const LIST_PATIENCE: Duration = Duration::from_millis(500);
/// How long a pod on its way out is looked at: once it has ended, nobody says so at its address, and its successor must
/// not wait for that.
const LEAVING_PATIENCE: Duration = Duration::from_millis(50);
/// How long a pod is looked at whose etcd starts: it has its port long before it answers there, and the next member's ticket
/// must not wait for that.
const STARTING_PATIENCE: Duration = Duration::from_millis(100);
/// For how long a newcomer to a founded cluster is looked at when it is first seen to have an address, and how often: its kubelet
/// tells that about when its launcher begins to listen. Those that come together are to be seen by one plan, which adds them one
/// right after the other. A seed waits for nobody.
const NEWCOMER_PATIENCE: Duration = Duration::from_millis(150);
const NEWCOMER_LOOKS: Duration = Duration::from_millis(10);
/// For how long after its ticket was written a pod counts as one whose etcd starts. One that answers more slowly is seen
/// after that.
const STARTS_FOR_MS: u64 = 2_000;
/// For how long it stands what a voter has said when it was well, if no voter was touched since, and what a launcher has that waits
/// for its ticket. To tell its metrics costs a member 7 ms of the processor; asked with every look of a hurry, members take from
/// those that start what they need.
const STANDS_FOR_MS: u64 = 250;
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
    /// Whether it is labelled as one that votes: an etcd that joins counts itself as a voter until it hears otherwise.
    pub votes: bool,
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

    /// Whether nobody has looked here yet, and its launcher waits to be told anything, or will in a moment.
    fn is_new(&self, earlier: Option<&Seen>) -> bool {
        self.ticketed.is_none() && self.leaving == Leaving::No && earlier.is_none_or(|seen| seen.pod != self.pod)
    }

    /// What was seen here a moment ago, if it is not worth another look. Once anybody was told to join, the leader is: how
    /// far a learner has come is held against what it says.
    fn stands(&self, now: Millis, earlier: Option<&Seen>, all_vote: bool) -> Option<Seen> {
        let seen = earlier.filter(|seen| seen.pod == self.pod && seen.ip == self.ip)?;
        let (is_calm, said) = match &seen.sight {
            Sight::Etcd(alive) => {
                let is_well = seen.sees_leader() && alive.live && !seen.receives;
                (is_well && self.votes && (all_vote || !alive.leads), alive.seen)
            }
            // Without its mark it has more to say in a moment.
            Sight::Waiting(mark) => (mark.is_some() && self.ticketed.is_none(), seen.heard),
            Sight::Unknown | Sight::Restoring(_) | Sight::Refused(_) => return None,
        };
        let age = now.0.checked_sub(said.0)?;
        (is_calm && self.leaving == Leaving::No && age < STANDS_FOR_MS).then(|| seen.clone())
    }

    /// Its client port.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint { addr: SocketAddr::new(self.ip, CLIENT_PORT), host: self.host.clone() }
    }
}

/// What is known from the look before.
#[derive(Clone, Copy, Debug)]
pub struct Earlier<'e> {
    /// What was seen.
    pub seen: &'e BTreeMap<Serial, Seen>,
    /// Who led when last seen: whom to ask first for the list.
    pub leader: Option<Serial>,
    /// Whether what voters and launchers said a moment ago may stand: no voter was touched since, and nobody tried to.
    pub stands: bool,
}

impl Earlier<'_> {
    /// Whether all that carry a ticket were voters that are well.
    fn all_vote(&self, addresses: &BTreeMap<Serial, Address>) -> bool {
        let mut ticketed = addresses.iter().filter(|(_, address)| address.ticketed.is_some());
        ticketed.all(|(serial, address)| {
            let serves = self.seen.get(serial).is_some_and(|seen| seen.pod == address.pod && seen.sees_leader());
            serves && address.votes
        })
    }
}

/// Asks everybody at once. Without access to their client ports nobody gives a list.
pub async fn ask(
    pool: &Pool,
    access: Option<&Access>,
    addresses: &BTreeMap<Serial, Address>,
    earlier: Earlier<'_>,
) -> Said {
    let leader = earlier.leader;
    let (now, all_vote) = (millis(Timestamp::now()), earlier.all_vote(addresses));
    let is_founded = addresses.values().any(|address| address.ticketed.is_some());
    let looks = addresses.iter().map(async |(serial, address)| {
        let before = earlier.seen.get(serial);
        let seen = match address.stands(now, before.filter(|_| earlier.stands), all_vote) {
            Some(seen) => seen,
            None if is_founded && address.is_new(before) => first_look(address).await,
            None => look_in_time(address, before).await,
        };
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

/// Looks at a newcomer until its launcher answers, or for a moment.
async fn first_look(address: &Address) -> Seen {
    let until = Instant::now() + NEWCOMER_PATIENCE;
    loop {
        let seen = look(address).await;
        if seen.sight != Sight::Unknown || Instant::now() >= until {
            return seen;
        }
        sleep(NEWCOMER_LOOKS).await;
    }
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn an_etcd_starts_for_two_seconds_after_its_ticket() {
        let (pod, volume, ip) = (Uid::new("u"), Uid::new("v"), IpAddr::from([127, 0, 0, 77]));
        let address = |ticketed: Option<u64>| {
            let (host, leaving, ticketed) = ("db-0".to_owned(), Leaving::No, ticketed.map(Millis));
            Address { pod: pod.clone(), volume: volume.clone(), ip, host, ticketed, votes: true, leaving }
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

    #[test]
    fn what_a_voter_said_when_it_was_well_stands_for_a_moment() {
        let healthy = crate::cluster::report::fixture::healthy().said.seen;
        let follower = healthy.into_values().find(|seen| seen.sees_leader() && !leads(seen)).unwrap();
        let address = Address {
            pod: follower.pod.clone(),
            volume: Uid::new("v"),
            ip: follower.ip,
            host: "db-0".to_owned(),
            ticketed: Some(Millis(0)),
            votes: true,
            leaving: Leaving::No,
        };
        let Sight::Etcd(alive) = follower.sight.clone() else { panic!("no etcd") };
        let looked = |age: u64| Millis(alive.seen.0 + age);
        let stands = |seen: &Seen, age: u64| address.stands(looked(age), Some(seen), false).is_some();
        assert_eq!(address.stands(looked(0), Some(&follower), false), Some(follower.clone()));
        assert_eq!(address.stands(looked(0), None, true), None, "something was done since");
        assert!(stands(&follower, STANDS_FOR_MS - 1) && !stands(&follower, STANDS_FOR_MS));
        let said = |change: &dyn Fn(&mut Alive)| {
            let mut alive = alive.clone();
            change(&mut alive);
            Seen { sight: Sight::Etcd(alive), ..follower.clone() }
        };
        let leader = said(&|alive| alive.leads = true);
        assert!(address.stands(looked(0), Some(&leader), true).is_some());
        for unwell in [
            leader,
            said(&|alive| alive.live = false),
            said(&|alive| alive.learner = true),
            said(&|alive| alive.has_leader = false),
            said(&|alive| alive.seen = Millis(alive.seen.0 + 1)),
            Seen { sight: Sight::Unknown, ..follower.clone() },
            Seen { sight: Sight::Waiting(None), ..follower.clone() },
            Seen { pod: Uid::new("another"), ..follower.clone() },
            Seen { ip: IpAddr::from([127, 0, 0, 78]), ..follower.clone() },
            Seen { receives: true, ..follower.clone() },
        ] {
            assert!(!stands(&unwell, 0), "{unwell:?}");
        }
        for (votes, leaving) in [(true, Leaving::InGrace), (true, Leaving::AtOnce), (false, Leaving::No)] {
            let address = Address { votes, leaving, ..address.clone() };
            assert_eq!(address.stands(looked(0), Some(&follower), true), None);
        }
    }

    #[test]
    fn what_a_marked_launcher_said_stands_until_it_has_a_ticket() {
        let new = newcomer(77, None);
        let said = |mark: Option<&str>| {
            let sight = Sight::Waiting(mark.map(quorate_statemachine::Mark::new));
            Seen { sight, ..nothing_at(&new, Millis(1_000)) }
        };
        let marked = said(Some("mark"));
        let stands =
            |address: &Address, now: u64, seen: &Seen| address.stands(Millis(now), Some(seen), false).is_some();
        assert!(stands(&new, 1_000, &marked) && stands(&new, 999 + STANDS_FOR_MS, &marked));
        assert!(!stands(&new, 1_000 + STANDS_FOR_MS, &marked));
        assert!(!stands(&new, 999, &marked), "the clock was set back");
        assert!(!stands(&new, 1_000, &said(None)), "it marks its volume");
        assert!(!stands(&newcomer(77, Some(Millis(1_000))), 1_000, &marked), "it was told to begin");
        assert!(!stands(&Address { leaving: Leaving::InGrace, ..new.clone() }, 1_000, &marked));
    }

    #[test]
    fn all_vote_unless_one_was_told_to_start_that_does_not_yet() {
        let seen = crate::cluster::report::fixture::healthy().said.seen;
        let address = |pod: &Uid, ticketed: Option<Millis>| {
            let (volume, ip, host) = (Uid::new("v"), IpAddr::from([127, 0, 0, 77]), "db".to_owned());
            Address { pod: pod.clone(), volume, ip, host, ticketed, votes: true, leaving: Leaving::No }
        };
        let told = Some(Millis(0));
        let voters: BTreeMap<_, _> = seen.iter().map(|(serial, seen)| (*serial, address(&seen.pod, told))).collect();
        let earlier = Earlier { seen: &seen, leader: None, stands: true };
        assert!(earlier.all_vote(&voters));
        let with = |serial: u32, address: Address| {
            let mut addresses = voters.clone();
            addresses.insert(Serial(serial), address);
            earlier.all_vote(&addresses)
        };
        assert!(with(9, address(&Uid::new("new"), None)), "it waits");
        assert!(!with(9, address(&Uid::new("new"), told)));
        assert!(!with(0, address(&Uid::new("its next pod"), told)));
        let joins = Address { votes: false, ..voters[&Serial(0)].clone() };
        assert!(!with(0, joins), "it counts itself as a voter");
    }

    /// A pod that votes nowhere yet.
    fn newcomer(last: u8, ticketed: Option<Millis>) -> Address {
        Address {
            pod: Uid::new("u"),
            volume: Uid::new("v"),
            ip: IpAddr::from([127, 0, 82, last]),
            host: "db-0".to_owned(),
            ticketed,
            votes: false,
            leaving: Leaving::No,
        }
    }

    /// A launcher that lets the first who calls wait in vain.
    async fn launcher_that_answers_the_second(ip: IpAddr) {
        let report = serde_json::json!({ "state": "waiting", "reason": "NoTicket", "message": "", "since": 0 });
        let report = report.to_string();
        let answers = [("404 Not Found", ""), ("200 OK", report.as_str())]
            .map(|(status, body)| format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
        let listener = TcpListener::bind((ip, METRICS_PORT)).await.unwrap();
        tokio::spawn(async move {
            drop(listener.accept().await.unwrap());
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ = stream.read(&mut [0; 1024]).await.unwrap();
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
    }

    #[tokio::test]
    async fn one_that_is_to_join_is_looked_at_until_its_launcher_answers_and_any_other_pod_once() {
        let nothing = |pod: &str, address: &Address| Seen::nothing(Uid::new(pod), address.ip, Millis(0));
        let (new, told) = (newcomer(1, None), newcomer(1, Some(Millis(0))));
        assert!(new.is_new(None) && new.is_new(Some(&nothing("the pod before", &new))));
        assert!(!new.is_new(Some(&nothing("u", &new))), "it was looked at before");
        assert!(!told.is_new(None), "it was told to begin");

        let sights = async |addresses: &[&Address], earlier: &BTreeMap<Serial, Seen>| {
            let addresses = (0..).map(Serial).zip(addresses.iter().copied().cloned()).collect();
            let earlier = Earlier { seen: earlier, leader: None, stands: true };
            let said = ask(&Pool::default(), None, &addresses, earlier).await;
            said.seen.into_values().map(|seen| seen.sight).collect::<Vec<_>>()
        };
        let (nobody, member) = (BTreeMap::new(), newcomer(9, Some(Millis(0))));
        launcher_that_answers_the_second(new.ip).await;
        assert_eq!(sights(&[&new, &member], &nobody).await, [Sight::Waiting(None), Sight::Unknown]);
        let known = newcomer(2, None);
        launcher_that_answers_the_second(known.ip).await;
        let before = BTreeMap::from([(Serial(0), nothing("u", &known))]);
        assert_eq!(sights(&[&known, &member], &before).await[0], Sight::Unknown);
        let seed = newcomer(3, None);
        launcher_that_answers_the_second(seed.ip).await;
        assert_eq!(sights(&[&seed], &nobody).await, [Sight::Unknown], "nothing was founded yet");
        let silent = newcomer(4, None);
        assert_eq!(sights(&[&silent, &member], &nobody).await[0], Sight::Unknown, "nothing ever answers there");
    }

    fn leads(seen: &Seen) -> bool {
        matches!(&seen.sight, Sight::Etcd(alive) if alive.leads)
    }

    #[tokio::test]
    async fn pods_that_do_not_answer_are_unknown_and_soon_so() {
        let (pod, ip, host) = (Uid::new("u"), IpAddr::from([127, 0, 0, 77]), "db-0".to_owned());
        let volume = Uid::new("claim-uid");
        let address = Address { pod, volume, ip, host, ticketed: Some(Millis(0)), votes: true, leaving: Leaving::No };
        let addresses = BTreeMap::from([(Serial(0), address)]);
        for access in [Some(Access::plaintext()), None] {
            let nothing = Earlier { seen: &BTreeMap::new(), leader: None, stands: true };
            let said = ask(&Pool::default(), access.as_ref(), &addresses, nothing).await;
            assert_eq!(said.seen[&Serial(0)].sight, Sight::Unknown);
            assert_eq!(said.list, None);
        }
    }
}
