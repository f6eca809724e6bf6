//! Changes of the version: up through the minors and down again, with writers and at rest; images that are missing, or hold
//! another version; and what is told on the way.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use quorate_crds::{BackupPhase, ConditionType, EtcdBackup, Phase, names};
use quorate_e2e::faults::{nodes, pods};
use quorate_e2e::images::ETCD;
use quorate_e2e::scene::{Cluster, Gateway, PATIENCE, Scene, Stage, View, Wish, Writer, play, wait_for};
use serde_json::{Value, json};

use super::archive;
use super::roll::{etcd_of, is_told, judge, times_told};

pub const V3_5: &str = "3.5.35";
pub const V3_6: &str = "3.6.16";
pub const V3_7: &str = "3.7.3";
/// How an etcd ends that was told to or killed: 0, or 128 and the signal. One that panics ends with 2, one that gives up with 1.
const TOLD_OR_KILLED: [i32; 3] = [0, 128 + 9, 128 + 15];
/// What the kubelet says of a container that was never started: its pod went meanwhile.
const NEVER_STARTED: &str = "StartError";
/// How long a member takes at most from one version to the next; the whole way is waited for with [`PATIENCE`] besides.
pub const LONG_WAY: Duration = Duration::from_mins(5);

pub async fn wish_for(db: &Cluster, version: &str) -> Result<()> {
    db.patch(json!({ "spec": { "version": version } })).await
}

/// Demands that a change is refused, in these words.
pub async fn is_refused(db: &Cluster, patch: Value, words: &str) -> Result<()> {
    let asked = patch.to_string();
    let refused = db.patch(patch).await.err().with_context(|| format!("{asked} was accepted"))?;
    let said = format!("{refused:#}");
    ensure!(said.contains(words), "{asked} was refused by: {said}");
    Ok(())
}

/// What was shown on a way: the version in the VERSION column, and the one that members were being brought to.
pub type Steps = BTreeSet<(String, String)>;

/// Changes the version, waits for the end of the way, and says which steps were shown on it. No etcd may end by itself on
/// it: the kubelet would start one that panics again, and nothing else would show it.
pub async fn goes_to(db: &Cluster, version: &str) -> Result<Steps> {
    let before = ended_by_themselves(&db.view().await?);
    wish_for(db, version).await?;
    let ended = RefCell::new(BTreeSet::new());
    let seen = arrives_showing(db, |view| {
        ended.borrow_mut().extend(ended_by_themselves(view));
        step(view)
    })
    .await?;
    db.settles(db.view().await?.pods.len()).await?;
    let ended: Vec<_> = ended.into_inner().difference(&before).cloned().collect();
    ensure!(ended.is_empty(), "on the way to {version} the etcd of these ended by itself: {ended:?}");
    Ok(seen)
}

/// Members whose etcd has ended by itself, and how, of all that the kubelets tell: the last end of each container.
pub fn ended_by_themselves(view: &View) -> BTreeSet<String> {
    let etcds = view.pods.iter().filter_map(|(name, pod)| Some((name, etcd_of(pod)?)));
    let ends = etcds.flat_map(|(name, etcd)| {
        let states = [etcd.state.as_ref(), etcd.last_state.as_ref()].into_iter().flatten();
        states.filter_map(move |state| Some((name, state.terminated.as_ref()?)))
    });
    ends.filter(|(_, end)| end.reason.as_deref() != Some(NEVER_STARTED) && !TOLD_OR_KILLED.contains(&end.exit_code))
        .map(|(name, end)| format!("{name}: {end:?}"))
        .collect()
}

/// Waits for the end of a way, and says the same.
pub async fn arrives(db: &Cluster) -> Result<Steps> {
    arrives_showing(db, step).await
}

fn step(view: &View) -> Option<(String, String)> {
    let status = view.status();
    status.version.zip(status.target_version)
}

/// Waits for the end of a way, and says what was seen in the looks at it.
pub async fn arrives_showing<T: Ord>(db: &Cluster, look: impl Fn(&View) -> Option<T>) -> Result<BTreeSet<T>> {
    let seen = RefCell::new(BTreeSet::new());
    db.until("the members to run what is wished", LONG_WAY, |view| {
        seen.borrow_mut().extend(look(view));
        ensure!(view.is_current() && view.phase() == Some(Phase::Running), "under way");
        Ok(())
    })
    .await?;
    Ok(seen.into_inner())
}

/// Demands that each of these steps was shown on a way.
pub fn were_shown<const N: usize>(seen: &Steps, steps: [(&str, &str); N]) -> Result<()> {
    for (from, to) in steps {
        ensure!(seen.contains(&(from.to_owned(), to.to_owned())), "{from} -> {to} was not shown, but {seen:?}");
    }
    Ok(())
}

