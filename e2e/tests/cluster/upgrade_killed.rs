//! Ways to another version, up and down, with the operators, a member's pod or both killed at every step of them, under a
//! writer and at rest.

use std::cell::RefCell;
use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use quorate_crds::{ConditionType, LedgerRelease, Phase};
use quorate_e2e::faults::operator::Operator;
use quorate_e2e::faults::pods;
use quorate_e2e::scene::{Cluster, Scene, Stage, View, Wish, Writer, Written, play};

use super::roll::{judge, tell};
use super::upgrade::{LONG_WAY, V3_5, V3_6, V3_7, ended_by_themselves, versions, wish_for};

/// At each step of the way all operators are killed. The members serve all the while.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_way_ends_well_with_the_operators_killed_at_every_step() -> Result<()> {
    play("upgrade_killed", Stage::Alone, async |scene| {
        let operator = Operator::new(scene.client());
        let (db, written) = busy(scene, &UP, async |_, _, _| operator.delete_pods().await).await?;
        judge("up, with the operators killed", &written, &db).await
    })
    .await
}

/// So on the way down, on which etcd's own downgrade is enabled.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_way_down_ends_well_with_the_operators_killed_at_every_step() -> Result<()> {
    play("upgrade_down_killed", Stage::Alone, async |scene| {
        let operator = Operator::new(scene.client());
        let (db, written) = busy(scene, &DOWN, async |_, _, _| operator.delete_pods().await).await?;
        judge("down, with the operators killed", &written, &db).await
    })
    .await
}

/// The same with the pod of a member besides.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_way_down_ends_well_with_operators_and_pods_killed_at_every_step() -> Result<()> {
    play("upgrade_down_both", Stage::Alone, async |scene| {
        let operator = Operator::new(scene.client());
        let (db, written) = busy(scene, &DOWN, async |db, view, nth| {
            operator.delete_pods().await?;
            kill_one(db, view, nth).await
        })
        .await?;
        // How soon a pod is made again is a matter of the next operator here.
        tell("with operators and pods killed", &written);
        written.check(&db).await
    })
    .await
}

/// Kills the pods of members in turn: of whoever was told last, of the leader, and of who is next; and counts.
struct Victims {
    killed: RefCell<BTreeMap<Victim, u32>>,
}

impl Victims {
    fn new() -> Self {
        Self { killed: RefCell::new(BTreeMap::from(Victim::ALL.map(|victim| (victim, 0)))) }
    }

    async fn kill(&self, db: &Cluster, view: &View, nth: usize) -> Result<()> {
        let due = Victim::ALL[nth % Victim::ALL.len()];
        // One that was killed at the step before may have no pod yet.
        match due.of(view).filter(|name| view.pods.contains_key(name)) {
            Some(name) => {
                self.killed.borrow_mut().entry(due).and_modify(|count| *count += 1);
                pods::delete_by_force(db, &[&name]).await
            }
            None => kill_one(db, view, nth).await,
        }
    }

    fn were_each_killed(self) -> Result<()> {
        let killed = self.killed.into_inner();
        eprintln!("killed: {killed:?}");
        ensure!(killed.values().all(|count| *count > 0), "not each was killed: {killed:?}");
        Ok(())
    }
}

/// At each step of the way the pod of a member is killed, under a writer.
async fn busy_with_pods_killed(scene: &Scene, way: &Way) -> Result<()> {
    let victims = Victims::new();
    let (db, written) = busy(scene, way, async |db, view, nth| victims.kill(db, view, nth).await).await?;
    victims.were_each_killed()?;
    tell("with a pod killed at every step", &written);
    written.check(&db).await?;
    written.outlived_two_members()
}

