//! Clusters as they may be observed, for the tests of reports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use quorate_crds::{EtcdCluster, EtcdClusterSpec};
use quorate_statemachine::{
    Alive, ClusterId, Entry, Freshness, Ledger, Life, Listed, MemberId, MemberList, Membership, Memory, Millis,
    NodeName, NodeSight, Overall, Pod, PodStage, Release, Resize, Retention, Role, RoleLabel, Seat, Seeding, Serial,
    Sight, Standing, Storage, Ticket, Uid, Wish, World,
};

use crate::cluster::observe::archive::Archives;
use crate::cluster::observe::certificates::Tls;
use crate::cluster::observe::endpoints::Endpoints;
use crate::cluster::observe::pods::{Leaving, PodFacts};
use crate::cluster::observe::said::{Furthest, Said, Seen};
use crate::cluster::observe::verify::Proofs;
use crate::cluster::observe::{Furniture, Observed};
use crate::cluster::pki::Certificates;
use crate::cluster::render::{self, Audience};

/// The serials of the members.
pub const SERIALS: [Serial; 3] = [Serial(0), Serial(1), Serial(2)];
const NOW: Millis = Millis(1_000_000);
/// Until when the certificates are valid.
const UNTIL: Timestamp = Timestamp::constant(2_000_000_000, 0);

fn id(serial: Serial) -> MemberId {
    MemberId(100 + u64::from(serial.0))
}

fn release() -> Release {
    render::fixture::release()
}

fn alive(serial: Serial) -> Alive {
    Alive {
        seen: NOW,
        process: Millis(500),
        has_leader: true,
        leads: serial == Serial(0),
        learner: false,
        committed: 9,
        applied: 9,
        progressed: NOW,
        live: true,
        version: Some(release().version),
        cluster_version: Some(release().version.minor),
        storage: None,
        links: BTreeMap::new(),
    }
}

fn pod(serial: Serial, sight: Sight) -> Pod {
    let volume = Uid::new(&format!("claim-{serial}"));
    Pod {
        uid: Uid::new(&format!("pod-{serial}")),
        created: Millis(1),
        node: Some(NodeName::new("n1")),
        stage: PodStage::Running,
        terminating: false,
        trouble: None,
        volume: volume.clone(),
        restores: false,
        ticket: Some(Ticket {
            start: quorate_statemachine::Start::Resume,
            volume,
            mark: None,
            version: Some(release().version),
        }),
        ticket_since: Millis(1),
        template: render::hash(&EtcdClusterSpec::default()),
        resources: render::resources_hash(&EtcdClusterSpec::default()),
        resize: Resize::Settled,
        release: Some(release()),
        switching: false,
        label: RoleLabel::Voter,
        ready: true,
        sight,
        heard: Millis(1),
    }
}

fn facts(pod: &Pod) -> PodFacts {
    PodFacts {
        uid: pod.uid.clone(),
        resource_version: "1".into(),
        owner: Some("uid".into()),
        created: pod.created,
        node: pod.node.clone(),
        ip: Some(IpAddr::from([10, 0, 0, 1])),
        stage: pod.stage,
        leaving: if pod.terminating { Leaving::InGrace } else { Leaving::No },
        trouble: None,
        volume: pod.volume.clone(),
        restores: false,
        archive: Audience::Clients,
        ticket: None,
        template: pod.template,
        scheduling: None,
        settings: None,
        release: pod.release.clone(),
        container: None,
        switching: pod.switching,
        resources: pod.resources,
        resize_refused: None,
        resize_pending: None,
        label: pod.label,
        ready: pod.ready,
    }
}

fn seen(serial: Serial, pod: &Pod) -> Seen {
    Seen {
        pod: pod.uid.clone(),
        ip: IpAddr::from([10, 0, 0, 1]),
        sight: pod.sight.clone(),
        heard: pod.heard,
        refusal: None,
        version: Some("3.6.16".into()),
        member: Some(id(serial)),
        sent: BTreeMap::new(),
        receives: false,
        furthest: Furthest { applied: 9, at: NOW },
    }
}