/// What the members run, as the status shows it.
pub fn versions(view: &View) -> BTreeSet<String> {
    view.status().members.into_iter().filter_map(|member| member.version).collect()
}

/// Demands that no pod was replaced and no member added or removed meanwhile: what changes does so in place.
pub async fn in_place<T>(db: &Cluster, body: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
    let before = (db.identities().await?, super::roll::pods(&db.view().await?));
    let done = body().await?;
    db.is_the_same_as(&before.0).await?;
    ensure!(super::roll::pods(&db.view().await?) == before.1, "a pod was replaced");
    Ok(done)
}

#[tokio::test]
async fn members_go_from_one_minor_to_the_next_in_place_under_a_writer() -> Result<()> {
    play("upgrade_next", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3).version(V3_6)).await?;
        let leader = db.settles(3).await?.leader()?.to_owned();
        in_place(&db, async || {
            let writer = Writer::start_hasty(&db, "w").await?;
            writer.writes(20).await?;
            goes_to(&db, V3_7).await?;
            judge("3.6 -> 3.7", &writer.stop().await?, &db).await
        })
        .await?;
        // Stopped as the leader, etcd would have handed over by itself, and nobody would have told.
        is_told(&db, "LeaderMoved", &[&format!("from {leader} to ")]).await?;
        no_trial_is_left(scene, &db).await
    })
    .await
}

/// Waits until no pod is there but the members'.
pub async fn no_trial_is_left(scene: &Scene, db: &Cluster) -> Result<()> {
    wait_for("the pods of trials to be gone", PATIENCE, async || {
        let pods = scene.api::<Pod>().list(&kube::api::ListParams::default()).await?.items;
        let names: Vec<_> = pods.into_iter().filter_map(|pod| pod.metadata.name).collect();
        ensure!(names.len() == db.view().await?.pods.len(), "there are {names:?}");
        Ok(())
    })
    .await
}

/// All the way up at rest: a cluster that began with 3.5 holds log entries that 3.7 can't read, until snapshots are taken.
/// New members join at the end: what is in the leader's memory counts as well as what is on the disks. Then back again.
#[tokio::test]
#[ignore = "make e2e"]
async fn an_idle_cluster_goes_from_3_5_to_3_7_and_takes_new_members() -> Result<()> {
    play("upgrade_idle", Stage::Shared, async |scene| {
        let db = scene.create(&Wish::new("db", 3).version(V3_5)).await?;
        db.settles(3).await?;
        db.put("hello", "world").await?;
        in_place(&db, async || were_shown(&goes_to(&db, V3_7).await?, [(V3_5, V3_6), (V3_6, V3_7)])).await?;
        let ledger = db.view().await?.status().ledger.context("no ledger")?;
        ensure!(ledger.logs_cut, "nobody cut the logs of 3.5, and nothing that was written has done it");
        db.reads("hello", "world").await?;
        let leader = db.membership().await?.leader()?.to_owned();
        pods::delete_by_force(&db, &[&leader]).await?;
        db.settles(3).await?;
        pods::lose_volumes(&db, &["db-1"]).await?;
        db.settles_without("db-1", 3).await?;
        db.scale(5).await?;
        db.settles(5).await?;
        db.reads("hello", "world").await?;
        for version in [V3_6, V3_5] {
            in_place(&db, async || goes_to(&db, version).await.map(drop)).await.context(version)?;
            db.reads("hello", "world").await.context(version)?;
        }
        Ok(())
    })
    .await
}

/// Demands that etcd was let lower the version so many times.
pub async fn downgrade_was_enabled(db: &Cluster, times: i32) -> Result<()> {
    let enabled = times_told(db, "DowngradeEnabled").await?;
    ensure!(enabled == times, "a downgrade was enabled {enabled} times");
    Ok(())
}

/// Writes from three sides meanwhile, and judges each.
async fn under_writers(what: &str, db: &Cluster, body: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
    let begin = ["one", "two", "three"].map(|side| async move {
        let writer = Writer::start_hasty(db, &format!("{what}, {side}")).await?;
        writer.writes(20).await?;
        anyhow::Ok(writer)
    });
    let writers = try_join_all(begin).await?;
    body().await?;
    for writer in writers {
        let written = writer.stop().await?;
        judge(&written.prefix, &written, db).await?;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_busy_cluster_goes_from_3_5_to_3_7() -> Result<()> {
    play("upgrade_busy", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3).version(V3_5)).await?;
        db.settles(3).await?;
        in_place(&db, async || {
            under_writers("3.5 -> 3.6 -> 3.7", &db, async || {
                were_shown(&goes_to(&db, V3_7).await?, [(V3_5, V3_6), (V3_6, V3_7)])
            })
            .await
        })
        .await
    })
    .await
}

