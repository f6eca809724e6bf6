//! Builds worlds in sentences: `cluster(3).pod_gone(1)`. A scene starts out coherent and well; each word changes one
//! thing. Serial `s` has the member id `100 + s`, the pod `pod-s`, the claim `claim-s` and the node `node-s`.
#![allow(dead_code, reason = "each test that includes this speaks some of its words, not all")]

mod pods;
pub mod told;
pub mod versions;

use std::collections::{BTreeMap, BTreeSet};

use quorate_statemachine::{
    Alive, Claim, ClusterId, Entry, Freshness, Home, Image, Ledger, Life, Link, Listed, MemberId, MemberList,
    Membership, Memory, Millis, NodeName, NodeSight, Origin, Overall, Pod, PodStage, Readiness, Release, Resize,
    Retention, Role, RoleLabel, Roster, STOPS, Seat, Seeding, Serial, Sight, Standing, Start, Storage, TemplateHash,
    Ticket, Uid, Version, Wish, World,
};

pub const NOW: Millis = Millis(1_000_000_000);
pub const CLUSTER: ClusterId = ClusterId(7);
/// What the leader has committed.
pub const COMMITTED: u64 = 10_000;
/// Longer ago than any patience.
const LONG_AGO: u64 = 100_000_000;
const TEMPLATE: TemplateHash = TemplateHash(1);

pub fn id(serial: u32) -> MemberId {
    MemberId(100 + u64::from(serial))
}

pub fn claim_uid(serial: u32) -> Uid {
    Uid::new(&format!("claim-{serial}"))
}

pub fn pod_uid(serial: u32) -> Uid {
    Uid::new(&format!("pod-{serial}"))
}

pub fn node(serial: u32) -> NodeName {
    NodeName::new(&format!("node-{serial}"))
}

pub fn ids(serials: impl IntoIterator<Item = u32>) -> BTreeSet<MemberId> {
    serials.into_iter().map(id).collect()
}

/// These as voters.
pub fn voting(serials: impl IntoIterator<Item = u32>) -> Roster {
    serials.into_iter().map(|serial| (id(serial), Role::Voter)).collect()
}

/// What the members of a scene run.
pub const USUAL: Version = Version::new(6, 16);

/// The release of a version, in its usual image.
pub fn release(version: Version) -> Release {
    Release { version, image: Image::new(&format!("etcd:v{version}")) }
}

/// A world in the making.
#[derive(Clone, Debug)]
pub struct Scene {
    pub world: World,
}

/// A cluster that is wished for, and of which there is no trace.
pub fn wished(replicas: u8) -> Scene {
    let storage = Storage::Claims { on_delete: Retention::Delete, on_scale_down: Retention::Delete };
    Scene {
        world: World {
            now: NOW,
            freshness: Freshness::Quorum,
            wish: Wish {
                life: Life::Wanted,
                replicas,
                template: TEMPLATE,
                resources: TEMPLATE,
                release: release(USUAL),
                stops: STOPS.into_iter().map(|stop| (stop.minor, release(stop))).collect(),
                storage,
                quota: 2 << 30,
                origin: Origin::Nothing,
                snapshot_first: false,
            },
            memory: Memory::Blank,
            seats: BTreeMap::new(),
            nodes: BTreeMap::new(),
            cordoned: BTreeSet::new(),
            membership: Membership::Unknown,
            overall: Overall::Unknown,
            trials: Vec::new(),
            snapshots: BTreeMap::new(),
        },
    }
}

/// So many spares that wait, and no seed.
pub fn founding(replicas: u8) -> Scene {
    let mut scene = wished(replicas);
    scene.world.memory = Memory::Ledger(Ledger::default());
    (0..u32::from(replicas)).fold(scene, Scene::spare)
}

/// The same with serial 0 as the seed, told to start.
pub fn seeding(replicas: u8) -> Scene {
    let ticket = Ticket { start: Start::Seed, volume: claim_uid(0), mark: None, version: Some(USUAL) };
    founding(replicas)
        .ledger(|ledger| {
            ledger.seeding = Seeding::Begun(Serial(0));
            ledger.oldest_log = Some(USUAL.minor);
        })
        .entry(0, |entry| {
            entry.create = Some(claim_uid(0));
            entry.release = Some(release(USUAL));
            entry.node = Some(node(0));
        })
        .pod(0, |pod| pod.ticket = Some(ticket))
        .unheard(0)
}

/// So many voters, all well; serial 0 leads.
pub fn cluster(voters: u8) -> Scene {
    let mut scene = wished(voters);
    let oldest_log = Some(USUAL.minor);
    scene.world.memory = Memory::Ledger(Ledger { seeding: Seeding::Done(CLUSTER), oldest_log, ..Ledger::default() });
    scene.world.membership =
        Membership::Known(MemberList { cluster: CLUSTER, leader: Some(id(0)), members: BTreeMap::new() });
    (0..u32::from(voters)).fold(scene, Scene::voter)
}

