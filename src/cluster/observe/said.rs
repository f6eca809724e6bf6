//! What the members said, and what is kept of it from one look to the next: since when one is silent, how far it has come,
//! whether it is who should answer there. Nobody is asked here.

use std::collections::BTreeMap;
use std::net::IpAddr;

use quorate_backup::launch::Reason;
use quorate_statemachine::{MemberId, Millis, Overall, Serial, Sight, Uid};

use super::links::{self, Sent};

/// What was seen at one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// At which pod.
    pub pod: Uid,
    /// At which address.
    pub ip: IpAddr,
    /// What answered.
    pub sight: Sight,
    /// When something last answered there; where nothing does, when it was first looked at in vain.
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

impl Seen {
    /// It is a voter that leads or knows who does.
    pub fn sees_leader(&self) -> bool {
        match &self.sight {
            Sight::Etcd(alive) => alive.has_leader && !alive.learner,
            Sight::Unknown | Sight::Waiting(_) | Sight::Restoring(_) | Sight::Refused(_) => false,
        }
    }

    /// A pod at which nothing answers.
    pub fn nothing(pod: Uid, ip: IpAddr, heard: Millis) -> Self {
        Self {
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
}

/// What all members said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// What was seen at each pod that has an address.
    pub seen: BTreeMap<Serial, Seen>,
    /// The linearizable member list, if anybody gave one in time.
    pub list: Option<quorate_etcd::MemberList>,
    /// What was said of the whole, if anybody was asked who can tell: by the leader, and of a downgrade perhaps by another.
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
            match &mut seen.sight {
                // From the first look that it missed: before that nobody asked, perhaps for a minute.
                Sight::Unknown if before.sight == Sight::Unknown => seen.heard = before.heard,
                Sight::Etcd(now) => {
                    now.progressed = seen.furthest.at;
                    if let Sight::Etcd(then) = &before.sight {
                        links::compare((now, &mut seen.sent), (then, &before.sent));
                    }
                }
                Sight::Unknown | Sight::Waiting(_) | Sight::Restoring(_) | Sight::Refused(_) => {}
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
                *seen = Seen::nothing(seen.pod.clone(), seen.ip, seen.heard);
            }
        }
    }

    /// Who leads, as that member itself says: one that is in the list, if there is one. Of two, the one that has come
    /// further: the other has not heard yet.
    pub fn leader(&self) -> Option<(Serial, MemberId)> {
        let is_listed =
            |id: &MemberId| self.list.as_ref().is_none_or(|list| list.members.iter().any(|member| member.id.0 == id.0));
        let leading = self.seen.iter().filter_map(|(serial, seen)| match &seen.sight {
            Sight::Etcd(alive) if alive.leads => Some((alive.committed, *serial, seen.member.filter(is_listed)?)),
            Sight::Etcd(_) | Sight::Unknown | Sight::Waiting(_) | Sight::Restoring(_) | Sight::Refused(_) => None,
        });
        leading.max().map(|(_, serial, member)| (serial, member))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quorate_backup::launch::VERSION_DEADLINE;
    use quorate_statemachine::{Alive, Minor, START_PATIENCE_MS, Version};

    use super::*;

    /// And long enough before for a look or two.
    #[test]
    fn a_launcher_says_that_etcd_is_too_slow_before_its_learner_is_given_up() {
        let heard = VERSION_DEADLINE + Duration::from_secs(10);
        assert!(heard < Duration::from_millis(START_PATIENCE_MS), "{VERSION_DEADLINE:?}");
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
        let list = || quorate_etcd::MemberList {
            cluster: quorate_etcd::ClusterId(7),
            answered_by: quorate_etcd::MemberId(100),
            members: vec![listed(200)],
        };
        let mut earlier = BTreeMap::from([seen(0, true, 9)]);
        for at in [9, 12] {
            let mut now = seen(0, true, 9);
            now.1.heard = Millis(at);
            let mut said = Said { seen: [now].into(), list: Some(list()), overall: Overall::Unknown };
            said.disown_strangers(|_| Some(Serial(0)));
            said.recall(&earlier);
            earlier = said.seen;
        }
        assert_eq!(earlier[&Serial(0)].heard, Millis(9));
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
    fn silence_is_counted_from_the_first_look_that_the_same_pod_missed() {
        let look = |pod: &str, sight: Sight, heard: u64| {
            let (serial, seen) = seen(0, false, 9);
            BTreeMap::from([(serial, Seen { pod: Uid::new(pod), sight, heard: Millis(heard), ..seen })])
        };
        let heard = |earlier: &BTreeMap<Serial, Seen>, now: BTreeMap<Serial, Seen>| {
            let mut said = Said { seen: now, list: None, overall: Overall::Unknown };
            said.recall(earlier);
            said.seen[&Serial(0)].heard
        };
        let earlier = look("u", Sight::Unknown, 5);
        assert_eq!(heard(&earlier, look("u", Sight::Unknown, 9)), Millis(5));
        let answered = look("u", Sight::Waiting(None), 5);
        assert_eq!(heard(&answered, look("u", Sight::Unknown, 60_000)), Millis(60_000), "nobody asked for a minute");
        assert_eq!(heard(&earlier, look("u", Sight::Waiting(None), 9)), Millis(9), "it answers");
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
        let silent = |at: u64| Seen::nothing(Uid::new("u"), IpAddr::from([127, 0, 0, 1]), Millis(at));
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
}
