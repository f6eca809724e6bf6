//! What a way to another version waits for, and what is told of it: held against the members themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use quorate_crds::{ConditionType, Phase};
use quorate_e2e::faults::{cuts, processes};
use quorate_e2e::scene::{
    Cluster, PATIENCE, Stage, View, Wish, Writer, dial, etcd_processes, is_ready, play, stays, told, wait_for,
};
use rustix::process::Signal;

use super::roll::judge_loss;
use super::upgrade::{LONG_WAY, V3_5, V3_6, V3_7, arrives, in_place, wish_for};
use super::upgrade_lost::{are_told, told_members};

/// Far longer than a member takes to be back; less than its kubelet waits for one that does not answer.
const HELD: Duration = Duration::from_secs(8);
/// How often is looked at what runs and what is told.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How long the status may tell what is no more: rounds are some seconds apart where nothing is to be done.
const LAG: Duration = Duration::from_secs(5);

/// The first one that runs the new version stands still. Whatever time goes by, nobody else is stopped until it is back.
#[tokio::test]
#[ignore = "make e2e"]
async fn nobody_else_is_stopped_while_the_one_before_is_not_back() -> Result<()> {
    play("upgrade_waits", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3).version(V3_6)).await?;
        db.settles(3).await?;
        in_place(&db, async || {
            let writer = Writer::start(&db, "w").await?;
            let others = BTreeSet::from(["db-0".to_owned(), "db-1".to_owned()]);
            let before = processes_of(scene.namespace(), &others);
            wish_for(&db, V3_7).await?;
            // Trials have the members' names, too, and are over by then.
            db.until("the first one to be told", LONG_WAY, |view| are_told(view, V3_7, 1)).await?;
            let frozen = processes::at_birth(scene, &others, Duration::ZERO, Signal::STOP).await?;
            let held = stays("nobody else told", HELD, async || {
                let told = told_members(&db.view().await?, V3_7);
                ensure!(told == BTreeSet::from([frozen.member().to_owned()]), "{told:?} are told");
                ensure!(processes_of(scene.namespace(), &others) == before, "another one was stopped");
                Ok(())
            })
            .await;
            processes::thaw(&frozen);
            held?;
            arrives(&db).await?;
            db.settles(3).await?;
            judge_loss("the first one stood still", &writer.stop().await?, &db).await
        })
        .await
    })
    .await
}

/// The first one that runs the new version is Ready and hears the leader, and has no way to the third. Nobody else is stopped until
/// it has one: without the leader the two would be a majority that can't agree.
#[tokio::test]
#[ignore = "make e2e"]
async fn nobody_else_is_stopped_while_the_one_before_does_not_reach_all() -> Result<()> {
    play("upgrade_waits_for_peers", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3).version(V3_6)).await?;
        db.settles(3).await?;
        in_place(&db, async || {
            let writer = Writer::start(&db, "w").await?;
            wish_for(&db, V3_7).await?;
            db.until("the first one to be told", LONG_WAY, |view| are_told(view, V3_7, 1)).await?;
            let cast = Cast::of(&db).await?;
            let before = processes_of(scene.namespace(), &cast.others);
            // It reaches nobody before it is cut off.
            let first = processes::at_birth(scene, &cast.others, Duration::ZERO, Signal::STOP).await?;
            ensure!(first.member() == cast.first, "{} was started, not {}", first.member(), cast.first);
            cuts::between_during(&db, (&cast.first, &cast.third), async || {
                processes::thaw(&first);
                db.until("the first one to be back", PATIENCE, |view| is_back(view, &cast.first)).await?;
                stays("nobody else told, with all of them Ready", HELD, async || {
                    let view = db.view().await?;
                    let told = told_members(&view, V3_7);
                    ensure!(told == BTreeSet::from([cast.first.clone()]), "{told:?} are told");
                    ensure!(processes_of(scene.namespace(), &cast.others) == before, "another one was stopped");
                    ensure!(view.pods.values().all(is_ready), "not all are Ready: {}", view.summary());
                    Ok(())
                })
                .await?;
                db.until("why to be told", PATIENCE, |view| {
                    let says = view.condition(ConditionType::Reconciling).map(|says| says.message.as_str());
                    ensure!(says.is_some_and(|says| says.contains("connected to each other")), "{says:?}");
                    Ok(())
                })
                .await
            })
            .await?;
            arrives(&db).await?;
            db.settles(3).await?;
            judge_loss("the first one did not reach the third", &writer.stop().await?, &db).await
        })
        .await
    })
    .await
}

/// Who is who once the first one is told.
struct Cast {
    first: String,
    /// The leader and the third.
    others: BTreeSet<String>,
    third: String,
}

