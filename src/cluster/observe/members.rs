//! Asks the members: what answers on each pod's metrics port, and what the quorum says of membership. Silence stays
//! silence here: nobody is declared dead.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use jiff::Timestamp;
use quorate_backup::launch::{Reason, Report};
use quorate_etcd::{Access, Endpoint, Pool, Role, Silence, Vitals};
use quorate_statemachine::{
    Alive, Link, MemberId, Millis, Minor, Overall, Refusal, Restore, Serial, Sight, Uid, Version,
};
use tokio::time::{sleep, timeout};

use super::facts::millis;
use super::links::{self, Sent};
use super::trouble::one_line;

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
    /// It carries a ticket, so etcd may be running in it.
    pub ticketed: bool,
    /// It is on its way out.
    pub terminating: bool,
}

impl Address {
    /// Its client port.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint { addr: SocketAddr::new(self.ip, CLIENT_PORT), host: self.host.clone() }
    }
}

/// What was seen at one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// At which pod.
    pub pod: Uid,
    /// At which address.
    pub ip: IpAddr,
    /// What answered.
    pub sight: Sight,
    /// When something last answered there, or when we first looked, if nothing ever did.
    pub heard: Millis,
    /// What the launcher says, where it refuses its ticket, or a restore, where it fails.
    pub refusal: Option<Complaint>,
    /// The version that runs.
    pub version: Option<String>,
    /// The id of the member that answered.
    pub member: Option<MemberId>,
    /// What it has sent to others.
    pub sent: BTreeMap<MemberId, Sent>,
    /// It is being sent a snapshot.
    pub receives: bool,
    /// How far its log was ever seen to have come in this pod.
    pub furthest: Furthest,
}

/// How far a member's log was ever seen to have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Furthest {
    /// The raft index it had applied.
    pub applied: u64,
    /// When it got there; or was last seen to be sent a snapshot, which it applies once it is whole.
    pub at: Millis,
}

/// What is wrong at a pod before etcd is started, in its own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// In a word.
    pub reason: Reason,
    /// In a sentence, on one line.
    pub message: String,
}

impl std::fmt::Display for Complaint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { reason, message } = self;
        write!(f, "{reason}: {message}")
    }
}

/// How long a launcher may find its volume in use: the kubelet kills what has not ended after a pod's grace, 30 s.
const IN_USE_PATIENCE_MS: u64 = 35_000;

/// How long a launcher may find that its image has another version than its ticket: both are changed in one write, and the
/// ticket's file follows when the kubelet next looks at the pod.
const OTHER_VERSION_PATIENCE_MS: u64 = 5_000;

/// What all members said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// What was seen at each pod that has an address.
    pub seen: BTreeMap<Serial, Seen>,
    /// The linearizable member list, if anybody gave one in time.
    pub list: Option<quorate_etcd::MemberList>,
    /// What the leader said of the whole, if it was asked.
    pub overall: Overall,
}

impl Said {
    /// Takes over from earlier looks since when those are silent that are silent now, since when those come no further that
    /// answer, and which connections carry something that etcd does not count.
    pub fn recall(&mut self, earlier: &BTreeMap<Serial, Seen>) {
        for (serial, seen) in &mut self.seen {
            let Some(before) = earlier.get(serial).filter(|before| before.pod == seen.pod) else { continue };
            if seen.furthest.applied <= before.furthest.applied {
                let at = if seen.receives { seen.furthest.at } else { before.furthest.at };
                seen.furthest = Furthest { at, ..before.furthest };
            }
            match (&mut seen.sight, &before.sight) {
                (Sight::Unknown, _) => seen.heard = before.heard,
                (Sight::Etcd(now), Sight::Etcd(then)) => {
                    now.progressed = seen.furthest.at;
                    links::compare((now, &mut seen.sent), (then, &before.sent));
                }
                (Sight::Etcd(now), _) => now.progressed = seen.furthest.at,
                (Sight::Waiting | Sight::Restoring(_) | Sight::Refused(_), _) => {}
            }
        }
    }

    /// Takes for silent at whose address somebody else answers: an etcd with another id than the list has for that serial.
    /// An address is given to another pod as soon as its last one is gone, which a cache learns later.
    pub fn disown_strangers(&mut self, serial_of: impl Fn(&quorate_etcd::Member) -> Option<Serial>) {
        for member in self.list.iter().flat_map(|list| &list.members) {
            let Some(seen) = serial_of(member).and_then(|serial| self.seen.get_mut(&serial)) else { continue };
            if seen.member.is_some_and(|id| id != MemberId(member.id.0)) {
                tracing::debug!(ip = %seen.ip, "another member answers at this pod's address");
                let Seen {
                    pod,
                    ip,
                    sight: _,
                    heard,
                    refusal: _,
                    version: _,
                    member: _,
                    sent: _,
                    receives: _,
                    furthest: _,
                } = seen;
                *seen = nothing_seen(pod.clone(), *ip, *heard);
            }
        }
    }