/// The same at rest: what is written makes members take snapshots, and nobody does that for them here.
async fn idle_with_pods_killed(scene: &Scene, way: &Way) -> Result<()> {
    let victims = Victims::new();
    idle(scene, way, async |db, view, nth| victims.kill(db, view, nth).await).await?;
    victims.were_each_killed()
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_way_ends_well_with_a_pod_killed_at_every_step() -> Result<()> {
    play("upgrade_pods", Stage::Alone, async |scene| busy_with_pods_killed(scene, &UP).await).await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_way_down_ends_well_with_a_pod_killed_at_every_step() -> Result<()> {
    play("upgrade_down_pods", Stage::Alone, async |scene| busy_with_pods_killed(scene, &DOWN).await).await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn an_idle_way_ends_well_with_a_pod_killed_at_every_step() -> Result<()> {
    play("upgrade_idle_pods", Stage::Shared, async |scene| idle_with_pods_killed(scene, &UP).await).await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn an_idle_way_down_ends_well_with_a_pod_killed_at_every_step() -> Result<()> {
    play("upgrade_down_idle_pods", Stage::Shared, async |scene| idle_with_pods_killed(scene, &DOWN).await).await
}

/// Whose pod is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Leader,
    /// Who was told last to run another version: they are told from the highest number down.
    ToldLast,
    /// Who is next to be told.
    Next,
}

impl Victim {
    const ALL: [Self; 3] = [Self::ToldLast, Self::Leader, Self::Next];

    /// Its name, if there is one at this step.
    fn of(self, view: &View) -> Option<String> {
        let status = view.status();
        let target = status.target_version?;
        let members = status.ledger?.members;
        let is_told = |release: &Option<LedgerRelease>| release.as_ref().is_some_and(|told| told.version == target);
        let with = |told: bool| members.iter().filter(move |(_, member)| is_told(&member.release) == told);
        match self {
            Self::Leader => status.leader,
            Self::ToldLast => with(true).map(|(name, _)| name).min().cloned(),
            Self::Next => with(false).map(|(name, _)| name).max().cloned(),
        }
    }
}

/// At each step of the way all operators are killed, and the pod of a member besides.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_way_ends_well_with_operators_and_pods_killed_at_every_step() -> Result<()> {
    play("upgrade_both", Stage::Alone, async |scene| {
        let operator = Operator::new(scene.client());
        let (db, written) = busy(scene, &UP, async |db, view, nth| {
            operator.delete_pods().await?;
            kill_one(db, view, nth).await
        })
        .await?;
        // How soon a pod is made again is a matter of the next operator here.
        tell("with operators and pods killed", &written);
        written.check(&db).await
    })
    .await
}

async fn kill_one(db: &Cluster, view: &View, nth: usize) -> Result<()> {
    let name = view.pods.keys().nth(nth % view.pods.len().max(1)).context("there are no pods")?;
    pods::delete_by_force(db, &[name]).await
}

/// A way of three members to another version, or two.
struct Way {
    /// What is wished, one after the other.
    wishes: &'static [&'static str],
    /// How many steps it has at least.
    least: usize,
    /// Whether this is the step without which it was not that way.
    comes_by: fn(&Step) -> bool,
}

/// Each minor is the target before anybody is told, and then three members are told, one after the other.
const STEPS_OF_A_MINOR: usize = 1 + 3;
/// A jump of two minors is walked step by step. Between them the logs are cut.
const UP: Way = Way { wishes: &[V3_5, V3_7], least: 2 * STEPS_OF_A_MINOR + 1, comes_by: |step| step.logs_cut };
/// One minor is asked for at a time.
const DOWN: Way =
    Way { wishes: &[V3_7, V3_6, V3_5], least: 2 * STEPS_OF_A_MINOR, comes_by: |step| step.lowering.is_some() };
/// More steps than any way has: at each, three may lead, images are tried, and etcd may be seen to lower the version.
const MOST_STEPS: usize = 90;

/// A way under a writer, with a fault at each step. What was written on it is to be judged.
async fn busy(
    scene: &Scene,
    way: &Way,
    fault: impl AsyncFn(&Cluster, &View, usize) -> Result<()>,
) -> Result<(Cluster, Written)> {
    let db = at_the_begin(scene, way).await?;
    let writer = Writer::start_hasty(&db, "w").await?;
    goes_with_faults(&db, way, fault).await?;
    Ok((db, writer.stop().await?))
}

/// A way on which nobody writes, with a fault at each step. What was written before is there.
async fn idle(scene: &Scene, way: &Way, fault: impl AsyncFn(&Cluster, &View, usize) -> Result<()>) -> Result<()> {
    let db = at_the_begin(scene, way).await?;
    db.put("hello", "world").await?;
    goes_with_faults(&db, way, fault).await?;
    db.reads("hello", "world").await
}

async fn at_the_begin(scene: &Scene, way: &Way) -> Result<Cluster> {
    let first = way.wishes.first().context("a way without a begin")?;
    let db = scene.create(&Wish::new("db", 3).version(first)).await?;
    db.settles(3).await?;
    Ok(db)
}

/// A way with a fault at each step that it takes. It ends, with the same members, and none ended by itself.
async fn goes_with_faults(
    db: &Cluster,
    way: &Way,
    fault: impl AsyncFn(&Cluster, &View, usize) -> Result<()>,
) -> Result<()> {
    let before = db.identities().await?;
    let (mut faults, mut tried, mut came_by) = (0, 0, false);
    for to in way.wishes.iter().skip(1) {
        let mut seen = vec![Step::of(&db.view().await?)];
        wish_for(db, to).await?;
        while let Some(view) = next_step(db, &seen, to).await? {
            ensure!(faults < MOST_STEPS, "after {faults} faults it is not there: {}", view.summary());
            none_ended_by_itself(&view)?;
            let step = Step::of(&view);
            came_by |= (way.comes_by)(&step);
            tried += usize::from(step.tries.is_some());
            seen.push(step);
            fault(db, &view, faults).await?;
            faults += 1;
        }
        db.settles(3).await?;
        none_ended_by_itself(&db.view().await?)?;
    }
    eprintln!("{faults} faults on the way, {tried} of them while an image was tried");
    ensure!(faults >= way.least, "the way {:?} has {} steps at least, not {faults}", way.wishes, way.least);
    ensure!(came_by, "on the way {:?} the logs were not cut, or the version was not seen to be lowered", way.wishes);
    ensure!(tried > 0, "on the way {:?} no image was seen to be tried", way.wishes);
    db.is_the_same_as(&before).await
}

/// Demands that each etcd that has ended was told to, or killed. What a pod knew that is gone by now, nobody tells.
fn none_ended_by_itself(view: &View) -> Result<()> {
    let ended = ended_by_themselves(view);
    ensure!(ended.is_empty(), "of these the etcd ended by itself: {ended:?}");
    Ok(())
}

/// What the condition Reconciling says while etcd lowers the version of the cluster: on the way down, and to cut the logs.
const LOWERING: [&str; 2] = ["etcd lowers the version", "Every member takes a snapshot"];
/// And what it says of a member while the image that it is to run is tried.
const TRIES: &str = ": the new image is being tried on its node.";

/// How far a cluster has come on its way to another version.
struct Step {
    target: Option<String>,
    told: Vec<Option<LedgerRelease>>,
    logs_cut: bool,
    leader: Option<String>,
    lowering: Option<&'static str>,
    /// For which member an image is tried.
    tries: Option<String>,
}

impl Step {
    fn of(view: &View) -> Self {
        let status = view.status();
        let ledger = status.ledger.unwrap_or_default();
        let told = ledger.members.into_values().map(|member| member.release).collect();
        let says = view.condition(ConditionType::Reconciling).map(|condition| condition.message.as_str());
        let lowering = says.and_then(|says| LOWERING.into_iter().find(|words| says.contains(*words)));
        let tries = says.and_then(|says| says.split_once(TRIES)).map(|(member, _)| member.to_owned());
        Self { target: status.target_version, told, logs_cut: ledger.logs_cut, leader: status.leader, lowering, tries }
    }

    /// Whether it is this one, as far as can be seen: that nobody leads is no step, nor who does while an image is tried.
    fn is(&self, other: &Self) -> bool {
        self.target == other.target
            && self.told == other.told
            && self.logs_cut == other.logs_cut
            && self.lowering == other.lowering
            && self.tries == other.tries
            && (self.tries.is_some() || other.leader.is_none() || self.leader == other.leader)
    }
}

/// Waits until the cluster is at a step at which it was not seen before: after a fault it may show an earlier one again.
/// `None` when it has arrived.
async fn next_step(db: &Cluster, seen: &[Step], version: &str) -> Result<Option<View>> {
    let view = db
        .until("the next step of the way", LONG_WAY, |view| {
            let step = Step::of(view);
            ensure!(is_there(view, version) || !seen.iter().any(|before| before.is(&step)), "it is none");
            Ok(())
        })
        .await?;
    Ok((!is_there(&view, version)).then_some(view))
}

fn is_there(view: &View, version: &str) -> bool {
    let runs = view.is_current() && view.phase() == Some(Phase::Running);
    runs && versions(view) == [version.to_owned()].into()
}
