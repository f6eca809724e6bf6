//! Arbitrary worlds: some in which nothing fits together, some that were coherent before a few things happened.

pub mod rules;

use std::collections::{BTreeMap, BTreeSet};

use proptest::{collection, option, prelude::*, sample::select};
use quorate_statemachine::{
    Alarm, Alive, Claim, ClusterId, Entry, Failed, Freshness, Home, Image, Ledger, Life, Link, Listed, Mark, MemberId,
    MemberList, Membership, Memory, Millis, Minor, NodeName, NodeSight, Origin, Outcome, Overall, Pod, PodStage,
    Readiness, Refusal, Release, Resize, Restore, Retention, Role, RoleLabel, STOPS, Saved, Seat, Seeding, Serial,
    Sight, Standing, Start, Storage, TemplateHash, Ticket, Trial, Trouble, Uid, Version, Wish, World,
};

use crate::scene::{self, NOW, Scene, cluster, founding, node, seeding};

/// Serials of members that may be there; those handed out since are above.
const SERIALS: u32 = 6;

/// A world in which nothing needs to fit together.
pub fn any_world() -> impl Strategy<Value = World> {
    let seats = collection::btree_map(serial(), seat(), 0..6);
    let nodes = collection::btree_map((0..SERIALS).prop_map(node), node_sight(), 0..6);
    let cordoned = collection::btree_set((0..SERIALS).prop_map(node), 0..3);
    let snapshots = collection::btree_map(minor(), select(vec![Saved::UnderWay, Saved::Taken, Saved::Failed]), 0..3);
    let etcd = (membership(), overall(), collection::vec(trial(), 0..4), snapshots);
    let freshness = select(vec![Freshness::Cached, Freshness::Quorum]);
    (wish(), memory(), seats, (nodes, cordoned), etcd, freshness).prop_map(
        |(wish, memory, seats, (nodes, cordoned), (membership, overall, trials, snapshots), freshness)| World {
            now: NOW,
            freshness,
            wish,
            memory,
            seats,
            nodes,
            cordoned,
            membership,
            overall,
            trials,
            snapshots,
        },
    )
}

fn minor() -> impl Strategy<Value = Minor> {
    (4..9_u16).prop_map(Minor)
}

/// Few of them, so that they often match; some below a floor, some of a minor that nobody knows.
fn version() -> impl Strategy<Value = Version> {
    let known = vec![(5, 20), (5, 35), (6, 5), (6, 16), (6, 17), (7, 1), (7, 3), (8, 0)];
    select(known).prop_map(|(minor, patch)| Version::new(minor, patch))
}

fn release() -> impl Strategy<Value = Release> {
    (version(), prop::bool::weighted(0.1)).prop_map(|(version, mirrored)| {
        let usual = scene::release(version);
        if mirrored { Release { image: Image::new("mirror"), ..usual } } else { usual }
    })
}

fn overall() -> impl Strategy<Value = Overall> {
    let alarm = option::weighted(0.1, select(vec![Alarm::NoSpace, Alarm::Corrupt]));
    let known = (option::weighted(0.4, minor()), alarm.clone());
    prop_oneof![
        1 => Just(Overall::Unknown),
        1 => alarm.prop_map(Overall::OfAlarms),
        5 => known.prop_map(|(downgrade, alarm)| Overall::Known { downgrade, alarm }),
    ]
}

