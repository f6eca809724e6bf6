//! Arbitrary worlds: some in which nothing fits together, some that were coherent before a few things happened.

pub mod rules;

use std::collections::BTreeSet;

use proptest::{collection, option, prelude::*, sample::select};
use quorate_statemachine::{
    Alive, Claim, ClusterId, Entry, Freshness, Home, Ledger, Life, Listed, MemberId, MemberList, Membership, Memory,
    Millis, NodeName, NodeSight, Pod, PodStage, Refusal, Retention, Role, Seat, Seeding, Serial, Sight, Standing,
    Start, Storage, TemplateHash, Ticket, Trouble, Uid, Wish, World,
};

use crate::scene::{NOW, Scene, cluster, founding, node, seeding};

/// Serials of members that may be there; those handed out since are above.
const SERIALS: u32 = 6;

/// A world in which nothing needs to fit together.
pub fn any_world() -> impl Strategy<Value = World> {
    let seats = collection::btree_map(serial(), seat(), 0..6);
    let nodes = collection::btree_map((0..SERIALS).prop_map(node), node_sight(), 0..6);
    (wish(), memory(), seats, nodes, membership(), select(vec![Freshness::Cached, Freshness::Quorum])).prop_map(
        |(wish, memory, seats, nodes, membership, freshness)| World {
            now: NOW,
            freshness,
            wish,
            memory,
            seats,
            nodes,
            membership,
        },
    )
}

fn serial() -> impl Strategy<Value = Serial> {
    prop_oneof![20 => (0..SERIALS).prop_map(Serial), 1 => Just(Serial(u32::MAX))]
}

fn member_id() -> impl Strategy<Value = MemberId> {
    (100..100 + u64::from(SERIALS)).prop_map(MemberId)
}

/// Few of them, so that they often match.
fn uid() -> impl Strategy<Value = Uid> {
    select(vec!["claim-0", "claim-1", "claim-2", "pod-0", "pod-1", "pod-2"]).prop_map(Uid::new)
}

fn node_name() -> impl Strategy<Value = NodeName> {
    (0..SERIALS).prop_map(node)
}

fn instant() -> impl Strategy<Value = Millis> {
    select(vec![0, 1, 400, 2_000, 61_000, 1_000_000]).prop_map(|age| Millis(NOW.0 - age))
}

fn retention() -> impl Strategy<Value = Retention> {
    select(vec![Retention::Retain, Retention::Delete])
}

fn storage() -> impl Strategy<Value = Storage> {
    prop_oneof![
        3 => (retention(), retention()).prop_map(|(on_delete, on_scale_down)| Storage::Claims { on_delete, on_scale_down }),
        1 => Just(Storage::Ephemeral),
    ]
}

fn wish() -> impl Strategy<Value = Wish> {
    let life = prop_oneof![8 => Just(Life::Wanted), 1 => Just(Life::Paused), 1 => Just(Life::Deleting)];
    (life, 0..=7_u8, 0..2_u64, 0..=2_u8, storage()).prop_map(|(life, replicas, template, max_learners, storage)| Wish {
        life,
        replicas,
        template: TemplateHash(template),
        max_learners,
        storage,
    })
}

fn seeding_state() -> impl Strategy<Value = Seeding> {
    prop_oneof![
        1 => Just(Seeding::NotBegun),
        1 => serial().prop_map(Seeding::Begun),
        4 => (7..9_u64).prop_map(|id| Seeding::Done(ClusterId(id))),
    ]
}

fn entry() -> impl Strategy<Value = Entry> {
    let standing = prop_oneof![
        Just(Standing::Spare),
        member_id().prop_map(Standing::Learner),
        member_id().prop_map(Standing::Voter)
    ];
    (option::of(uid()), option::of(node_name()), standing).prop_map(|(create, node, standing)| Entry {
        create,
        node,
        standing,
    })
}

fn memory() -> impl Strategy<Value = Memory> {
    let members = collection::btree_map(serial(), entry(), 0..6);
    prop_oneof![
        1 => Just(Memory::Blank),
        1 => Just(Memory::Unreadable),
        12 => (seeding_state(), serial(), members).prop_map(|(seeding, next_serial, members)| {
            Memory::Ledger(Ledger { seeding, next_serial, members })
        }),
    ]
}

fn claim() -> impl Strategy<Value = Claim> {
    let home = prop_oneof![2 => Just(Home::Anywhere), 1 => node_name().prop_map(Home::Node)];
    (uid(), prop::bool::weighted(0.8), prop::bool::weighted(0.2), home)
        .prop_map(|(uid, ours, terminating, home)| Claim { uid, ours, terminating, home })
}

fn ticket() -> impl Strategy<Value = Ticket> {
    let ids = collection::btree_set(member_id(), 0..4);
    let start = prop_oneof![Just(Start::Seed), ids.prop_map(Start::Join), Just(Start::Resume)];
    (start, uid()).prop_map(|(start, volume)| Ticket { start, volume })
}

fn refusal() -> impl Strategy<Value = Refusal> {
    select(vec![Refusal::VolumeLost, Refusal::VolumeForeign, Refusal::Other])
}

fn alive() -> impl Strategy<Value = Alive> {
    let index = || select(vec![0, 9_900, 10_000_u64]);
    let flags = (prop::bool::weighted(0.8), any::<bool>(), any::<bool>(), prop::bool::weighted(0.8));
    (instant(), instant(), flags, index(), index()).prop_map(
        |(seen, process, (has_leader, leads, learner, live), committed, applied)| Alive {
            seen,
            process,
            has_leader,
            leads,
            learner,
            committed,
            applied,
            live,
        },
    )
}