fn etcd(serial: u32, learner: bool) -> Sight {
    Sight::Etcd(Alive {
        seen: NOW,
        process: Millis(NOW.0 - LONG_AGO),
        has_leader: true,
        leads: serial == 0,
        learner,
        committed: COMMITTED,
        applied: COMMITTED,
        progressed: Millis(NOW.0 - LONG_AGO),
        live: true,
        version: Some(USUAL),
        cluster_version: Some(USUAL.minor),
        storage: None,
        links: (0..7).map(|other| (id(other), Link::Counted)).collect(),
    })
}

/// Members and spares.
impl Scene {
    /// A spare whose launcher waits.
    pub fn spare(mut self, serial: u32) -> Self {
        self.world.nodes.insert(node(serial), NodeSight::Ready);
        let seat = match self.world.wish.storage {
            Storage::Claims { .. } => Seat { pod: Some(pod(serial, claim_uid(serial))), claim: Some(claim(serial)) },
            Storage::Ephemeral => Seat { pod: Some(pod(serial, pod_uid(serial))), claim: None },
        };
        self.world.seats.insert(Serial(serial), seat);
        self.entry(serial, |_| {}).ledger(|ledger| {
            ledger.next_serial = ledger.next_serial.max(Serial(serial + 1));
        })
    }

    /// A learner that was added and waits to be told to join.
    pub fn added(self, serial: u32) -> Self {
        let line = Listed { serial: Some(Serial(serial)), role: Role::Learner, started: false };
        self.spare(serial).listed(serial, line).entry(serial, |entry| entry.standing = Standing::Learner(id(serial)))
    }

    /// A learner that was told to join the members there are now, and has not come up.
    pub fn joining(self, serial: u32) -> Self {
        let scene = self.added(serial);
        let volume = scene.volume(serial);
        let start = Start::Join(scene.listed_ids());
        let ticket = Ticket { start, volume: volume.clone(), mark: None, version: Some(USUAL) };
        scene.created_on(serial, volume).unheard(serial).pod(serial, |pod| {
            pod.ticket = Some(ticket);
            pod.ticket_since = NOW;
        })
    }

    /// A learner that has joined and caught up.
    pub fn learner(self, serial: u32) -> Self {
        self.joining(serial).line(serial, |line| line.started = true).sees(serial, etcd(serial, true))
    }

    /// A voter, well, ready, labelled, up to date, able to resume.
    pub fn voter(self, serial: u32) -> Self {
        let scene = self.learner(serial).line(serial, |line| line.role = Role::Voter);
        let volume = scene.volume(serial);
        let scene = scene.sees(serial, etcd(serial, false));
        scene.entry(serial, |entry| entry.standing = Standing::Voter(id(serial))).pod(serial, |pod| {
            pod.ticket = Some(Ticket { start: Start::Resume, volume, mark: None, version: Some(USUAL) });
            pod.ticket_since = pod.created;
            pod.label = RoleLabel::Voter;
            pod.ready = true;
        })
    }

    fn created_on(self, serial: u32, volume: Uid) -> Self {
        self.entry(serial, |entry| {
            entry.create = Some(volume);
            entry.node = Some(node(serial));
            entry.release = Some(release(USUAL));
        })
    }

    fn volume(&self, serial: u32) -> Uid {
        match self.world.wish.storage {
            Storage::Claims { .. } => claim_uid(serial),
            Storage::Ephemeral => pod_uid(serial),
        }
    }
}

fn claim(serial: u32) -> Claim {
    Claim { uid: claim_uid(serial), ours: true, terminating: false, home: Home::Anywhere }
}

fn pod(serial: u32, volume: Uid) -> Pod {
    Pod {
        uid: pod_uid(serial),
        created: Millis(NOW.0 - LONG_AGO),
        node: Some(node(serial)),
        stage: PodStage::Running,
        terminating: false,
        trouble: None,
        volume,
        restores: false,
        ticket: None,
        ticket_since: Millis(0),
        template: TEMPLATE,
        resources: TEMPLATE,
        resize: Resize::Settled,
        release: Some(release(USUAL)),
        switching: false,
        label: RoleLabel::Absent,
        ready: false,
        sight: Sight::Waiting(None),
        heard: Millis(NOW.0 - LONG_AGO),
    }
}

/// What is wished for.
impl Scene {
    pub fn wish(mut self, replicas: u8) -> Self {
        self.world.wish.replicas = replicas;
        self
    }

    pub fn life(mut self, life: Life) -> Self {
        self.world.wish.life = life;
        self
    }

    /// etcd 3.5 takes one learner at a time.
    pub fn one_learner_at_a_time(self) -> Self {
        self.all_run(Version::new(5, 35))
    }

    /// The cluster is to begin with a backup.
    pub fn begins_with_backup(mut self, readiness: Readiness) -> Self {
        self.world.wish.origin = Origin::Backup(readiness);
        self
    }