    /// Who leads, as that member itself says: one that is in the list, if there is one. Of two, the one that has come
    /// further: the other has not heard yet.
    pub fn leader(&self) -> Option<(Serial, MemberId)> {
        let is_listed = |id: &MemberId| self.list.as_ref().is_none_or(|list| ids(list).contains(id));
        let leading = self.seen.iter().filter_map(|(serial, seen)| match &seen.sight {
            Sight::Etcd(alive) if alive.leads => Some((alive.committed, *serial, seen.member.filter(is_listed)?)),
            Sight::Etcd(_) | Sight::Unknown | Sight::Waiting | Sight::Restoring(_) | Sight::Refused(_) => None,
        });
        leading.max().map(|(_, serial, member)| (serial, member))
    }
}

/// Asks everybody at once. `leader` is whom to ask first for the list: who led when last seen. Without access to their
/// client ports nobody gives one.
pub async fn ask(
    pool: &Pool,
    access: Option<&Access>,
    addresses: &BTreeMap<Serial, Address>,
    leader: Option<Serial>,
) -> Said {
    let looks = join_all(addresses.iter().map(async |(serial, address)| (*serial, look_in_time(address).await)));
    let list = async {
        match access {
            Some(access) => list(pool, access, addresses, leader).await,
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
        None if seen.values().any(sees_leader) => timeout(LIST_PATIENCE, list).await.ok().flatten(),
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
    let runs = |serial: &Serial| seen.get(serial).is_some_and(sees_leader);
    let unticketed = addresses.iter().filter(|(serial, address)| !address.ticketed && runs(serial));
    let unticketed: BTreeMap<_, _> =
        unticketed.map(|(serial, address)| (*serial, Address { ticketed: true, ..address.clone() })).collect();
    list_in_time(pool, access, &unticketed, None).await
}

fn sees_leader(seen: &Seen) -> bool {
    match &seen.sight {
        Sight::Etcd(alive) => alive.has_leader && !alive.learner,
        Sight::Unknown | Sight::Waiting | Sight::Restoring(_) | Sight::Refused(_) => false,
    }
}

/// A pod at which nothing answers.
fn silent(address: &Address, now: Millis) -> Seen {
    nothing_seen(address.pod.clone(), address.ip, now)
}

fn nothing_seen(pod: Uid, ip: IpAddr, heard: Millis) -> Seen {
    Seen {
        pod,
        ip,
        sight: Sight::Unknown,
        heard,
        refusal: None,
        version: None,
        member: None,
        sent: BTreeMap::new(),
        receives: false,
        furthest: Furthest { applied: 0, at: heard },
    }
}

/// Looks at one pod, for longer at one that is to stay.
async fn look_in_time(address: &Address) -> Seen {
    if !address.terminating {
        return look(address).await;
    }
    let silent = silent(address, millis(Timestamp::now()));
    timeout(LEAVING_PATIENCE, look(address)).await.unwrap_or(silent)
}

/// Looks at one pod.
pub async fn look(address: &Address) -> Seen {
    let now = millis(Timestamp::now());
    let said = quorate_etcd::look(SocketAddr::new(address.ip, METRICS_PORT)).await;
    let silent = silent(address, now);
    match said {
        quorate_etcd::Sight::Silent(silence) => {
            trace_silence(address, &silence);
            silent
        }
        quorate_etcd::Sight::Launcher(report) => {
            let (sight, refusal) = of_report(&report, &address.volume, now);
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

fn of_report(report: &[u8], volume: &Uid, now: Millis) -> (Sight, Option<Complaint>) {
    let Ok(report) = serde_json::from_slice::<Report>(report) else { return (Sight::Unknown, None) };
    // Another pod's, which has this address by now.
    if report.volume.is_some_and(|told| told.as_str() != volume.as_str()) {
        return (Sight::Unknown, None);
    }
    let sight = match report.reason {
        Reason::NoTicket => return (Sight::Waiting, None),
        Reason::Restoring => return (Sight::Restoring(Restore::UnderWay), None),
        // After a forced deletion the member's last etcd still runs: that is no refusal yet, and it is not down either.
        Reason::VolumeInUse if now.since(Millis(report.since)) < IN_USE_PATIENCE_MS => return (Sight::Unknown, None),
        Reason::WrongVersion if now.since(Millis(report.since)) < OTHER_VERSION_PATIENCE_MS => {
            return (Sight::Unknown, None);
        }
        // Also that nothing was restored: it was, before the seed was told to start.
        Reason::VolumeIsEmpty | Reason::VolumeHasNoEntry | Reason::VolumeNotRestored => {
            Sight::Refused(Refusal::VolumeLost)
        }
        Reason::VolumeHasOtherData => Sight::Refused(Refusal::VolumeForeign),
        Reason::OtherMember
        | Reason::OtherVolume
        | Reason::VolumeInUse
        | Reason::VolumeUnreadable
        | Reason::BadTicket => Sight::Refused(Refusal::Other),
        Reason::WrongVersion | Reason::BinaryMissing => Sight::Refused(Refusal::Binary),
        Reason::StoreInvalid
        | Reason::BucketMissing
        | Reason::StoreRefused
        | Reason::StoreFailed
        | Reason::BackupMissing
        | Reason::BackupDamaged
        | Reason::NoRoom
        | Reason::AboveQuota
        | Reason::RestoreFailed => Sight::Restoring(Restore::Fails),
    };
    (sight, Some(Complaint { reason: report.reason, message: one_line(&report.message) }))
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
        leads: *role == Role::Leader,
        learner: *role == Role::Learner,
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

/// A list as [`list`] gives it, if it comes about in time.
pub async fn list_in_time(
    pool: &Pool,
    access: &Access,
    addresses: &BTreeMap<Serial, Address>,
    leader: Option<Serial>,
) -> Option<quorate_etcd::MemberList> {
    timeout(LIST_PATIENCE, list(pool, access, addresses, leader)).await.ok().flatten()
}

/// The first linearizable member list that anybody gives: the leader is asked first, the others a little later. Only those
/// that carry a ticket are asked.
pub async fn list(
    pool: &Pool,
    access: &Access,
    addresses: &BTreeMap<Serial, Address>,
    leader: Option<Serial>,
) -> Option<quorate_etcd::MemberList> {
    let known = leader.is_some_and(|leader| addresses.get(&leader).is_some_and(|address| address.ticketed));
    let asked = addresses.iter().filter(|(_, address)| address.ticketed);
    let mut answers: FuturesUnordered<_> = asked
        .map(async |(serial, address)| {
            if known && leader != Some(*serial) {
                sleep(OTHERS_LATER).await;
            }
            let answer = match pool.member(access, &address.endpoint()) {
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

/// The ids of a list in the state machine's words.
pub fn ids(list: &quorate_etcd::MemberList) -> BTreeSet<MemberId> {
    list.members.iter().map(|member| MemberId(member.id.0)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusing(reason: Reason, since: u64) -> Report {
        let volume = Some("claim-uid".into());
        Report { state: reason.state(), reason, message: "m".into(), since, volume }
    }

    fn told(report: &Report, now: Millis) -> (Sight, Option<Complaint>) {
        of_report(&serde_json::to_vec(report).unwrap(), &Uid::new("claim-uid"), now)
    }

    fn report(reason: Reason) -> (Sight, Option<Complaint>) {
        told(&refusing(reason, 1), Millis(1 + IN_USE_PATIENCE_MS))
    }

    #[test]
    fn a_volume_whose_last_user_is_ending_is_no_refusal_yet() {
        let report = refusing(Reason::VolumeInUse, 100);
        assert_eq!(told(&report, Millis(99)), (Sight::Unknown, None));
        assert_eq!(told(&report, Millis(99 + IN_USE_PATIENCE_MS)), (Sight::Unknown, None));
        assert_eq!(told(&report, Millis(100 + IN_USE_PATIENCE_MS)).0, Sight::Refused(Refusal::Other));
    }

    #[test]
    fn a_ticket_that_is_not_there_yet_is_no_refusal_yet() {
        let report = refusing(Reason::WrongVersion, 100);
        assert_eq!(told(&report, Millis(99 + OTHER_VERSION_PATIENCE_MS)), (Sight::Unknown, None));
        assert_eq!(told(&report, Millis(100 + OTHER_VERSION_PATIENCE_MS)).0, Sight::Refused(Refusal::Binary));
    }

    #[test]
    fn only_what_speaks_of_lost_data_counts_as_lost() {
        assert_eq!(report(Reason::NoTicket), (Sight::Waiting, None));
        assert_eq!(report(Reason::VolumeIsEmpty).0, Sight::Refused(Refusal::VolumeLost));
        assert_eq!(report(Reason::VolumeHasOtherData).0, Sight::Refused(Refusal::VolumeForeign));
        for other in [Reason::VolumeInUse, Reason::VolumeUnreadable, Reason::BadTicket] {
            assert_eq!(report(other).0, Sight::Refused(Refusal::Other));
        }
        for binary in [Reason::WrongVersion, Reason::BinaryMissing] {
            assert_eq!(report(binary).0, Sight::Refused(Refusal::Binary));
        }
        assert_eq!(report(Reason::BadTicket).1.unwrap().to_string(), "BadTicket: m");
    }

    #[test]
    fn a_restore_is_at_work_or_says_what_is_wrong() {
        assert_eq!(report(Reason::Restoring), (Sight::Restoring(Restore::UnderWay), None));
        let (sight, complaint) = report(Reason::StoreRefused);
        assert_eq!((sight, complaint.unwrap().reason), (Sight::Restoring(Restore::Fails), Reason::StoreRefused));
        assert_eq!(report(Reason::VolumeNotRestored).0, Sight::Refused(Refusal::VolumeLost));
    }

    #[test]
    fn a_report_that_cannot_be_read_is_silence() {
        for odd in [json!({}), json!({ "state": "waiting", "reason": "New", "message": "", "since": 0 })] {
            assert_eq!(of_report(odd.to_string().as_bytes(), &Uid::new("u"), Millis(0)), (Sight::Unknown, None));
        }
        assert_eq!(of_report(b"<html>", &Uid::new("u"), Millis(0)), (Sight::Unknown, None));
    }

    #[test]
    fn a_report_of_another_pods_is_silence() {
        let waiting = refusing(Reason::NoTicket, 1);
        assert_eq!(told(&waiting, Millis(1)).0, Sight::Waiting);
        let other = Report { volume: Some("another".into()), ..waiting.clone() };
        assert_eq!(told(&other, Millis(1)), (Sight::Unknown, None));
        // One of an agent that does not say whose it is.
        assert_eq!(told(&Report { volume: None, ..waiting }, Millis(1)).0, Sight::Waiting);
    }

    #[test]
    fn an_etcd_with_another_id_than_the_list_has_is_silence() {
        let listed = |id: u64| quorate_etcd::Member {
            id: quorate_etcd::MemberId(id),
            name: "db-0".into(),
            peer_urls: Vec::new(),
            client_urls: Vec::new(),
            learner: false,
        };
        let said = |list: Option<Vec<quorate_etcd::Member>>| {
            let list = list.map(|members| quorate_etcd::MemberList {
                cluster: quorate_etcd::ClusterId(7),
                answered_by: quorate_etcd::MemberId(100),
                members,
            });
            let mut said = Said { seen: [seen(0, true, 9)].into(), list, overall: Overall::Unknown };
            said.disown_strangers(|_| Some(Serial(0)));
            (said.leader(), said.seen[&Serial(0)].sight != Sight::Unknown)
        };
        let itself = (Some((Serial(0), MemberId(100))), true);
        assert_eq!(said(Some(vec![listed(100)])), itself);
        assert_eq!(said(Some(vec![listed(200)])), (None, false));
        assert_eq!(said(None), itself, "nobody says who it should be");
        assert_eq!(said(Some(vec![])), (None, true), "who is not listed leads nobody");
        // As long as somebody else answers, nothing was heard of this one.
        let mut now = seen(0, true, 9);
        now.1.heard = Millis(9);
        let list = quorate_etcd::MemberList {
            cluster: quorate_etcd::ClusterId(7),
            answered_by: quorate_etcd::MemberId(100),
            members: vec![listed(200)],
        };
        let mut later = Said { seen: [now].into(), list: Some(list), overall: Overall::Unknown };
        later.disown_strangers(|_| Some(Serial(0)));
        later.recall(&[seen(0, true, 9)].into());
        assert_eq!(later.seen[&Serial(0)].heard, Millis(0));
    }

    fn seen(serial: u32, leads: bool, committed: u64) -> (Serial, Seen) {
        let alive = Alive {
            seen: Millis(0),
            process: Millis(1),
            has_leader: true,
            leads,
            learner: false,
            committed,
            applied: committed,
            progressed: Millis(0),
            live: true,
            version: Some(Version::new(6, 16)),
            cluster_version: Some(Minor(6)),
            storage: None,
            links: BTreeMap::new(),
        };
        let seen = Seen {
            pod: Uid::new("u"),
            ip: IpAddr::from([127, 0, 0, 1]),
            sight: Sight::Etcd(alive),
            heard: Millis(0),
            refusal: None,
            version: None,
            member: Some(MemberId(u64::from(serial) + 100)),
            sent: BTreeMap::new(),
            receives: false,
            furthest: Furthest { applied: committed, at: Millis(0) },
        };
        (Serial(serial), seen)
    }

    #[test]
    fn silence_is_counted_from_the_last_answer_of_the_same_pod() {
        let look = |pod: &str, sight: Sight, heard: u64| {
            let (serial, seen) = seen(0, false, 9);
            BTreeMap::from([(serial, Seen { pod: Uid::new(pod), sight, heard: Millis(heard), ..seen })])
        };
        let heard = |earlier: &BTreeMap<Serial, Seen>, now: BTreeMap<Serial, Seen>| {
            let mut said = Said { seen: now, list: None, overall: Overall::Unknown };
            said.recall(earlier);
            said.seen[&Serial(0)].heard
        };
        let earlier = look("u", Sight::Waiting, 5);
        assert_eq!(heard(&earlier, look("u", Sight::Unknown, 9)), Millis(5));
        assert_eq!(heard(&earlier, look("u", Sight::Waiting, 9)), Millis(9), "it answers");
        assert_eq!(heard(&earlier, look("v", Sight::Unknown, 9)), Millis(9), "another pod");
        assert_eq!(heard(&BTreeMap::new(), look("u", Sight::Unknown, 9)), Millis(9), "the first look");
    }

    #[test]
    fn who_applies_more_or_is_sent_a_snapshot_comes_further() {
        fn look(applied: u64, at: u64) -> Seen {
            let (_, mut seen) = seen(0, false, applied);
            if let Sight::Etcd(alive) = &mut seen.sight {
                alive.progressed = Millis(at);
            }
            Seen { furthest: Furthest { applied, at: Millis(at) }, ..seen }
        }
        // What the last of these looks says, each of which knows the one before.
        let progressed = |looks: Vec<Seen>| {
            let mut earlier = BTreeMap::new();
            for seen in looks {
                let mut said = Said { seen: [(Serial(0), seen)].into(), list: None, overall: Overall::Unknown };
                said.recall(&earlier);
                earlier = said.seen;
            }
            match &earlier[&Serial(0)].sight {
                Sight::Etcd(alive) => alive.progressed.0,
                other => panic!("{other:?}"),
            }
        };
        let silent = |at: u64| nothing_seen(Uid::new("u"), IpAddr::from([127, 0, 0, 1]), Millis(at));
        assert_eq!(progressed(vec![look(3, 5)]), 5, "the first look");
        assert_eq!(progressed(vec![look(3, 5), look(3, 9)]), 5);
        assert_eq!(progressed(vec![look(3, 5), look(4, 9)]), 9, "it applied more");
        assert_eq!(progressed(vec![look(3, 5), Seen { receives: true, ..look(3, 9) }]), 9, "it is sent a snapshot");
        assert_eq!(progressed(vec![look(3, 5), silent(7), look(3, 9)]), 5, "a look that found nothing is none");
        assert_eq!(progressed(vec![look(3, 5), look(0, 7), look(2, 9)]), 5, "started anew it applies the same again");
        assert_eq!(progressed(vec![silent(3), look(3, 5), look(3, 9)]), 5);
    }

    #[test]
    fn of_two_that_claim_to_lead_the_further_one_does() {
        let said = |seen: Vec<(Serial, Seen)>| Said {
            seen: seen.into_iter().collect(),
            list: None,
            overall: Overall::Unknown,
        };
        assert_eq!(said(vec![seen(0, false, 9)]).leader(), None);
        assert_eq!(
            said(vec![seen(0, true, 3), seen(1, true, 9), seen(2, false, 10)]).leader(),
            Some((Serial(1), MemberId(101)))
        );
    }

    #[tokio::test]
    async fn pods_that_do_not_answer_are_unknown_and_soon_so() {
        let (pod, ip, host) = (Uid::new("u"), IpAddr::from([127, 0, 0, 77]), "db-0".to_owned());
        let volume = Uid::new("claim-uid");
        let address = Address { pod, volume, ip, host, ticketed: true, terminating: false };
        let addresses = BTreeMap::from([(Serial(0), address)]);
        for access in [Some(Access::plaintext()), None] {
            let said = ask(&Pool::default(), access.as_ref(), &addresses, None).await;
            assert_eq!(said.seen[&Serial(0)].sight, Sight::Unknown);
            assert_eq!(said.list, None);
        }
    }
}