/// In the end without a stop in between. One wish may not be two minors below the one before, but two may follow each other
/// at once: what is wished is two minors below what runs, all the same.
#[tokio::test]
#[ignore = "make e2e"]
async fn a_cluster_goes_down_from_3_7_to_3_5_and_up_again_and_down_in_one_go() -> Result<()> {
    play("upgrade_down", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3).version(V3_7)).await?;
        db.settles(3).await?;
        in_place(&db, async || {
            for (what, version) in [("3.7 -> 3.6", V3_6), ("3.6 -> 3.5", V3_5), ("3.5 -> 3.7", V3_7)] {
                under_writers(what, &db, async || goes_to(&db, version).await.map(drop)).await.context(what)?;
            }
            is_refused(&db, json!({ "spec": { "version": V3_5 } }), "more than one minor").await?;
            under_writers("3.7 -> 3.6 -> 3.5", &db, async || {
                wish_for(&db, V3_6).await?;
                were_shown(&goes_to(&db, V3_5).await?, [(V3_7, V3_6), (V3_6, V3_5)])
            })
            .await
        })
        .await
    })
    .await
}

/// The same at rest: nobody writes an entry by which members would learn what they did not learn otherwise. On each version a
/// member is killed and one is replaced.
#[tokio::test]
#[ignore = "make e2e"]
async fn an_idle_cluster_goes_down_from_3_7_to_3_5_and_up_again() -> Result<()> {
    play("upgrade_down_idle", Stage::Shared, async |scene| {
        let db = scene.create(&Wish::new("db", 3).version(V3_7)).await?;
        db.settles(3).await?;
        db.put("hello", "world").await?;
        for (version, lost) in [(V3_6, "db-0"), (V3_5, "db-1"), (V3_7, "db-2")] {
            in_place(&db, async || goes_to(&db, version).await.map(drop)).await.context(version)?;
            db.reads("hello", "world").await.context(version)?;
            let leader = db.membership().await?.leader()?.to_owned();
            pods::delete_by_force(&db, &[&leader]).await?;
            db.settles(3).await.context(version)?;
            pods::lose_volumes(&db, &[lost]).await?;
            db.settles_without(lost, 3).await.context(version)?;
        }
        db.reads("hello", "world").await
    })
    .await
}

/// Waits until the cluster says that it is stuck for this reason, in these words; and so does an event.
pub async fn is_stuck(db: &Cluster, reason: &str, words: &str) -> Result<()> {
    stalls(db, reason, words).await?;
    is_told(db, reason, &[words]).await
}

async fn stalls(db: &Cluster, reason: &str, words: &str) -> Result<()> {
    db.until(&format!("Stalled by {reason}"), PATIENCE, |view| {
        let stalled = view.condition(ConditionType::Stalled).context("there is no condition Stalled")?;
        ensure!(view.is_current() && stalled.status == "True" && stalled.reason == reason, "{stalled:?}");
        ensure!(stalled.message.contains(words), "{stalled:?}");
        Ok(())
    })
    .await
    .map(drop)
}

#[tokio::test]
async fn an_image_that_is_missing_or_of_another_version_stops_no_member() -> Result<()> {
    play("upgrade_images", Stage::Alone, async |scene| {
        let db = scene.create(&Wish::new("db", 3).version(V3_6)).await?;
        db.settles(3).await?;
        in_place(&db, async || {
            let writer = Writer::start_hasty(&db, "w").await?;
            wish_for(&db, "3.6.99").await?;
            is_stuck(&db, "TrialImageMissing", "v3.6.99").await?;
            db.patch(json!({ "spec": { "image": { "repository": "silent.quorate.invalid/etcd" } } })).await?;
            stalls(&db, "TrialImageMissing", "does not answer").await?;
            let other = json!({ "repository": null, "tag": "v3.7.3" });
            db.patch(json!({ "spec": { "version": "3.7.2", "image": other } })).await?;
            is_stuck(&db, "TrialFailed", "3.7.3").await?;
            // As the VERSION column shows it, it is still what runs.
            let view = db.view().await?;
            ensure!(view.status().version.as_deref() == Some(V3_6), "{:?}", view.status().version);
            none_was_started_anew(&view)?;
            db.patch(json!({ "spec": { "version": V3_6, "image": { "tag": null } } })).await?;
            db.settles(3).await?;
            judge("images that can't be used", &writer.stop().await?, &db).await
        })
        .await?;
        no_trial_is_left(scene, &db).await
    })
    .await
}