    pub fn retaining(mut self) -> Self {
        self.world.wish.storage = Storage::Claims { on_delete: Retention::Retain, on_scale_down: Retention::Retain };
        self
    }

    /// Every member keeps its data on an emptyDir.
    pub fn on_empty_dirs(mut self) -> Self {
        self.world.wish.storage = Storage::Ephemeral;
        let serials: Vec<u32> = self.world.seats.keys().map(|serial| serial.0).collect();
        for seat in self.world.seats.values_mut() {
            seat.claim = None;
        }
        serials.into_iter().fold(self, |scene, serial| {
            let scene = scene.pod(serial, |pod| {
                pod.volume = pod_uid(serial);
                if let Some(ticket) = &mut pod.ticket {
                    ticket.volume = pod_uid(serial);
                }
            });
            scene.entry(serial, |entry| entry.create = entry.create.is_some().then(|| pod_uid(serial)))
        })
    }
}

/// What happens to claims and nodes.
impl Scene {
    pub fn claim(mut self, serial: u32, change: impl FnOnce(&mut Claim)) -> Self {
        if let Some(claim) = self.world.seats.get_mut(&Serial(serial)).and_then(|seat| seat.claim.as_mut()) {
            change(claim);
        }
        self
    }

    pub fn claim_gone(mut self, serial: u32) -> Self {
        if let Some(seat) = self.world.seats.get_mut(&Serial(serial)) {
            seat.claim = None;
        }
        self
    }

    /// Pod and claim.
    pub fn seat_gone(self, serial: u32) -> Self {
        let mut scene = self.pod_gone(serial);
        scene.world.seats.remove(&Serial(serial));
        scene
    }

    pub fn claim_terminating(self, serial: u32) -> Self {
        self.claim(serial, |claim| claim.terminating = true)
    }

    /// Another claim has its name now.
    pub fn claim_swapped(self, serial: u32) -> Self {
        self.claim(serial, |claim| claim.uid = Uid::new(&format!("other-claim-{serial}")))
    }

    /// A claim that was made for an earlier cluster of that name.
    pub fn claim_of_another(mut self, serial: u32) -> Self {
        let claim = Claim { uid: Uid::new("foreign"), ours: false, ..claim(serial) };
        self.world.seats.entry(Serial(serial)).or_default().claim = Some(claim);
        self
    }

    /// Its volume is usable only on its node.
    pub fn at_home(self, serial: u32) -> Self {
        self.claim(serial, |claim| claim.home = Home::Node(node(serial)))
    }

    pub fn node_not_ready(mut self, serial: u32) -> Self {
        self.world.nodes.insert(node(serial), NodeSight::NotReady(NOW));
        self
    }

    pub fn node_gone(mut self, serial: u32) -> Self {
        self.world.nodes.insert(node(serial), NodeSight::Gone);
        self
    }
}

/// What etcd and the ledger say.
impl Scene {
    /// Nobody gives a linearizable answer.
    pub fn unknown(mut self) -> Self {
        self.world.membership = Membership::Unknown;
        self
    }

    pub fn list(mut self, change: impl FnOnce(&mut MemberList)) -> Self {
        if let Membership::Known(list) = &mut self.world.membership {
            change(list);
        }
        self
    }

    fn listed(self, serial: u32, line: Listed) -> Self {
        self.list(|list| {
            list.members.insert(id(serial), line);
        })
    }

    pub fn line(self, serial: u32, change: impl FnOnce(&mut Listed)) -> Self {
        self.list(|list| {
            if let Some(line) = list.members.get_mut(&id(serial)) {
                change(line);
            }
        })
    }

    pub fn not_listed(self, serial: u32) -> Self {
        self.list(|list| {
            list.members.remove(&id(serial));
        })
    }

    pub fn led_by(self, serial: u32) -> Self {
        self.list(|list| list.leader = Some(id(serial)))
    }

    pub fn listed_ids(&self) -> BTreeSet<MemberId> {
        match &self.world.membership {
            Membership::Unknown => BTreeSet::new(),
            Membership::Known(list) => list.members.keys().copied().collect(),
        }
    }

    pub fn memory(mut self, memory: Memory) -> Self {
        self.world.memory = memory;
        self
    }

    pub fn ledger(mut self, change: impl FnOnce(&mut Ledger)) -> Self {
        if let Memory::Ledger(ledger) = &mut self.world.memory {
            change(ledger);
        }
        self
    }

    pub fn entry(self, serial: u32, change: impl FnOnce(&mut Entry)) -> Self {
        self.ledger(|ledger| change(ledger.members.entry(Serial(serial)).or_default()))
    }

    pub fn not_in_ledger(self, serial: u32) -> Self {
        self.ledger(|ledger| {
            ledger.members.remove(&Serial(serial));
        })
    }
}