fn ledger() -> Ledger {
    let entry = |serial: Serial| Entry {
        create: Some(Uid::new(&format!("claim-{serial}"))),
        mark: None,
        node: Some(NodeName::new("n1")),
        standing: Standing::Voter(id(serial)),
        release: Some(release()),
        former: None,
    };
    Ledger {
        seeding: Seeding::Done(ClusterId(77)),
        next_serial: Serial(3),
        members: SERIALS.into_iter().map(|serial| (serial, entry(serial))).collect(),
        oldest_log: Some(release().version.minor),
        logs_cut: false,
        failed: None,
    }
}

fn object() -> EtcdCluster {
    let mut object = EtcdCluster::new("db", EtcdClusterSpec::default());
    object.metadata.namespace = Some("ns".into());
    object.metadata.uid = Some("uid".into());
    object.metadata.generation = Some(4);
    object
}

/// Three healthy voters, as asked for.
pub fn healthy() -> Observed {
    let pods: BTreeMap<_, _> = SERIALS.into_iter().map(|s| (s, pod(s, Sight::Etcd(alive(s))))).collect();
    let listed = |serial: Serial| Listed { serial: Some(serial), role: Role::Voter, started: true };
    let list = MemberList {
        cluster: ClusterId(77),
        leader: Some(id(Serial(0))),
        members: SERIALS.into_iter().map(|serial| (id(serial), listed(serial))).collect(),
    };
    let seat = |pod: &Pod| {
        let claim = quorate_statemachine::Claim {
            uid: pod.volume.clone(),
            ours: true,
            terminating: false,
            home: quorate_statemachine::Home::Anywhere,
        };
        Seat { pod: Some(pod.clone()), claim: Some(claim) }
    };
    let storage = Storage::Claims { on_delete: Retention::Retain, on_scale_down: Retention::Delete };
    Observed {
        cluster: Arc::new(object()),
        world: World {
            now: NOW,
            freshness: Freshness::Cached,
            wish: Wish {
                origin: quorate_statemachine::Origin::Nothing,
                life: Life::Wanted,
                replicas: 3,
                template: render::hash(&EtcdClusterSpec::default()),
                resources: render::resources_hash(&EtcdClusterSpec::default()),
                release: release(),
                stops: BTreeMap::new(),
                storage,
                quota: 2 << 30,
                snapshot_first: false,
            },
            memory: Memory::Ledger(ledger()),
            seats: pods.iter().map(|(serial, pod)| (*serial, seat(pod))).collect(),
            nodes: BTreeMap::from([(NodeName::new("n1"), NodeSight::Ready)]),
            cordoned: BTreeSet::new(),
            membership: Membership::Known(list),
            overall: Overall::Unknown,
            trials: Vec::new(),
            snapshots: BTreeMap::new(),
        },
        pods: pods.iter().map(|(serial, pod)| (*serial, facts(pod))).collect(),
        trials: Vec::new(),
        snapshots: BTreeMap::new(),
        claims: BTreeMap::new(),
        missing_classes: BTreeSet::new(),
        delivery: crate::cluster::render::Delivery::InitContainer,
        endpoints: Endpoints::default(),
        archives: Archives::default(),
        proofs: Proofs::default(),
        furniture: Furniture::default(),
        tls: Tls {
            certificates: Certificates::Valid { secret: "db-0".into(), until: UNTIL, expiring: false },
            access: None,
        },
        said: Said {
            seen: pods.iter().map(|(serial, pod)| (*serial, seen(*serial, pod))).collect(),
            list: None,
            overall: Overall::Unknown,
        },
        backup: None,
    }
}

/// The same, with other sights of some members, and nobody giving a member list if `listed` is false.
pub fn sighted(sights: &[(Serial, Sight)], listed: bool) -> Observed {
    let mut observed = healthy();
    for (serial, sight) in sights {
        if let Some(pod) = observed.world.seats.get_mut(serial).and_then(|seat| seat.pod.as_mut()) {
            pod.sight.clone_from(sight);
        }
        if let Some(seen) = observed.said.seen.get_mut(serial) {
            seen.sight.clone_from(sight);
        }
    }
    if !listed {
        observed.world.membership = Membership::Unknown;
    }
    observed
}

/// The same, once this status has been written.
pub fn after(mut observed: Observed, status: quorate_crds::EtcdClusterStatus) -> Observed {
    let mut object = (*observed.cluster).clone();
    object.status = Some(status);
    observed.cluster = Arc::new(object);
    observed
}