impl Cast {
    async fn of(db: &Cluster) -> Result<Self> {
        let leader = db.membership().await?.leader()?.to_owned();
        let view = db.view().await?;
        let told = told_members(&view, V3_7);
        let [first] = told.iter().collect::<Vec<_>>()[..] else { anyhow::bail!("{told:?} are told") };
        ensure!(*first != leader, "it leads, and is to hand over first");
        let others: BTreeSet<String> = view.pods.keys().filter(|name| *name != first).cloned().collect();
        let third = others.iter().find(|name| **name != leader).context("there is no third")?.clone();
        Ok(Self { first: first.clone(), others, third })
    }
}

/// Demands that a member is Ready on the new version.
fn is_back(view: &View, name: &str) -> Result<()> {
    let (ready, runs) = (view.pods.get(name).is_some_and(is_ready), tells(view).0.remove(name));
    ensure!(ready && runs.as_deref() == Some(V3_7), "Ready: {ready}, it runs {runs:?}");
    Ok(())
}

/// The processes of these members.
fn processes_of(namespace: &str, members: &BTreeSet<String>) -> BTreeMap<String, i32> {
    let running = etcd_processes(namespace).into_iter().filter(|process| members.contains(process.member()));
    running.map(|process| (process.member().to_owned(), process.pid)).collect()
}

/// What members say that they run, by their own word. Who does not answer is not among them.
async fn runs(db: &Cluster) -> Result<BTreeMap<String, String>> {
    let mut versions = BTreeMap::new();
    for (name, door) in db.voters_doors().await? {
        let asked = async { dial(&door).await?.status().await.map_err(told) };
        if let Ok(status) = asked.await {
            versions.insert(name, status.version().to_owned());
        }
    }
    Ok(versions)
}

/// What the status tells that they run, and the lowest of it, as the VERSION column shows it.
fn tells(view: &View) -> (BTreeMap<String, String>, Option<String>) {
    let status = view.status();
    let members = status.members.into_iter().filter_map(|member| Some((member.name, member.version?)));
    (members.collect(), status.version)
}

/// Where the status differs from what members said right before and right after it.
fn differs(before: &BTreeMap<String, String>, view: &View, after: &BTreeMap<String, String>) -> Option<String> {
    let (members, version) = tells(view);
    let said: BTreeMap<_, _> = before.iter().filter(|(name, version)| after.get(*name) == Some(*version)).collect();
    let wrong = said.iter().find(|(name, version)| members.get(**name).is_some_and(|told| told != **version));
    if let Some((name, version)) = wrong {
        return Some(format!("{name} runs {version}, and {members:?} is told"));
    }
    // Of all three, or the lowest might be one that does not answer. These versions sort as their text does.
    let lowest = said.values().min().filter(|_| said.len() == 3)?;
    (version.as_ref() != Some(*lowest)).then(|| format!("the lowest is {lowest}, and {version:?} is told"))
}

/// All the way up, the status is compared with what members answer. It may be late, and not for long.
#[tokio::test]
#[ignore = "make e2e"]
async fn what_is_told_on_the_way_is_what_runs() -> Result<()> {
    play("upgrade_told", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3).version(V3_5)).await?;
        db.settles(3).await?;
        wish_for(&db, V3_7).await?;
        let (began, mut mixed, mut wrong) = (Instant::now(), BTreeSet::new(), None::<Instant>);
        let mut before = runs(&db).await?;
        loop {
            ensure!(began.elapsed() < LONG_WAY, "the way has no end");
            let view = db.view().await?;
            let after = runs(&db).await?;
            if let Some(how) = differs(&before, &view, &after) {
                let since = *wrong.get_or_insert_with(Instant::now);
                ensure!(since.elapsed() <= LAG, "for {:.1} s: {how}", since.elapsed().as_secs_f64());
            } else {
                wrong = None;
                let told: BTreeSet<String> = tells(&view).0.into_values().collect();
                mixed.extend((told.len() > 1).then_some(told));
            }
            if view.is_current() && view.phase() == Some(Phase::Running) {
                break;
            }
            before = after;
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        let both = [[V3_5, V3_6], [V3_6, V3_7]].map(|pair| BTreeSet::from(pair.map(str::to_owned)));
        ensure!(both.iter().all(|pair| mixed.contains(pair)), "rightly told were only {mixed:?}");
        wait_for("the end to be told", PATIENCE, async || {
            let (members, version) = tells(&db.view().await?);
            ensure!(members == runs(&db).await? && version.as_deref() == Some(V3_7), "{members:?}, {version:?}");
            Ok(())
        })
        .await
        .context("at the end")
    })
    .await
}