/// Demands that each etcd is the first one of its pod.
fn none_was_started_anew(view: &View) -> Result<()> {
    for (name, pod) in &view.pods {
        let restarts = etcd_of(pod).map(|etcd| etcd.restart_count);
        ensure!(restarts == Some(0), "{name} was restarted {restarts:?} times");
    }
    Ok(())
}

/// Only the node of the member that would be the last one lacks the image: nobody is stopped before it has been tried there. It
/// comes, and the way is gone.
#[tokio::test]
#[ignore = "make e2e"]
async fn an_image_that_one_node_alone_lacks_stops_no_member() -> Result<()> {
    play("upgrade_image_on_two", Stage::Alone, async |scene| {
        let db =
            scene.create(&Wish::new("db", 3).version(V3_6).with("/scheduling/antiAffinity", json!("Required"))).await?;
        db.settles(3).await?;
        // A name that no node knows.
        let rare = format!("quorate.dev/{}", scene.namespace());
        let name_it =
            async |node: &str| nodes::tag_image(node, &format!("{ETCD}:v{V3_7}"), &format!("{rare}:v{V3_7}")).await;
        let node = |view: &View, member: &str| view.node(member).map(str::to_owned).context("it has no node");
        let view = db.view().await?;
        for member in ["db-1", "db-2"] {
            name_it(&node(&view, member)?).await?;
        }
        in_place(&db, async || {
            let writer = Writer::start_hasty(&db, "w").await?;
            db.patch(json!({ "spec": { "version": V3_7, "image": { "repository": rare } } })).await?;
            is_stuck(&db, "TrialImageMissing", "db-0: the new image can't be pulled on its node").await?;
            none_was_started_anew(&db.view().await?)?;
            name_it(&node(&view, "db-0")?).await?;
            arrives(&db).await?;
            db.settles(3).await?;
            judge("an image that came to the last node late", &writer.stop().await?, &db).await
        })
        .await?;
        no_trial_is_left(scene, &db).await
    })
    .await
}

/// The EtcdBackup that the cluster made of its own accord.
async fn own_backup(scene: &Scene) -> Result<EtcdBackup> {
    let own =
        scene.api::<EtcdBackup>().list(&kube::api::ListParams::default().labels(names::LABEL_CLUSTER)).await?.items;
    let [backup] = own.as_slice() else { anyhow::bail!("there are {} of them", own.len()) };
    Ok(backup.clone())
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_snapshot_is_in_the_store_before_the_members_go_to_another_minor() -> Result<()> {
    play("upgrade_snapshot", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        let db = archive::begin_with(scene, archive::wish(&gateway).version(V3_6)).await?;
        db.put("before", "the upgrade").await?;
        in_place(&db, async || {
            scene.apply(&Gateway::credentials("s3", false)).await?.well()?;
            wish_for(&db, V3_7).await?;
            let name = own_backup_that_failed(&db).await?;
            is_stuck(&db, "SnapshotFailed", &name).await?;
            ensure!(versions(&db.view().await?) == [V3_6.to_owned()].into(), "a member went on without it");
            // Mended, and made again once the one that failed is deleted, as the message says.
            scene.apply(&Gateway::credentials("s3", true)).await?.well()?;
            scene.kubectl(&["delete", "etcdb", &name]).await?.well()?;
            goes_to(&db, V3_7).await?;
            let taken = own_backup(scene).await?.status.context("it has no status")?;
            ensure!(taken.phase == Some(BackupPhase::Complete), "{taken:?}");
            ensure!(taken.etcd_version.as_deref() == Some(V3_6), "it was taken too late: {taken:?}");
            Ok(())
        })
        .await
    })
    .await
}

/// Waits until the EtcdBackup before the upgrade has failed.
async fn own_backup_that_failed(db: &Cluster) -> Result<String> {
    wait_for("the snapshot to fail", PATIENCE, async || {
        let backup = own_backup(db.scene()).await?;
        let phase = backup.status.and_then(|status| status.phase);
        ensure!(phase == Some(BackupPhase::Failed), "it is {phase:?}");
        backup.metadata.name.context("it has no name")
    })
    .await
}

/// Waits until members run both versions.
pub async fn is_mixed(db: &Cluster, versions_wanted: [&str; 2]) -> Result<()> {
    db.until("members of both versions", PATIENCE, |view| {
        let found = versions(view);
        ensure!(versions_wanted.iter().all(|version| found.contains(*version)), "they run {found:?}");
        Ok(())
    })
    .await
    .map(drop)
}