fn sight() -> impl Strategy<Value = Sight> {
    prop_oneof![
        1 => Just(Sight::Unknown),
        1 => Just(Sight::Waiting),
        1 => refusal().prop_map(Sight::Refused),
        3 => alive().prop_map(Sight::Etcd),
    ]
}

fn pod() -> impl Strategy<Value = Pod> {
    let stage = select(vec![PodStage::Pending, PodStage::Running, PodStage::Running, PodStage::Finished]);
    let trouble = select(vec![Trouble::ImageMissing, Trouble::Unschedulable, Trouble::ContainerFailing]);
    let what = (uid(), instant(), option::of(node_name()), stage, prop::bool::weighted(0.2));
    let says = (option::weighted(0.2, trouble), sight(), instant(), any::<bool>(), any::<bool>());
    let made = (uid(), option::of(ticket()), instant(), 0..2_u64);
    (what, says, made).prop_map(|(what, says, made)| {
        let (uid, created, node, stage, terminating) = what;
        let (trouble, sight, heard, labelled_voter, ready) = says;
        let (volume, ticket, ticket_since, template) = made;
        let template = TemplateHash(template);
        Pod {
            uid,
            created,
            node,
            stage,
            terminating,
            trouble,
            volume,
            ticket,
            ticket_since,
            template,
            labelled_voter,
            ready,
            sight,
            heard,
        }
    })
}

fn seat() -> impl Strategy<Value = Seat> {
    (option::weighted(0.8, pod()), option::weighted(0.8, claim())).prop_map(|(pod, claim)| Seat { pod, claim })
}

fn node_sight() -> impl Strategy<Value = NodeSight> {
    prop_oneof![3 => Just(NodeSight::Ready), 1 => instant().prop_map(NodeSight::NotReady), 1 => Just(NodeSight::Gone)]
}

fn membership() -> impl Strategy<Value = Membership> {
    let line = (option::weighted(0.95, serial()), select(vec![Role::Voter, Role::Learner]), any::<bool>())
        .prop_map(|(serial, role, started)| Listed { serial, role, started });
    let list = (7..9_u64, option::of(member_id()), collection::btree_map(member_id(), line, 0..5))
        .prop_map(|(cluster, leader, members)| MemberList { cluster: ClusterId(cluster), leader, members });
    prop_oneof![1 => Just(Membership::Unknown), 4 => list.prop_map(Membership::Known)]
}

/// A world that was coherent before a few things happened to it.
pub fn plausible_world() -> impl Strategy<Value = World> {
    let start = prop_oneof![
        1 => (1..=3_u8).prop_map(founding),
        1 => (1..=3_u8).prop_map(seeding),
        1 => (1..=5_u8).prop_map(|voters| (0..u32::from(voters)).fold(cluster(voters), Scene::pod_gone).unknown()),
        6 => (1..=5_u8, collection::vec(0..4_u8, 0..3)).prop_map(|(voters, others)| {
            others.into_iter().zip(u32::from(voters)..).fold(cluster(voters), |scene, (other, serial)| match other {
                0 => scene.spare(serial),
                1 => scene.added(serial),
                2 => scene.joining(serial),
                _ => scene.learner(serial),
            })
        }),
    ];
    let wish = select(vec![0, 1, 3, 3, 5, 5, 7_u8]);
    let life = prop_oneof![12 => Just(Life::Wanted), 1 => Just(Life::Paused), 1 => Just(Life::Deleting)];
    let settings = (wish, life, prop::bool::weighted(0.15), any::<bool>(), any::<bool>());
    (start, settings, collection::vec((event(), 0..7_u32), 0..6)).prop_map(|(scene, settings, events)| {
        let (wish, life, ephemeral, one_learner, retain) = settings;
        let scene = scene.wish(wish).life(life);
        let scene = if one_learner { scene.one_learner_at_a_time() } else { scene };
        let scene = if retain { scene.retaining() } else { scene };
        let scene = if ephemeral { scene.on_empty_dirs() } else { scene };
        events.into_iter().fold(scene, |scene, (event, serial)| event(scene, serial)).world
    })
}

type Event = fn(Scene, u32) -> Scene;

/// What can happen to a serial.
fn event() -> impl Strategy<Value = Event> {
    let events: Vec<Event> = vec![
        Scene::pod_gone,
        Scene::pod_terminating,
        Scene::pod_finished,
        Scene::unheard,
        Scene::waiting,
        Scene::outdated,
        Scene::unschedulable,
        Scene::claim_gone,
        Scene::claim_terminating,
        Scene::claim_swapped,
        Scene::claim_of_another,
        Scene::seat_gone,
        Scene::at_home,
        Scene::node_not_ready,
        Scene::node_gone,
        Scene::not_listed,
        Scene::not_in_ledger,
        Scene::led_by,
        |scene, serial| scene.pod(serial, |pod| pod.labelled_voter = !pod.labelled_voter),
        |scene, _| scene.unknown(),
        |scene, serial| scene.refused(serial, Refusal::VolumeLost),
        |scene, serial| scene.refused(serial, Refusal::VolumeForeign),
        |scene, serial| scene.refused(serial, Refusal::Other),
        |scene, serial| scene.trouble(serial, Trouble::ContainerFailing),
        |scene, serial| scene.ticket(serial, Start::Join(BTreeSet::new())),
        |scene, serial| scene.ticket(serial, Start::Resume),
        |scene, serial| scene.ticket_age(serial, 61_000),
        |scene, serial| scene.etcd(serial, |alive| alive.applied = 0),
        |scene, serial| scene.etcd(serial, |alive| alive.seen = Millis(NOW.0 - 501)),
        |scene, serial| scene.etcd(serial, |alive| alive.has_leader = false),
        |scene, serial| scene.line(serial, |line| line.started = !line.started),
        |scene, serial| scene.entry(serial, |entry| entry.create = None),
    ];
    select(events)
}