fn trial() -> impl Strategy<Value = Trial> {
    let outcomes = vec![
        Outcome::Open,
        Outcome::Passed,
        Outcome::ImageMissing,
        Outcome::ImageUnreachable,
        Outcome::AgentImageMissing,
        Outcome::Failed,
        Outcome::Undecided,
        Outcome::Passed,
    ];
    let what = (serial(), uid(), release(), 0..2_u64, node_name());
    (what, instant(), any::<bool>(), select(outcomes)).prop_map(
        |((serial, uid, release, template, node), created, terminating, outcome)| Trial {
            serial,
            uid,
            release,
            template: TemplateHash(template),
            node,
            created,
            terminating,
            outcome,
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
    let hashes = (0..2_u64, 0..2_u64);
    let stops = prop::bool::weighted(0.9);
    (life, 0..=7_u8, hashes, release(), stops, storage(), (origin(), any::<bool>())).prop_map(
        |(life, replicas, (template, resources), release, stops, storage, (origin, snapshot_first))| Wish {
            life,
            replicas,
            template: TemplateHash(template),
            resources: TemplateHash(resources),
            release,
            stops: STOPS.into_iter().filter(|_| stops).map(|stop| (stop.minor, scene::release(stop))).collect(),
            storage,
            quota: 2 << 30,
            origin,
            snapshot_first,
        },
    )
}

fn origin() -> impl Strategy<Value = Origin> {
    let backup = readiness().prop_map(Origin::Backup);
    prop_oneof![1 => Just(Origin::Nothing), 1 => backup]
}

fn readiness() -> impl Strategy<Value = Readiness> {
    select(vec![Readiness::Ready, Readiness::Ready, Readiness::Awaited, Readiness::Unfit])
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
    let releases = (option::of(release()), option::of(release()));
    (option::of((uid(), option::of(mark()))), option::of(node_name()), standing, releases).prop_map(
        |(volume, node, standing, (release, former))| {
            let (create, mark) = volume.map_or((None, None), |(create, mark)| (Some(create), mark));
            Entry { create, mark, node, standing, release, former }
        },
    )
}

fn memory() -> impl Strategy<Value = Memory> {
    let members = collection::btree_map(serial(), entry(), 0..6);
    prop_oneof![
        1 => Just(Memory::Blank),
        1 => Just(Memory::Unreadable),
        12 => (seeding_state(), serial(), members, (option::of(minor()), any::<bool>()), option::of(failed())).prop_map(
            |(seeding, next_serial, members, (oldest_log, logs_cut), failed)| {
                Memory::Ledger(Ledger { seeding, next_serial, members, oldest_log, logs_cut, failed })
            }
        ),
    ]
}

fn failed() -> impl Strategy<Value = Failed> {
    (release(), release(), serial()).prop_map(|(release, wished, serial)| Failed { release, wished, serial })
}

fn claim() -> impl Strategy<Value = Claim> {
    let home = prop_oneof![2 => Just(Home::Anywhere), 1 => node_name().prop_map(Home::Node)];
    (uid(), prop::bool::weighted(0.8), prop::bool::weighted(0.2), home)
        .prop_map(|(uid, ours, terminating, home)| Claim { uid, ours, terminating, home })
}

fn ticket() -> impl Strategy<Value = Ticket> {
    let ids = collection::btree_set(member_id(), 0..4);
    let start = prop_oneof![Just(Start::Seed), ids.prop_map(Start::Join), Just(Start::Resume)];
    (start, uid(), option::of(mark()), option::of(version())).prop_map(|(start, volume, mark, version)| {
        let mark = mark.filter(|_| start != Start::Resume);
        Ticket { start, volume, mark, version }
    })
}

fn mark() -> impl Strategy<Value = Mark> {
    select(vec!["m1", "m2"]).prop_map(Mark::new)
}

fn refusal() -> impl Strategy<Value = Refusal> {
    let all = [Refusal::VolumeLost, Refusal::NoEntry, Refusal::VolumeForeign, Refusal::Binary, Refusal::Other];
    select(all.to_vec())
}

fn links() -> impl Strategy<Value = BTreeMap<MemberId, Link>> {
    prop::collection::btree_map(member_id(), select(vec![Link::Counted, Link::Counted, Link::Overlooked]), 0..7)
}

fn alive() -> impl Strategy<Value = Alive> {
    let index = || select(vec![0, 9_900, 10_000_u64]);
    let flags = (prop::bool::weighted(0.8), any::<bool>(), any::<bool>(), prop::bool::weighted(0.8));
    let versions = (option::of(version()), option::of(minor()), option::of(minor()), links());
    (instant(), instant(), instant(), flags, index(), index(), versions).prop_map(
        |(seen, process, progressed, (has_leader, leads, learner, live), committed, applied, versions)| Alive {
            seen,
            process,
            has_leader,
            leads,
            learner,
            committed,
            applied,
            progressed,
            live,
            version: versions.0,
            cluster_version: versions.1,
            storage: versions.2,
            links: versions.3,
        },
    )
}

fn sight() -> impl Strategy<Value = Sight> {
    prop_oneof![
        1 => Just(Sight::Unknown),
        1 => option::of(mark()).prop_map(Sight::Waiting),
        1 => select(vec![Restore::UnderWay, Restore::Fails]).prop_map(Sight::Restoring),
        1 => refusal().prop_map(Sight::Refused),
        3 => alive().prop_map(Sight::Etcd),
    ]
}

fn pod() -> impl Strategy<Value = Pod> {
    let stage = select(vec![PodStage::Pending, PodStage::Running, PodStage::Running, PodStage::Finished]);
    let trouble = select(vec![
        Trouble::ImageMissing,
        Trouble::ImageUnreachable,
        Trouble::AgentImageMissing,
        Trouble::Unschedulable,
        Trouble::ContainerFailing,
        Trouble::ContainerKilled,
        Trouble::BesideFailing,
    ]);
    let label = select(vec![RoleLabel::Absent, RoleLabel::Returning, RoleLabel::Voter]);
    let what = (uid(), instant(), option::of(node_name()), stage, prop::bool::weighted(0.2));
    let says = (option::weighted(0.2, trouble), sight(), instant(), label, any::<bool>());
    let made = (uid(), option::of(ticket()), instant(), 0..2_u64, prop::bool::weighted(0.3));
    let resize = select(vec![Resize::Settled, Resize::Settled, Resize::NoRoom, Resize::Refused]);
    let runs = (0..2_u64, resize, option::weighted(0.9, release()), prop::bool::weighted(0.2));
    (what, says, made, runs).prop_map(|(what, says, made, (resources, resize, release, switching))| {
        let (uid, created, node, stage, terminating) = what;
        let (trouble, sight, heard, label, ready) = says;
        let (volume, ticket, ticket_since, template, restores) = made;
        let template = TemplateHash(template);
        Pod {
            uid,
            created,
            node,
            stage,
            terminating,
            trouble,
            volume,
            restores,
            ticket,
            ticket_since,
            template,
            resources: TemplateHash(resources),
            resize,
            release,
            switching,
            label,
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
        1 => (1..=3_u8, readiness()).prop_map(|(voters, readiness)| founding(voters).begins_with_backup(readiness)),
        1 => (1..=3_u8).prop_map(|voters| founding(voters).begins_with_backup(Readiness::Ready).restored(0)),
        1 => (1..=3_u8).prop_map(|voters| seeding(voters).begins_with_backup(Readiness::Ready).restored(0)),
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
    let versions = (
        select(vec![5, 6, 6, 6, 7_u16]),
        option::of(select(vec![5, 6, 7_u16])),
        option::of(minor()),
        (prop::bool::weighted(0.2), prop::bool::weighted(0.3)),
    );
    (start, settings, versions, collection::vec((event(), 0..7_u32), 0..6)).prop_map(
        |(scene, settings, versions, events)| {
            let (wish, life, ephemeral, one_learner, retain) = settings;
            let stop = |minor: u16| STOPS[usize::from(minor) - 5];
            let (from, to, oldest_log, (larger, snapshot_first)) = versions;
            let to = to.unwrap_or(from);
            let scene = if one_learner { scene.one_learner_at_a_time() } else { scene.all_run(stop(from)) };
            let scene = scene.wish(wish).life(life).ledger(|ledger| ledger.oldest_log = oldest_log);
            let scene = if to == from || one_learner { scene } else { scene.wish_version(stop(to)).asked() };
            let serials = 0..if larger { SERIALS } else { 0 };
            let scene = serials.fold(scene, Scene::of_other_size);
            let scene = if from.abs_diff(to) == 1 { scene.all_tried(stop(to)) } else { scene };
            let scene = if snapshot_first { scene.snapshot_first() } else { scene };
            let scene = if retain { scene.retaining() } else { scene };
            let scene = if ephemeral { scene.on_empty_dirs() } else { scene };
            events.into_iter().fold(scene, |scene, (event, serial)| event(scene, serial)).world
        },
    )
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
        |scene, serial| scene.pod_pending(serial, 1_000),
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
        |scene, serial| scene.pod(serial, |pod| pod.label = RoleLabel::Absent),
        |scene, serial| scene.pod(serial, |pod| pod.label = RoleLabel::Returning),
        |scene, _| scene.unknown(),
        |scene, serial| scene.refused(serial, Refusal::VolumeLost),
        |scene, serial| scene.refused(serial, Refusal::VolumeForeign),
        |scene, serial| scene.refused(serial, Refusal::Binary),
        |scene, serial| scene.refused(serial, Refusal::Other),
        |scene, serial| scene.restoring(serial, Restore::UnderWay),
        |scene, serial| scene.restoring(serial, Restore::Fails),
        Scene::restored,
        |scene, serial| scene.trouble(serial, Trouble::ContainerFailing),
        |scene, serial| scene.trouble(serial, Trouble::ContainerKilled),
        |scene, serial| scene.trouble(serial, Trouble::BesideFailing),
        |scene, serial| scene.ticket(serial, Start::Join(BTreeSet::new())),
        |scene, serial| scene.ticket(serial, Start::Resume),
        |scene, serial| scene.ticket_age(serial, 61_000),
        |scene, serial| scene.etcd(serial, |alive| alive.applied = 0),
        |scene, serial| scene.etcd(serial, |alive| alive.seen = Millis(NOW.0 - 10_001)),
        |scene, serial| scene.etcd(serial, |alive| alive.has_leader = false),
        |scene, serial| scene.line(serial, |line| line.started = !line.started),
        |scene, serial| scene.entry(serial, |entry| entry.create = None),
        Scene::of_other_size,
        Scene::switching,
        Scene::cordoned,
        Scene::crashing,
        |scene, serial| scene.resize(serial, Resize::Refused),
        |scene, serial| scene.resize(serial, Resize::NoRoom),
        |scene, serial| scene.told(serial, STOPS[2]),
        |scene, serial| scene.runs(serial, STOPS[2]),
        |scene, serial| scene.runs(serial, STOPS[1]),
        |scene, serial| scene.runs(serial, STOPS[0]),
        |scene, serial| scene.told(serial, STOPS[1]),
        |scene, serial| scene.disconnected(serial, u32::from(serial == 0)),
        |scene, serial| scene.etcd(serial, |alive| alive.cluster_version = None),
        |scene, _| scene.runs_at(Minor(5)),
        |scene, _| scene.runs_at(Minor(6)),
        |scene, _| scene.runs_at(Minor(7)),
        |scene, _| scene.stored_as(Minor(6)),
        |scene, _| scene.stored_as(Minor(5)),
        |scene, _| scene.asked(),
        |scene, _| scene.alarmed(Alarm::NoSpace),
        |scene, _| scene.downgrade_to(Minor(6)),
        |scene, _| scene.downgrade_to(Minor(5)),
        |scene, serial| scene.has_failed(STOPS[2], serial),
    ];
    select(events)
}
